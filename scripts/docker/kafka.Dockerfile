# Apache Kafka from Maven Central, which reads its settings from the environment by the class that its own image uses.
FROM evergraph-debian:bookworm
# hadolint ignore=DL3008
RUN apt-get update -q \
    && apt-get install -yq --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 appuser \
    && install -d -o 1000 /opt/kafka/config /etc/kafka/docker /var/lib/kafka/data /mnt/shared/config
COPY libs /opt/kafka/libs
COPY bin /opt/kafka/bin
USER 1000
VOLUME ["/var/lib/kafka/data", "/mnt/shared/config"]
CMD ["/opt/kafka/bin/run.sh"]
