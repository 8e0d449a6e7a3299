# The server of a cluster: API, metrics, and the service that agents connect to.
# Built from the root of the repository by "make docker-build", which makes the wheel first.
FROM python:3.12-slim AS build
COPY requirements/run.txt dist/gpu_scheduler-*.whl /build/
RUN python -m venv /opt/gpu-scheduler \
    && /opt/gpu-scheduler/bin/pip install --no-cache-dir --require-hashes -r /build/run.txt \
    && /opt/gpu-scheduler/bin/pip install --no-cache-dir --no-deps /build/gpu_scheduler-*.whl

FROM python:3.12-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/gpu-scheduler gpu-scheduler \
    && mkdir /etc/gpu-scheduler
COPY --from=build /opt/gpu-scheduler /opt/gpu-scheduler
ENV PATH=/opt/gpu-scheduler/bin:$PATH \
    PYTHONUNBUFFERED=1
# Nothing here needs root: jobs run on nodes, under their agents.
USER gpu-scheduler
VOLUME /var/lib/gpu-scheduler
EXPOSE 8080 9090 9091
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["tgpu", "health", "--server", "/var/lib/gpu-scheduler"]
ENTRYPOINT ["tgpu", "server", "--state-dir", "/var/lib/gpu-scheduler"]
