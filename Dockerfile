# Two images: `docker build --target service .` and `docker build --target worker .`
# service: API, pages, MLflow's server, the record; drivers run in it.
# worker: Ray's head and workers, with what reads stores in S3 and Google Cloud Storage. It has no web framework, no database and no MLflow; Eigensweep's own
# files are all there, as a driver compares their digest with its own.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS worker-packages

# Empty for processors only; for NVIDIA GPUs such as cu130, a name below TORCH_INDEX.
ARG CUDA=""
ARG TORCH_INDEX=https://download.pytorch.org/whl

# g++ compiles the fast recurrence for the machine's processor when it is first used.
RUN apt-get update && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 --create-home eigensweep \
    && install -d -o eigensweep -g eigensweep /srv/home /srv/storage /srv/artifacts

WORKDIR /opt/eigensweep
COPY pyproject.toml constraints.txt ./
RUN python -c "import os, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; extras = project['optional-dependencies']; print(*project['dependencies'], *extras['worker'], *extras['s3'], *extras['gcs'], *(extras['gpu'] if os.environ['CUDA'] else []), sep='\n')" \
        > worker.txt \
    && pip install --no-cache-dir --extra-index-url "$TORCH_INDEX/${CUDA:-cpu}" -c constraints.txt -r worker.txt

ENV PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    MLFLOW_DISABLE_TELEMETRY=true

FROM worker-packages AS worker
# .dockerignore names what is copied: eigensweep/ has links to the folders beside it.
COPY . .
RUN pip install --no-cache-dir --no-deps -c constraints.txt .
# Ray's workers import from the current folder first, so it must not be that of the sources.
WORKDIR /srv/home
USER 1000
CMD ["ray", "start", "--help"]

FROM worker-packages AS service
RUN python -c "import tomllib; extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; print(*(each for each in extras['service'] + extras['postgres'] if not each.startswith('eigensweep')), sep='\n')" \
        > service.txt \
    && pip install --no-cache-dir --extra-index-url "$TORCH_INDEX/${CUDA:-cpu}" -c constraints.txt -r service.txt
COPY . .
RUN pip install --no-cache-dir --no-deps -c constraints.txt .
WORKDIR /srv/home
USER 1000
EXPOSE 8642
CMD ["eigensweep", "serve"]
