#!/usr/bin/env bash
# Keeps an online store of Feast as of now by the change feed, and compares it with the daemon: a broker, a daemon and a
# store of its own, all removed at the end.
#
#   scripts/feast.sh
#
# Environment:
#   EVERGRAPH   the program to test   (default: what `cargo build` makes)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh feast

program=${EVERGRAPH:-}
if [ -z "$program" ]; then
    cargo build --locked
    program=target/debug/evergraph
fi
work=$(mktemp -d)
export KAFKA_PORT=19392 KAFKA_DATA="$work/kafka"
daemon=
finish() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    [ -z "$daemon" ] || wait "$daemon" || true
    scripts/kafka.sh stop || true
    rm -rf "$work"
}
trap finish EXIT

scripts/kafka.sh start
"$program" serve --listen 127.0.0.1:0 --data "$work/data" --set output.format=json --set learner.gate.enabled=false \
    --set feed.brokers="127.0.0.1:$KAFKA_PORT" --set feed.topic=embeddings --set feed.create_partitions=3 2>"$work/log" &
daemon=$!
address=
for _ in $(seq 600); do
    address=$(sed -n '/"ready"/s/.*"address":"\([^"]*\)".*/\1/p' "$work/log" | head -n 1)
    [ -z "$address" ] || break
    kill -0 "$daemon" || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
done
[ -n "$address" ] || { echo "feast.sh: the daemon did not get ready" >&2; exit 1; }

push() { curl -sSf -o /dev/null -H 'content-type: application/x-ndjson' --data-binary @- "http://$address/v1/events"; }
for i in $(seq 2000); do
    printf '{"src":"user%d","dst":%d,"ts":%d}\n' $((i % 180)) $((i * i % 37)) "$i"
done | push
printf '{"op":"delete","node":"user7"}\n' | push
# One batch, so that its rows are as of the end.
for i in $(seq 180); do
    printf '{"src":"user%d","dst":%d,"ts":3000}\n' $((i == 7 ? 8 : i)) $((i % 37))
done | push
.cache/tools/feast/bin/python -B benches/feast/feed_to_feast.py "127.0.0.1:$KAFKA_PORT" embeddings "http://$address"
