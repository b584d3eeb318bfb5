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

install_peers() {
    local folder=.cache/ops/peers pins="$here/requirements.txt"
    ! cmp -s "$pins" "$folder/installed.txt" || return 0
    echo "ops: installing what requirements.txt pins to $folder (a few minutes)" >&2
    rm -rf "$folder"
    mkdir -p .cache/ops
    if ! "${PYTHON:-python3}" -m venv "$folder" >"$folder.log" 2>&1 ||
        ! "$folder/bin/python" -m pip --no-cache-dir --disable-pip-version-check install -r "$pins" >>"$folder.log" 2>&1
    then
        echo "ops: that failed; there is nothing to compare with. Its output: $folder.log" >&2
        exit 1
    fi
    cp "$pins" "$folder/installed.txt"
}

cargo build --release --locked
install_peers
CARGO_TARGET_DIR=.cache/ops/burn cargo build --release --locked --manifest-path "$here/burn/Cargo.toml"
"${PYTHON:-python3}" -B "$here/measure.py" "$@"
