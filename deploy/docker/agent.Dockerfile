# The agent of one node. Jobs run inside this container, as the users who submitted them, so it needs
# root, the GPUs (--gpus all, by the NVIDIA container toolkit) and the users' files and accounts.
# Stopping the container kills its jobs ("tgpu nodes drain" first, or use deploy/systemd, where they
# run on). Run it with --init, and keep its volume: the node's key and what it has to tell are there.
# Built from the root of the repository by "make docker-build", which makes the wheel first.
FROM python:3.12-slim AS build
COPY requirements/run.txt dist/gpu_scheduler-*.whl /build/
RUN python -m venv --without-pip /opt/gpu-scheduler \
    && pip --python /opt/gpu-scheduler install --no-cache-dir --require-hashes -r /build/run.txt \
    && pip --python /opt/gpu-scheduler install --no-cache-dir --no-deps /build/gpu_scheduler-*.whl

FROM python:3.12-slim
COPY --from=build /opt/gpu-scheduler /opt/gpu-scheduler
ENV PATH=/opt/gpu-scheduler/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /var/lib/gpu-scheduler
STOPSIGNAL SIGTERM
ENTRYPOINT ["tgpu", "agent", "--work-dir", "/var/lib/gpu-scheduler"]
