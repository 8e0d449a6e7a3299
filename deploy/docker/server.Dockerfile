# The server of a cluster: API, metrics, and the service that agents connect to. Run it with --init.
# Built from the root of the repository by "make docker-build", which makes the wheel first.
FROM python:3.12-slim AS build
COPY requirements/run.txt dist/gpu_scheduler-*.whl /build/
RUN python -m venv --without-pip /opt/gpu-scheduler \
    && pip --python /opt/gpu-scheduler install --no-cache-dir --require-hashes -r /build/run.txt \
    && pip --python /opt/gpu-scheduler install --no-cache-dir --no-deps /build/gpu_scheduler-*.whl

FROM python:3.12-slim
RUN groupadd --gid 10001 gpu-scheduler \
    && useradd --uid 10001 --gid gpu-scheduler --no-create-home --home-dir /var/lib/gpu-scheduler \
        --shell /usr/sbin/nologin gpu-scheduler \
    && install -d -m 700 -o gpu-scheduler -g gpu-scheduler /var/lib/gpu-scheduler \
    && install -d /etc/gpu-scheduler
COPY --from=build /opt/gpu-scheduler /opt/gpu-scheduler
ENV PATH=/opt/gpu-scheduler/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TGPU_SERVER=/var/lib/gpu-scheduler
# Nothing here needs root: jobs run on nodes, under their agents.
USER gpu-scheduler
VOLUME /var/lib/gpu-scheduler
EXPOSE 8080 9090 9091
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["tgpu", "health"]
ENTRYPOINT ["tgpu", "server", "--state-dir", "/var/lib/gpu-scheduler"]
