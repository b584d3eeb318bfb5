#!/bin/sh
# The broker, or one of its tools: by the name under which this is called.
set -eu
case ${0##*/} in
    kafka-topics.sh) exec java -Xmx128m -cp '/opt/kafka/libs/*' org.apache.kafka.tools.TopicCommand "$@" ;;
    kafka-broker-api-versions.sh)
        exec java -Xmx128m -cp '/opt/kafka/libs/*' org.apache.kafka.tools.BrokerApiVersionsCommand "$@" ;;
esac
export CLUSTER_ID="${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}"
java -Xmx128m -cp '/opt/kafka/libs/*' kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker \
    --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config
exec java -Xmx512m -cp '/opt/kafka/libs/*' kafka.Kafka /opt/kafka/config/server.properties
