#!/usr/bin/env bash
# Measures the live index beside USearch, an approximate index, over the same vectors, and writes
# docs/benchmarks/index.json and docs/benchmarks/index.md.
#
#   benches/index/run.sh [--rows 200000] [--dimension 100] [--updates 5000]
#
# USearch is installed from PyPI to .cache/index; PYTHON names the CPython to use. Takes four minutes (of a million rows
# USearch builds its graph for longer than ten), on a machine that does nothing else.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$here/../.."

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2 && exit 2; }

case "${1:-}" in -h | --help) usage ;; esac

. benches/environment.sh
cargo build --release --locked --bin evergraph
environment .cache/index/peer "$here/requirements.txt" || {
    echo "index: that failed; there is nothing to compare with. Its output: .cache/index/peer.log" >&2
    exit 1
}
.cache/index/peer/bin/python -B "$here/measure.py" "$@"
