# One image for the service, MLflow, and Ray's head and workers.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# The package index for torch. For NVIDIA GPUs: https://download.pytorch.org/whl/cu130
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# g++ compiles the fast recurrence for the machine's processor when it is first used.
RUN apt-get update && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 --create-home eigensweep \
    && install -d -o eigensweep -g eigensweep /srv/home /srv/storage /srv/artifacts

WORKDIR /opt/eigensweep
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        > requirements.txt \
    && pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt -r requirements.txt
# .dockerignore names what is copied: eigensweep/ has links to the folders beside it.
COPY . .
RUN pip install --no-cache-dir --no-deps -c constraints.txt .

# Ray's workers import from the current folder first, so it must not be that of the sources.
WORKDIR /srv/home
USER eigensweep
ENV PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    MLFLOW_DISABLE_TELEMETRY=true
EXPOSE 8642
CMD ["eigensweep", "serve"]
