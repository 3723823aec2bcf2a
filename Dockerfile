# The server of vitruvian: docker build -t vitruvian . && docker run -p 127.0.0.1:8000:8000 -v keys:/keys:ro … vitruvian
# With CUDA: docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 -t vitruvian:cuda .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
# CPU builds of torch by default; the CUDA libraries come with the CUDA builds.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ".[serve,video,exr,heif,detect]"

FROM python:${PYTHON}-slim
COPY --from=build /venv /venv
# Triton, which comes with the CUDA builds of torch, needs a C compiler at run time.
RUN if /venv/bin/python -c "import triton" 2>/dev/null; then \
        apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi
# /data: jobs. /keys: API keys. /models: the caches of the Hub and of Triton, whose files must be executable.
RUN useradd --system --uid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin vitruvian \
    && install -d -o vitruvian -g vitruvian /data /models \
    && install -d -o vitruvian -g vitruvian -m 700 /keys
ENV PATH=/venv/bin:$PATH \
    HF_HOME=/models \
    TRITON_CACHE_DIR=/models/triton \
    PYTHONUNBUFFERED=1 \
    VITRUVIAN_SERVE_HOST=0.0.0.0 \
    VITRUVIAN_SERVE_DATA=/data \
    VITRUVIAN_SERVE_API_KEY_FILE=/keys/keys
USER vitruvian
VOLUME ["/data", "/models"]
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["vitruvian"]
CMD ["serve"]
