# The image of cluster nodes, and that of the tracking server (cluster/compose.yaml):
#   docker build --tag dpsweep .
#   docker build --tag dpsweep --build-arg EXTRAS=cluster,text .
FROM python:3.11-slim AS build
ARG EXTRAS=cluster
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY platform platform
COPY trainables trainables
COPY search_spaces search_spaces
COPY cluster cluster
RUN python -m venv /opt/dpsweep \
 && /opt/dpsweep/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    -c constraints.txt ".[$EXTRAS]"

# MLflow with the drivers of its database and its object store; none of dpsweep.
FROM python:3.11-slim AS tracking-build
COPY constraints.txt /src/
RUN python -m venv /opt/mlflow \
 && /opt/mlflow/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    -c /src/constraints.txt mlflow "psycopg[binary]" boto3

FROM python:3.11-slim AS tracking
RUN useradd --uid 1000 --create-home mlflow
COPY --from=tracking-build /opt/mlflow /opt/mlflow
ENV PATH=/opt/mlflow/bin:$PATH
USER 1000:1000
WORKDIR /home/mlflow
CMD ["mlflow", "server"]

# The last stage is the default. KubeRay's probes call wget; Ray's worker processes, bash.
FROM python:3.11-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends wget \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --create-home dpsweep
COPY --from=build /opt/dpsweep /opt/dpsweep
ENV PATH=/opt/dpsweep/bin:$PATH
USER 1000:1000
WORKDIR /home/dpsweep
CMD ["dpsweep", "doctor"]
