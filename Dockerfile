# One image for the API and the workers; docker-compose.yml says what each runs. CPU only: it judges sim: targets.
FROM debian:12-slim

# A folder of the build context that holds torch's wheel, where torch's own index is out of reach:
#   docker compose build --build-arg PIP_FIND_LINKS=/app/wheels
ARG PIP_FIND_LINKS=

WORKDIR /app
COPY . .
RUN scripts/bootstrap.sh server && rm -rf /var/lib/apt/lists/* "$HOME/.cache"

# Not root: a candidate that got out of its sandbox would be nobody in here.
RUN useradd --uid 10001 --create-home pkforge && install -d -o pkforge -m 700 /var/lib/pkforge
USER pkforge
ENV PATH=/app/.venv/bin:/usr/bin:/bin PKFORGE_HOME=/var/lib/pkforge PYTHONUNBUFFERED=1
VOLUME /var/lib/pkforge
