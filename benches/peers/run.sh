#!/usr/bin/env bash
# Runs the same queries on evergraph and on other temporal samplers, and writes docs/benchmarks/peers.json and
# docs/benchmarks/peers.md.
#
#   benches/peers/run.sh --data DIR [--threads 1,2] [--rounds 5]
#
# DIR holds wikipedia.csv.gz and oss-commits.csv.gz, columns src, dst, ts. The peers are installed from PyPI to
# .cache/peers (12 GB, once); PYTHON names the CPython 3.11 to use. One that cannot be installed is left out, and the
# table gives the reason.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$here/../.."

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2 && exit 2; }

[ "${1:-}" = --data ] && [ -e "${2:-}/wikipedia.csv.gz" ] && [ -e "$2/oss-commits.csv.gz" ] || usage

. benches/environment.sh

cargo build --release --locked --bin evergraph-research
for name in pyg-tgm graphbolt; do
    environment ".cache/peers/$name" "$here/requirements-$name.txt" ||
        echo "peers: that failed, see .cache/peers/$name.log; going on without" >&2
done
"${PYTHON:-python3}" "$here/compare.py" "$@"
"${PYTHON:-python3}" "$here/table.py"
