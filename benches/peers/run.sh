#!/usr/bin/env bash
# Puts the same questions to evergraph and to other temporal samplers, and writes docs/benchmarks/peers.json and
# docs/benchmarks/peers.md.
#
#   benches/peers/run.sh --data DIR [--threads 1,2] [--rounds 5]
#
# DIR holds wikipedia.csv.gz and oss-commits.csv.gz, columns src, dst, ts. The peers are installed from PyPI to
# .cache/peers (12 GB, once); PYTHON names the CPython 3.11 to use. One that cannot be installed is left out, and the
# table says why.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$here/../.."

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2 && exit 2; }

[ "${1:-}" = --data ] && [ -e "${2:-}/wikipedia.csv.gz" ] && [ -e "$2/oss-commits.csv.gz" ] || usage

# environment NAME: a virtual environment with what requirements-NAME.txt pins.
environment() {
    local folder=".cache/peers/$1" pins="$here/requirements-$1.txt"
    ! cmp -s "$pins" "$folder/installed.txt" || return 0
    echo "peers: installing what requirements-$1.txt pins to $folder (a few minutes)" >&2
    rm -rf "$folder"
    mkdir -p .cache/peers
    if "${PYTHON:-python3}" -m venv "$folder" >"$folder.log" 2>&1 &&
        "$folder/bin/python" -m pip --no-cache-dir --disable-pip-version-check install -r "$pins" >>"$folder.log" 2>&1
    then
        cp "$pins" "$folder/installed.txt"
    else
        echo "peers: that failed, see $folder.log; going on without" >&2
    fi
}

cargo build --release --locked
environment pyg-tgm
environment graphbolt
"${PYTHON:-python3}" "$here/compare.py" "$@"
"${PYTHON:-python3}" "$here/table.py"
