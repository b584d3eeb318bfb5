#!/usr/bin/env bash
# Runs every test: `make test`. First all but those that measure, then these, one at a time, with nothing beside them.
# Both are of one build, in release code with assertions. Last, also after a failure: what was skipped, a line for each
# reason.
#
#   EVERGRAPH_TESTS_SECONDS=2700      how long the tests may take; then the one that hangs is named, and all are ended
#   EVERGRAPH_MEASURING_SECONDS=1200  how long those that measure may take
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export EVERGRAPH_SKIPS="$PWD/.cache/skipped.txt"

within() {
    printf '+ %s\n' "${*:2}" >&2
    python3 -B scripts/within.py "$@"
}

what_was_skipped() {
    [ -e "$EVERGRAPH_SKIPS" ] || return 0
    sort -u "$EVERGRAPH_SKIPS" | awk '{ sub(/^[^ ]*: /, ""); tests[$0]++ }
        END { for (why in tests) print "skipped: " tests[why] " tests or parts of them: " why }' | sort
}

scripts/setup.sh test
mkdir -p .cache
rm -f "$EVERGRAPH_SKIPS"
cargo test --locked --profile checked --no-run
code=0
within "${EVERGRAPH_TESTS_SECONDS:-2700}" cargo test --locked --profile checked &&
    within "${EVERGRAPH_MEASURING_SECONDS:-1200}" \
        cargo test --locked --profile checked --test it -- --ignored --test-threads=1 --nocapture || code=$?
what_was_skipped
exit "$code"
