#!/usr/bin/env bash
# Tests the responses of a daemon against the OpenAPI document that it serves itself, with schemathesis: requests that
# the document allows and requests that it forbids, in order and in sequences. The daemon is one of its own, on a free
# port with a folder that is removed.
#
#   scripts/schemathesis.sh [ARGUMENTS]    further arguments go to `schemathesis run`, for example --max-examples=1000
#
# Environment:
#   EVERGRAPH   the program to test   (default: what `cargo build` makes)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh schemathesis
export PATH="$PWD/.cache/tools/bin:$PATH"

program=${EVERGRAPH:-}
if [ -z "$program" ]; then
    cargo build --locked
    program=target/debug/evergraph
fi
work=$(mktemp -d)
daemon=
finish() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    [ -z "$daemon" ] || wait "$daemon" || true
    rm -rf "$work"
}
trap finish EXIT

"$program" serve --listen 127.0.0.1:0 --data "$work/data" --set output.format=json --set learner.train=false \
    --set api.wait_ms_max=20 2>"$work/log" &
daemon=$!
address=
for _ in $(seq 600); do
    address=$(sed -n '/"ready"/s/.*"address":"\([^"]*\)".*/\1/p' "$work/log" | head -n 1)
    [ -z "$address" ] || break
    kill -0 "$daemon" || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
done
[ -n "$address" ] || { echo "schemathesis.sh: the daemon did not get ready" >&2; exit 1; }

# Nodes to request.
for i in 1 2 3 4 5; do
    printf '{"src":"alice","dst":%d,"ts":%d}\n' "$i" "$i"
done | curl -sSf -o /dev/null -H 'content-type: application/x-ndjson' --data-binary @- "http://$address/v1/events"

# There, because it leaves notes where it runs.
cd "$work"
schemathesis run "http://$address/openapi.json" --seed 1 --max-examples 100 --phases examples,coverage,fuzzing \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance "$@"
