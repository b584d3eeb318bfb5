#!/usr/bin/env bash
# Runs every test: `make test`. First all but those that measure, then these, one at a time, with nothing beside them.
# Both are of one build, in release code with assertions. Last, also after a failure: what was skipped, a line for each
# reason.
#
#   EVERGRAPH_TESTS_SECONDS=2700      how long the tests may take
#   EVERGRAPH_MEASURING_SECONDS=1200  how long those that measure may take
#
# A test that hangs is named and ends the run: whoever waits for the result learns which test it was, and on what it
# waited.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Each part runs in a process group of its own, so that it ends as a whole: tests start daemons, which outlive them.
set -m

readonly SKIPS="$PWD/.cache/skipped.txt" OUTPUT="$PWD/.cache/tests.txt"
export EVERGRAPH_SKIPS="$SKIPS"
part="" watch=""

end_part() {
    local group
    for group in $watch $part; do
        kill -TERM -- "-$group" 2>/dev/null || true
    done
    part="" watch=""
}
trap 'end_part; exit 130' INT
trap 'end_part; exit 143' TERM HUP

# Which tests of $OUTPUT began, took long and did not end, and what runs now.
what_hangs() {
    printf '\ntests: not done after %d s, so they are ended. Without an end:\n' "$1"
    sed -n 's/^test \(.*\) has been running for over .*/\1/p' "$OUTPUT" | sort -u | while read -r name; do
        grep -q "^test $name \.\.\. [oFi]" "$OUTPUT" || printf 'test %s ... FAILED: hangs\n' "$name"
    done
    printf 'tests: what runs:\n'
    ps -eo pid,ppid,pgid,etimes,stat,wchan:24,args --forest | grep -v '\]$' | cut -c 1-200
}

# within SECONDS COMMAND...: runs it for so long at most.
within() {
    local seconds=$1 code=0
    shift
    printf '+ %s\n' "$*" >&2
    { "$@" 2>&1 | tee "$OUTPUT"; } &
    part=$!
    { sleep "$seconds" && what_hangs "$seconds" && kill -TERM -- "-$part"; } &
    watch=$!
    wait "$part" || code=$?
    end_part
    return "$code"
}

what_was_skipped() {
    [ -e "$SKIPS" ] || return 0
    sort -u "$SKIPS" | awk '{ sub(/^[^ ]*: /, ""); tests[$0]++ }
        END { for (why in tests) print "skipped: " tests[why] " tests or parts of them: " why }' | sort
}

scripts/setup.sh test
mkdir -p .cache
rm -f "$SKIPS"
cargo test --locked --profile checked --no-run
code=0
within "${EVERGRAPH_TESTS_SECONDS:-2700}" cargo test --locked --profile checked &&
    within "${EVERGRAPH_MEASURING_SECONDS:-1200}" \
        cargo test --locked --profile checked --test it -- --ignored --test-threads=1 --nocapture || code=$?
what_was_skipped
exit "$code"
