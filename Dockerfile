# The image of the service: `docker build -t gpu-autopilot .`. It runs as a user without a name, on a read-only root.

FROM python:3.11-slim AS build
WORKDIR /src
COPY requirements.lock ./
RUN python -m venv /opt/gpu-autopilot \
 && /opt/gpu-autopilot/bin/pip install --no-cache-dir --no-input --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY actuators actuators
COPY apiserver apiserver
COPY autopilot autopilot
COPY collectors collectors
COPY models models
COPY runbooks runbooks
COPY simulator simulator
RUN /opt/gpu-autopilot/bin/pip install --no-cache-dir --no-input --no-deps --no-build-isolation . \
 && /opt/gpu-autopilot/bin/python -m compileall -q /opt/gpu-autopilot/lib

FROM python:3.11-slim
LABEL org.opencontainers.image.title="gpu-autopilot" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gpu-autopilot /opt/gpu-autopilot
ENV PATH=/opt/gpu-autopilot/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    OMP_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp
USER 65532:65532
WORKDIR /tmp
EXPOSE 9470 9471
ENTRYPOINT ["autopilot"]
CMD ["run", "--config", "/etc/gpu-autopilot/service.yaml"]
