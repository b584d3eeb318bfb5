#!/usr/bin/env bash
# Trains evergraph's models beside PyG's TGN and a GraphMixer in torch on the same events, and writes
# docs/benchmarks/learn.json, docs/benchmarks/learn.md and its plot.
#
#   benches/learn/run.sh --data DIR [--threads 2] [--rounds 3] [--pair NAME]... [--events NAME]
#
# DIR holds wikipedia.csv.gz, columns src, dst, ts, and in protocol/ its masked nodes and the negatives of validation
# and test. The peers are installed from PyPI to .cache/ops/peers (5.4 GB, once, shared with benches/ops); PYTHON names
# the CPython 3.11 to use. With --pair or --events it is a trial, which is written to .cache/learn/trial instead of
# docs/benchmarks.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$here/../.."

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2 && exit 2; }

[ "${1:-}" = --data ] && [ -n "${2:-}" ] || usage
data="$2" events=wikipedia
for ((i = 3; i < $#; i++)); do [ "${!i}" != --events ] || { j=$((i + 1)) && events="${!j}"; }; done
for file in "$events" protocol/"$events"-{masked-nodes,val-rnd,test-rnd}; do
    [ -e "$data/$file.csv.gz" ] || {
        echo "learn: SKIPPED, nothing was measured: there is no $data/$file.csv.gz" >&2
        exit 1
    }
done

. benches/environment.sh
cargo build --release --locked
environment .cache/ops/peers benches/ops/requirements.txt || {
    echo "learn: that failed; there is nothing to compare with. Its output: .cache/ops/peers.log" >&2
    exit 1
}
(cd "$here" && ../../.cache/ops/peers/bin/python -B -m unittest -q test_stream)
"${PYTHON:-python3}" -B "$here/measure.py" "$@"
