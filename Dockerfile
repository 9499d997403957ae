# Safepost's image: a sidecar that runs as nobody in particular and needs one writable folder.
# The tag is pinned to a patch release; raise it by hand, and read what changed.
ARG PYTHON_TAG=3.11.13-slim-bookworm

FROM python:${PYTHON_TAG} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/safepost
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY proxy ./proxy
RUN /opt/safepost/bin/pip install .

FROM python:${PYTHON_TAG}
LABEL org.opencontainers.image.title="Safepost" \
      org.opencontainers.image.description="Outbound HTTP resilience proxy for payments" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH="/opt/safepost/bin:${PATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN groupadd --gid 10001 safepost \
    && useradd --uid 10001 --gid safepost --no-create-home --home-dir /var/lib/safepost --shell /usr/sbin/nologin safepost \
    && install --directory --owner=safepost --group=safepost --mode=0750 /var/lib/safepost
COPY --from=build /opt/safepost /opt/safepost
# The default reaches for a sandbox on loopback. Mount your own over it.
COPY config.yaml /etc/safepost/config.yaml
USER 10001:10001
WORKDIR /var/lib/safepost
RUN ["safepost", "check", "-c", "/etc/safepost/config.yaml"]
VOLUME /var/lib/safepost
EXPOSE 8080 8081
# http.client reads no proxy variables, and the slim image has no curl.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client; c = http.client.HTTPConnection('127.0.0.1', 8081, timeout=2); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["safepost"]
CMD ["run", "-c", "/etc/safepost/config.yaml"]
