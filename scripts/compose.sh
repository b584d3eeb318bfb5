#!/usr/bin/env bash
# The compose files as they stand, in Docker: builds the image, starts the broker, a leader with two replicas and
# Prometheus (and Grafana, where its image is to be had), and checks that events from Kafka are learned, that the three
# respond alike, byte for byte, that Prometheus scrapes them, that a killed leader comes back, and that no read is
# refused while the leader restarts. Removes all of it at the end.
#
#   scripts/compose.sh          needs Docker, and the ports that the compose files name
#
# scripts/docker.sh provides what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly EVENTS=2000 TOPIC=evergraph-events
readonly DAEMONS=(evergraph:8080 replica-1:8081 replica-2:8082)
readonly CLIENT=(docker run --rm --network evergraph_default)

log() { printf 'compose: %s\n' "$*" >&2; }
die() {
    log "error: $*"
    compose ps --all >&2 || true
    compose logs --tail 20 >&2 || true
    exit 1
}
compose() { docker compose -f deploy/compose.yaml -f deploy/compose.cluster.yaml "$@"; }

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
        python3 -c 'import json, sys; print(json.load(sys.stdin)["embeddings"])'
}

# alike COUNT: the three have learned so many events and respond alike.
alike() {
    local daemon
    for daemon in "${DAEMONS[@]}"; do
        until_is "position of ${daemon%:*}" "$1" field "localhost:${daemon#*:}/v1/nodes/user-1" \
            freshness.applied_position
    done
    embeddings 8080 >"$work/leader"
    for daemon in "${DAEMONS[@]:1}"; do
        embeddings "${daemon#*:}" | cmp - "$work/leader" >&2 || die "${daemon%:*} and the leader respond differently"
    done
    log "at position $1 the leader and both replicas respond alike"
}

# Reads a replica until a file is there; the requests that failed.
read_on() {
    local failed=0 count=0
    while [ ! -e "$work/restarted" ]; do
        count=$((count + 1))
        embeddings 8081 >/dev/null 2>&1 || failed=$((failed + 1))
        embeddings 8082 >/dev/null 2>&1 || failed=$((failed + 1))
    done
    echo "$failed of $((2 * count))"
}

scraped() {
    curl -sSf --max-time 5 --get localhost:9090/api/v1/query --data-urlencode 'query=sum(up{job="evergraph"})' |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["result"][0]["value"][1])'
}

work=$(mktemp -d)
chmod 755 "$work"
trap 'compose down --volumes --timeout 30 >&2 || true; rm -rf "$work"' EXIT

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
for daemon in "${DAEMONS[@]}"; do
    until_is "health of ${daemon%:*}" healthy \
        docker inspect --format '{{.State.Health.Status}}' "evergraph-${daemon%:*}-1"
done
push 0
alike "$EVENTS"
until_is "daemons that Prometheus scrapes" 3 scraped

# As after a crash: by the machine, so that it is the restart policy that brings it back.
kill -KILL "$(docker inspect --format '{{.State.Pid}}' evergraph-evergraph-1)"
push "$EVENTS"
alike $((2 * EVENTS))

read_on >"$work/failed" &
compose restart evergraph >&2
until_is "health of the leader after a restart" healthy \
    docker inspect --format '{{.State.Health.Status}}' evergraph-evergraph-1
touch "$work/restarted"
wait
failed=$(<"$work/failed")
[ "${failed%% *}" = 0 ] || die "$failed reads of replicas failed while the leader restarted"
push $((2 * EVENTS))
alike $((3 * EVENTS))
log "passed: events from Kafka, equal responses, a killed and a restarted leader, $failed reads failed, metrics scraped"
