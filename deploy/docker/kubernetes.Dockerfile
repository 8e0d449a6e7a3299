# Scheduler, webhook and agent on Kubernetes: one image, and the Helm chart says which of them runs.
# Built from the root of the repository by "make docker", which makes the wheel first.
FROM python:3.12-slim AS build
COPY requirements/kubernetes.txt dist/gpu_scheduler-*.whl /build/
RUN python -m venv --without-pip /opt/gpu-scheduler \
    && pip --python /opt/gpu-scheduler install --no-cache-dir --require-hashes -r /build/kubernetes.txt \
    && pip --python /opt/gpu-scheduler install --no-cache-dir --no-deps /build/gpu_scheduler-*.whl

FROM python:3.12-slim
COPY --from=build /opt/gpu-scheduler /opt/gpu-scheduler
ENV PATH=/opt/gpu-scheduler/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# The chart runs the agent as root, since the directories of the kubelet belong to root.
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "gpu_scheduler.kubernetes.scheduler"]
