#!/usr/bin/env bash
# Builds what a machine with a GPU needs to check and measure Evergraph on it: target/gpu.
#
#   scripts/gpu-bundle.sh                build, strip and pack; prints the size, alone and with the tracked files
#   DATA=FOLDER scripts/gpu-bundle.sh    the same with the event file wikipedia.csv.gz of that folder
#   scripts/gpu-bundle.sh --size         prints the size of what is there
#
# The folder holds the daemon, the integration tests (of which only those of `gpu` are run there), the scripts and PyG.
# Copy it to a machine with NVIDIA's driver, NVRTC and, for the comparison, PyTorch, and run target/gpu/gpu-check.sh
# there; neither Rust nor a network is needed. Without the event file a stream is generated there. With it, what the
# check compares with the CPU is measured here, since it does not depend on the machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly BUNDLE=target/gpu
# What can be carried to every machine that we measure on: the bundle and the tracked files together.
readonly MIB=$((1024 * 1024)) BYTES_MAX=$((60 * 1024 * 1024))

say() { printf 'gpu-bundle: %s\n' "$*" >&2; }

# Bytes of the bundle, of the tracked files, and whether they fit together.
size() {
    local bundle tree
    bundle=$(du -sb "$BUNDLE" | cut -f 1)
    tree=$(git -c safe.directory='*' ls-files -z | xargs -0 du -cb | tail -n 1 | cut -f 1)
    say "$BUNDLE has $((bundle / MIB)) MiB, the tracked files $((tree / MIB)) MiB, of $((BYTES_MAX / MIB)) MiB together"
    [ $((bundle + tree)) -le "$BYTES_MAX" ] && return
    say "error: too large by $(((bundle + tree - BYTES_MAX) / MIB + 1)) MiB"
    exit 1
}

if [ "${1:-}" = --size ]; then
    size
    exit
fi

describe() { git -c safe.directory='*' describe --always --dirty; }
version=$(describe)

cargo build --release --locked --bin evergraph
cargo test --release --locked --no-run --test it
tests=$(cargo test --release --locked --no-run --test it --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*\/it-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$tests" ] || { say "error: cargo names no test binary"; exit 1; }

rm -rf "$BUNDLE"
mkdir -p "$BUNDLE"
pack() { strip -o "$BUNDLE/$2" "$1" && gzip -f "$BUNDLE/$2"; }
pack target/release/evergraph evergraph
pack "$tests" it
cp scripts/gpu-check.sh benches/gpu/*.py "$BUNDLE/"
cp benches/learn/{peer,stream,peer_pyg_tgn,peer_continual}.py "$BUNDLE/"
rm "$BUNDLE"/test_*.py
# For the Pythons that the pins name; where nothing can be fetched, PyG is measured only where it is installed.
for python in 3.10 3.11 3.12 3.13 3.14; do
    "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps \
        --only-binary=:all: --implementation cp --python-version "$python" --platform manylinux_2_28_x86_64 \
        --dest "$BUNDLE/wheels" -r benches/gpu/wheels.txt || {
        say "no wheels were fetched: PyG's TGN is measured only where torch_geometric is installed"
        break
    }
done
if [ -n "${DATA:-}" ]; then
    # The tests recognize a folder of event files by its folder `protocol`.
    mkdir -p "$BUNDLE/data/protocol"
    cp "$DATA/wikipedia.csv.gz" "$BUNDLE/data/"
    say "measuring the average precision on the CPU"
    target/release/evergraph eval --events "$DATA/wikipedia.csv.gz" --model tgn --protocol prequential \
        --batch-events 600 --matmul-precision f32 --json "$BUNDLE/eval-cpu.json"
fi
# Figures bear the version, so it has to be that of all that was built.
[ "$(describe)" = "$version" ] || { say "error: the tree was $version and is $(describe): build once more"; exit 1; }
echo "$version" >"$BUNDLE/version"
size
