#!/usr/bin/env bash
# The compose files as they stand, in Docker, under a project name of their own: builds the image, starts the broker, a
# leader with two replicas and Prometheus (and Grafana, where its image is available), and checks that events from Kafka
# are learned, that the three give the same embeddings, that Prometheus scrapes them, that a killed leader comes back,
# and that no read of the replicas fails while it is killed and restarted. Removes all of it at the end.
#
#   scripts/compose.sh          as root, with a Docker engine on this machine, and the ports that the compose files name
#
# scripts/docker.sh provides an engine and images where there are none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PROJECT=evergraph-check EVENTS=2000 TOPIC=evergraph-events
readonly LEADER=$PROJECT-evergraph-1
readonly DAEMONS=(evergraph:8080 replica-1:8081 replica-2:8082)
readonly CLIENT=(docker run --rm --network "${PROJECT}_default")

log() { printf 'compose: %s\n' "$*" >&2; }
die() {
    log "error: $*"
    compose ps --all >&2 || true
    compose logs --tail 20 >&2 || true
    exit 1
}
compose() { docker compose --project-name "$PROJECT" -f deploy/compose.yaml -f deploy/compose.cluster.yaml "$@"; }

# field URL PATH: a field of a JSON document, by names with dots between.
field() {
    curl -sSf --max-time 5 "$1" | python3 -c 'import functools, json, sys
print(functools.reduce(lambda at, name: at[name], sys.argv[1].split("."), json.load(sys.stdin)))' "$2"
}

# until_is WHAT WANTED COMMAND...: waits until a command prints this.
until_is() {
    local what=$1 wanted=$2 found=
    shift 2
    for _ in $(seq 240); do
        found=$("$@" 2>/dev/null) || found=
        [ "$found" != "$wanted" ] || return 0
        sleep 0.5
    done
    die "$what: $found, and not $wanted"
}

# push FROM: as many events as EVENTS, through the broker.
push() {
    { echo src,dst,ts; seq "$1" $(($1 + EVENTS - 1)) | awk '{ print "user-" $1 % 97 ",item-" $1 % 31 "," $1 }'; } \
        >"$work/events.csv"
    "${CLIENT[@]}" --volume "$work/events.csv:/events.csv:ro" evergraph:local \
        ingest --events /events.csv --to kafka --brokers kafka:9092 --topic "$TOPIC" --rate 2000 >&2
}

embeddings() {
    curl -sSf --max-time 5 "localhost:$1/v1/embeddings" -H 'content-type: application/json' \
        -d '{"nodes": ["user-1", "user-2", "item-3"], "at": 100000}' |
        python3 -c 'import json, sys
found = json.load(sys.stdin)["embeddings"]
assert len(found) == 3 and all(any(item["embedding"]) for item in found), found
print(found)'
}

# alike COUNT: the three have learned so many events and give the same embeddings.
alike() {
    local daemon
    for daemon in "${DAEMONS[@]}"; do
        until_is "position of ${daemon%:*}" "$1" field "localhost:${daemon#*:}/v1/nodes/user-1" \
            freshness.applied_position
    done
    embeddings 8080 >"$work/leader" || die "the leader gives no embeddings"
    for daemon in "${DAEMONS[@]:1}"; do
        embeddings "${daemon#*:}" | cmp - "$work/leader" >&2 || die "${daemon%:*} and the leader respond differently"
    done
    log "at position $1 the leader and both replicas give the same embeddings"
}

# Reads the replicas until a file is there; prints how many reads failed, and of how many.
read_on() {
    local failed=0 count=0
    while [ ! -e "$work/over" ]; do
        count=$((count + 2))
        embeddings 8081 >/dev/null 2>&1 || failed=$((failed + 1))
        embeddings 8082 >/dev/null 2>&1 || failed=$((failed + 1))
    done
    echo "$failed $count"
}

# As after a crash: by the machine, so that it is the restart policy that brings the leader back.
kill_leader() {
    local pid
    pid=$(docker inspect --format '{{.State.Pid}}' "$LEADER")
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = evergraph ] || die "process $pid is no daemon: is the engine elsewhere?"
    kill -KILL "$pid"
    until_is "restarts of the leader" 1 docker inspect --format '{{.RestartCount}}' "$LEADER"
    healthy "$LEADER"
}

healthy() { until_is "health of $1" healthy docker inspect --format '{{.State.Health.Status}}' "$1"; }

scraped() {
    curl -sSf --max-time 5 --get localhost:9090/api/v1/query --data-urlencode 'query=sum(up{job="evergraph"})' |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["result"][0]["value"][1])'
}

work=$(mktemp -d)
chmod 755 "$work"
end() {
    jobs -p | xargs -r kill 2>/dev/null || true
    compose down --volumes --timeout 30 >&2 || true
    rm -rf "$work"
}
[ "$(id -u)" = 0 ] || { log "error: only root can kill a container's process"; exit 1; }
trap end EXIT

services=$(compose config --services)
docker image inspect "$(sed -n 's/^ *image: \(grafana.*\)/\1/p' deploy/compose.yaml)" >/dev/null 2>&1 ||
    docker compose -f deploy/compose.yaml pull --quiet grafana 2>/dev/null || {
    log "warning: without Grafana, whose image cannot be had here"
    services=$(grep -v '^grafana$' <<<"$services")
}
compose build evergraph >&2
# Names without spaces.
# shellcheck disable=SC2086
compose up --detach --no-build $services >&2 || die "the services do not start"
for daemon in "${DAEMONS[@]}"; do healthy "$PROJECT-${daemon%:*}-1"; done
push 0
alike "$EVENTS"
until_is "daemons that Prometheus scrapes" 3 scraped

read_on >"$work/reads" &
reader=$!
kill_leader
push "$EVENTS"
alike $((2 * EVENTS))
compose restart evergraph >&2 || die "the leader does not restart"
healthy "$LEADER"
touch "$work/over"
wait "$reader"
read -r failed count <"$work/reads"
[ "$failed" = 0 ] && [ "$count" -gt 0 ] || die "$failed of $count reads of replicas failed beside a leader that restarts"
push $((2 * EVENTS))
alike $((3 * EVENTS))
if grep -q '^grafana$' <<<"$services"; then
    until_is "Grafana" ok field localhost:3000/api/health database
fi
log "passed: events from Kafka, equal embeddings, a killed and a restarted leader, 0 of $count reads failed, metrics scraped"
