#!/usr/bin/env bash
# Checks and measures Evergraph on a machine with an NVIDIA card. Needs the driver, NVRTC 13 and Python; takes PyTorch and
# compute-sanitizer where they are. Needs no Rust and no network.
#
#   make gpu                     before, on a machine with Rust: builds target/gpu
#   scripts/gpu-check.sh                with the bundle in target/gpu, or beside this script
#
# Prints one table and writes gpu-check.json, with facts about the machine, into $OUT, or docs/benchmarks/gpu without it.
# Exit status: 0 all is right, 1 something is wrong, 2 it cannot be checked here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { printf 'gpu-check: %s\n' "$*" >&2; }
cannot() { say "cannot check here: $*"; exit 2; }

bundle=$here
[ -e "$bundle/it.gz" ] || bundle=$here/../target/gpu
[ -e "$bundle/it.gz" ] && [ -e "$bundle/evergraph.gz" ] || cannot "no bundle in $bundle; run 'make gpu' where Rust is"

command -v nvidia-smi >/dev/null 2>&1 || cannot "nvidia-smi is missing, so there is no NVIDIA driver and no card"
nvidia-smi -L | grep -q '^GPU ' || cannot "the driver shows no card: $(nvidia-smi -L 2>&1 | head -n 1)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in it evergraph; do
    gunzip -c "$bundle/$program.gz" >"$work/$program"
    chmod +x "$work/$program"
done
missing=$(ldd "$work/it" "$work/evergraph" | grep 'not found' | sort -u || true)
[ -z "$missing" ] || cannot "libraries are missing: $missing"

out=${OUT:-$here/../docs/benchmarks/gpu}
mkdir -p "$out"

# NVRTC is where CUDA is installed, or among Python's packages.
nvrtc_folders() {
    echo /usr/local/cuda/lib64
    echo /usr/local/cuda-13*/lib64
    echo /usr/local/cuda/targets/*/lib
    python3 - 2>/dev/null <<'PYTHON' || true
import site, sys
for folder in site.getsitepackages() + [site.getusersitepackages()] + sys.path:
    print(folder + "/nvidia/cu13/lib")
    print(folder + "/nvidia/cuda_nvrtc/lib")
PYTHON
}
for folder in $(nvrtc_folders); do
    if [ -e "$folder/libnvrtc.so.13" ]; then
        export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        say "NVRTC is in $folder"
        break
    fi
done

export EVERGRAPH_SKIPS=$work/skips EVERGRAPH_GPU=require EVERGRAPH_GPU_KERNELS=$work/kernels
[ ! -d "$bundle/data" ] || export EVERGRAPH_TEST_DATA=$bundle/data
failed=()
# step NAME COMMAND...: runs it with its output kept, and goes on after a failure.
step() {
    local name=$1 started=$SECONDS
    shift
    if "$@" >"$work/$name.log" 2>&1; then
        say "ok      $name ($((SECONDS - started)) s)"
        echo "{\"step\": \"$name\", \"ok\": true}" >>"$work/steps.jsonl"
    else
        say "FAILED  $name: see below"
        echo "{\"step\": \"$name\", \"ok\": false}" >>"$work/steps.jsonl"
        failed+=("$name")
        tail -n 40 "$work/$name.log" >&2
    fi
    cp "$work/$name.log" "$out/" 2>/dev/null || true
}

check() { "$work/evergraph" check --data "$work/data" --listen 127.0.0.1:0 --set device.use=cuda:0; }

step check check
step tests "$work/it" gpu:: --test-threads=1 --nocapture

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1 || true)
if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck initcheck synccheck; do
        step "$tool" env EVERGRAPH_GPU=small timeout 240 "$sanitizer" --tool "$tool" --error-exitcode 1 \
            "$work/it" gpu:: --test-threads=1
    done
else
    say "skipped compute-sanitizer: it is not installed"
    echo '{"step": "compute-sanitizer", "skipped": "not installed"}' >>"$work/steps.jsonl"
fi

# Figures: rows, and samples over an event file, on the card and on the processor.
events=$bundle/data/wikipedia.csv.gz
if [ ! -e "$events" ]; then
    events=$work/made-up.csv
    python3 "$bundle/gpu_figures.py" stream --to "$events"
    say "no event file was carried: samples are timed on a stream that is made up"
fi
bench() { "$work/evergraph" bench "$@"; }
step rows bench ops --device cuda --json "$work/rows.json"
step samples bench sample --events "$events" --device cuda --json "$work/samples-cuda.json"
step samples-cpu bench sample --events "$events" --threads "$(nproc)" --json "$work/samples-cpu.json"
python3 "$bundle/gpu_figures.py" report --rows "$work/rows.json" --samples "$work/samples-cuda.json" \
    --samples-cpu "$work/samples-cpu.json" --events "$(basename "$events")" --steps "$work/steps.jsonl" \
    --check "$work/check.log" --version "$(cat "$bundle/version" 2>/dev/null || echo unknown)" \
    --json "$out/gpu-check.json" || failed+=(table)

[ "${#failed[@]}" = 0 ] || { say "failed: ${failed[*]}"; exit 1; }
say "all is right; $out/gpu-check.json"
