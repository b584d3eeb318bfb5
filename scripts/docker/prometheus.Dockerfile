# Debian's Prometheus, called as upstream's image calls it.
FROM evergraph-debian:bookworm
# hadolint ignore=DL3008
RUN apt-get update -q \
    && apt-get install -yq --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o nobody /prometheus
USER 65534
VOLUME /prometheus
WORKDIR /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
