#!/usr/bin/env bash
# Times every operation of evergraph beside torch's, PyG's and burn's on the same inputs, and writes
# docs/benchmarks/ops.json, docs/benchmarks/ops.md and its plots.
#
#   benches/ops/run.sh [--threads N] [--rounds 3] [--op NAME]... [--quick] [--runs N] [--device cpu|cuda] [--compile]
#
# The peers are installed from PyPI to .cache/ops/peers (5.4 GB, once); PYTHON names the CPython 3.11 to use. burn is
# built to .cache/ops/burn (9 minutes on 2 cores, once). With --op, --quick or --runs it is a trial, which is written
# to .cache/ops/trial instead of docs/benchmarks.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$here/../.."

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2 && exit 2; }

case "${1:-}" in -h | --help) usage ;; esac

. benches/environment.sh
cargo build --release --locked
environment .cache/ops/peers "$here/requirements.txt" || {
    echo "ops: that failed; there is nothing to compare with. Its output: .cache/ops/peers.log" >&2
    exit 1
}
CARGO_TARGET_DIR=.cache/ops/burn cargo build --release --locked --manifest-path "$here/burn/Cargo.toml"
"${PYTHON:-python3}" -B "$here/measure.py" "$@"
