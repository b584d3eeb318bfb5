#!/usr/bin/env bash
# The Python package in clients/python: its tools, its checks, its wheel.
#
#   scripts/python.sh install   Python packages to .cache/tools/python-client, by pip; 170 MB, once
#   scripts/python.sh check     formatting, lints, types, and the tests against a daemon
#   scripts/python.sh wheel     the wheel, with the program, to target/wheels; arguments go to `maturin build`
#   scripts/python.sh try       installs that wheel in an empty environment, and runs the Python of the front page
#                               against the `evergraph demo` that it brings; arguments as for `wheel`
#
# Environment:
#   EVERGRAPH_BIN   the program to test; `check` needs it
#   PYTHON          the interpreter of `try`: python3 unless set
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly HOME_FOLDER="$PWD/.cache/tools/python-client" WANTED="$PWD/scripts/python-client.txt"
readonly PACKAGE="$PWD/clients/python"
export PIP_RETRIES="${PIP_RETRIES:-10}"

die() { printf 'python.sh: error: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# Whether the environment is the wanted one and works: another Python of the system breaks it, and no file changes.
works() {
    cmp -s "$WANTED" "$HOME_FOLDER/installed" && "$HOME_FOLDER/bin/python" -B - 2>/dev/null <<'TRY'
import sys
from importlib.util import find_spec

import httpx2
import numpy
import pytest

named = ("maturin", "matplotlib", "mypy", "pandas", "polars", "pyarrow", "pybase64", "ruff", "tgb")
sys.exit(not all(find_spec(name) for name in named))
TRY
}

install() {
    ! works || return 0
    printf 'python.sh: installing what the Python package and its tests need to %s (170 MB)\n' "$HOME_FOLDER" >&2
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "Python 3.11 or later is needed"
    python3 -m venv --clear "$HOME_FOLDER"
    "$HOME_FOLDER/bin/pip" --quiet --disable-pip-version-check install --no-deps --no-compile --only-binary=:all: \
        --require-hashes -r "$WANTED" >&2
    cp "$WANTED" "$HOME_FOLDER/installed"
    works || die "what $WANTED names is installed to $HOME_FOLDER and cannot be imported"
}

installed() { works || die "run scripts/python.sh install first"; }

check() {
    installed
    [ -n "${EVERGRAPH_BIN:-}" ] || die "EVERGRAPH_BIN has to name the program to test"
    EVERGRAPH_BIN=$(realpath "$EVERGRAPH_BIN")
    export EVERGRAPH_BIN PATH="$HOME_FOLDER/bin:$PATH" PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR="$HOME_FOLDER/matplotlib"
    cd "$PACKAGE"
    ruff format --no-cache --check --quiet . || die "not formatted: run ruff format in clients/python"
    ruff check --no-cache --quiet .
    python -m mypy --cache-dir "$HOME_FOLDER/mypy"
    PYTHONPATH="$PACKAGE/src" python -m pytest "$@"
}

wheel() {
    installed
    cd "$PACKAGE"
    local profile=(--release) argument
    for argument in "$@"; do
        case "$argument" in --profile*) profile=() ;; esac
    done
    "$HOME_FOLDER/bin/maturin" build "${profile[@]}" --out ../../target/wheels "$@"
}

# Nothing but the wheel and what pip finds that it needs; the demo's port is that of the front page.
try() {
    wheel "$@"
    cd ../..
    local folder found demo
    folder=$(mktemp -d)
    # The newest: older ones may lie beside it.
    found=$(ls -t target/wheels/*.whl | head -n 1)
    "${PYTHON:-python3}" -m venv "$folder/python"
    "$folder/python/bin/pip" --quiet --disable-pip-version-check install "$found"
    sed -n '/^```python$/,/^```$/{/^```/d;p}' README.md >"$folder/front_page.py"
    [ -s "$folder/front_page.py" ] || die "README.md has no block of Python"
    "$folder/python/bin/evergraph" demo --data "$folder/demo" --seconds 60 2>"$folder/demo.log" &
    demo=$!
    # shellcheck disable=SC2064  # What they are now, not at the end.
    trap "kill $demo 2>/dev/null || true; wait $demo || true; rm -rf '$folder'" EXIT
    until grep -q '^API http' "$folder/demo.log"; do
        kill -0 "$demo" 2>/dev/null || die "the demo ended: $(tail -n 3 "$folder/demo.log")"
        sleep 0.2
    done
    "$folder/python/bin/python" -I "$folder/front_page.py" || die "the Python of README.md failed"
    printf 'python.sh: %s works in an empty environment\n' "$(basename "$found")" >&2
}

case "${1:-}" in
    install | check | wheel | try) "$@" ;;
    -h | --help) usage ;;
    *) usage >&2 && exit 2 ;;
esac
