#!/usr/bin/env bash
# Checks and measures Evergraph on a machine with an NVIDIA GPU. Needs the driver, NVRTC 13 and Python; takes PyTorch
# and compute-sanitizer where they are. Needs no Rust and no network.
#
#   make gpu                     before, on a machine with Rust: builds target/gpu
#   scripts/gpu-check.sh [STEP...]      with the bundle in target/gpu, or beside this script
#
# Steps, in this order; without a name all of them, and a name is also that of those that begin with it and a dash:
#   check        what `evergraph check` says of the GPU
#   tests        parity of every kernel with the CPU
#   rows         rows gathered from the GPU's memory and from the host's, and layers; torch-rows, torch-layers
#   samples      temporal sampling on the GPU, samples-cpu on the CPU, torch-samples by torch on the GPU
#   train        tgn-0, tgn-172, tgat-0, graphmixer-0 on the GPU by events' row of features, tgn-172-direct
#                kernel by kernel, tgn-0-cpu on the CPU
#   pyg          PyG's TGN on the GPU on the same events: pyg-0, pyg-172
#   eval         average precision of TGN on the GPU and, eval-cpu, on the CPU, from one seed
#   cache        hit rates of the row cache beside other policies
#   sanitizer    the tests on small sizes under compute-sanitizer, tool by tool
#
# Prints one table with a verdict on each target, and writes gpu-check.json, with facts about the machine, and
# gpu-check.log into $OUT, or docs/benchmarks/gpu without it. $PARTS is a folder for the figures of single steps; where
# it is given, those of earlier calls count too, so that what takes long can be run in parts.
# Exit status: 0 all is right, 1 something is wrong, 2 it cannot be checked here. Missed targets are no fault.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { printf 'gpu-check: %s\n' "$*" >&2; }
cannot() { say "cannot check here: $*"; exit 2; }

bundle=$here
[ -e "$bundle/it.gz" ] || bundle=$here/../target/gpu
[ -e "$bundle/it.gz" ] && [ -e "$bundle/evergraph.gz" ] || cannot "no bundle in $bundle; run 'make gpu' where Rust is"

command -v nvidia-smi >/dev/null 2>&1 || cannot "nvidia-smi is missing, so there is no NVIDIA driver and no GPU"
nvidia-smi -L | grep -q '^GPU ' || cannot "the driver shows no GPU: $(nvidia-smi -L 2>&1 | head -n 1)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in it evergraph; do
    gunzip -c "$bundle/$program.gz" >"$work/$program"
    chmod +x "$work/$program"
done
missing=$(ldd "$work/it" "$work/evergraph" | grep 'not found' | sort -u || true)
[ -z "$missing" ] || cannot "libraries are missing: $missing"

out=${OUT:-$here/../docs/benchmarks/gpu}
parts=${PARTS:-$work/parts}
mkdir -p "$out" "$parts"

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
names=("$@")
failed=()
: >"$out/gpu-check.log"

# wanted NAME: whether a step is asked for.
wanted() {
    [ "${#names[@]}" != 0 ] || return 0
    local name
    for name in "${names[@]}"; do
        case "$1" in "$name" | "$name"-*) return 0 ;; esac
    done
    return 1
}

# ended NAME KEY VALUE [WHY]: one line of what became of a step.
ended() {
    python3 - "$@" >>"$parts/steps.jsonl" <<'PYTHON'
import json, sys
name, key, value, *why = sys.argv[1:]
print(json.dumps({"step": name, key: value == "true" if key == "ok" else value} | ({"why": why[0]} if why else {})))
PYTHON
}

# step NAME SECONDS COMMAND...: runs it with its output kept, and goes on after a failure. Status 3 is one that cannot
# run here, for the reason in the last line of its output.
step() {
    local name=$1 limit=$2 started=$SECONDS code=0 why
    shift 2
    wanted "$name" || return 0
    timeout "$limit" "$@" >"$parts/$name.log" 2>&1 || code=$?
    { echo "== $name"; cat "$parts/$name.log"; } >>"$out/gpu-check.log"
    why=$(grep -v '^[[:space:]]*$' "$parts/$name.log" | tail -n 1 || true)
    case "$code" in
        0)
            say "ok      $name ($((SECONDS - started)) s)"
            ended "$name" ok true
            return
            ;;
        3)
            say "skipped $name: $why"
            ended "$name" skipped "$why"
            return
            ;;
        124) why="it took more than $limit s" ;;
    esac
    say "FAILED  $name: see below"
    ended "$name" ok false "$why"
    failed+=("$name")
    tail -n 40 "$parts/$name.log" >&2
}

evergraph=$work/evergraph
step check 60 "$evergraph" check --data "$work/data" --listen 127.0.0.1:0 --set device.use=cuda:0
step tests 400 "$work/it" gpu:: --test-threads=1 --nocapture

# Packages that PyG's TGN needs and that Python lacks here, where they were carried.
if [ -d "$bundle/wheels" ]; then
    python3 -B "$bundle/unpack_wheels.py" "$bundle/wheels" "$work/site" || say "wheels were not unpacked"
    export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$work/site"
fi
events=$bundle/data/wikipedia.csv.gz
if [ ! -e "$events" ]; then
    events=$work/made-up.csv
    python3 -B "$bundle/make_stream.py" "$events"
    say "no event file was carried: figures are of a stream that is made up in the shape of Wikipedia's edits"
fi

step rows 300 "$evergraph" bench ops --device cuda --json "$parts/rows.json"
step samples 240 "$evergraph" bench sample --events "$events" --device cuda --json "$parts/samples.json"
step samples-cpu 180 "$evergraph" bench sample --events "$events" --threads "$(nproc)" --json "$parts/samples-cpu.json"

# train NAME MODEL FEATURES DEVICE EPOCHS [FLAG...]: a model alone; the first epoch fills caches and buffers.
train() {
    step "train-$1" 240 "$evergraph" bench train --events "$events" --model "$2" --embedding-dim 100 \
        --row-dimension "$3" --batch-events 600 --epochs "$5" --alone --device "$4" "${@:6}" --json "$parts/train-$1.json"
}
train tgn-0 tgn 0 cuda 6
train tgn-172 tgn 172 cuda 6
train tgn-172-direct tgn 172 cuda 6 --no-graph
train tgat-0 tgat 0 cuda 3
train graphmixer-0 graphmixer 0 cuda 3
train tgn-0-cpu tgn 0 cpu 2

peer() { step "$1" 300 python3 -B "$bundle/$2.py" "${@:3}"; }
peer torch-rows peer_rows "$parts/rows.json" "$parts/torch-rows.json"
peer torch-layers peer_layers "$parts/rows.json" "$parts/torch-layers.json"
peer torch-samples peer_samples "$events" "$parts/torch-samples.json"
for features in 0 172; do
    peer "pyg-$features" peer_training "$events" "$features" "$parts/pyg-$features.json"
done

eval_on() {
    step "$1" 240 "$evergraph" eval --events "$events" --model tgn --protocol prequential --batch-size 600 \
        --device "$2" --json "$parts/$1.json"
}
eval_on eval cuda
eval_on eval-cpu cpu
step cache 300 "$evergraph" bench cache --events "$events" --json "$parts/cache.json"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1 || true)
for tool in memcheck racecheck initcheck synccheck; do
    if [ -n "$sanitizer" ]; then
        step "sanitizer-$tool" 240 env EVERGRAPH_GPU=small "$sanitizer" --tool "$tool" --error-exitcode 1 \
            "$work/it" gpu:: --test-threads=1
    else
        step "sanitizer-$tool" 9 bash -c 'echo compute-sanitizer is not installed; exit 3'
    fi
done

python3 -B "$bundle/report.py" --parts "$parts" --events "$(basename "$events")" \
    --version "$(cat "$bundle/version" 2>/dev/null || echo unknown)" --json "$out/gpu-check.json" |
    tee -a "$out/gpu-check.log" || failed+=(table)

[ "${#failed[@]}" = 0 ] || { say "failed: ${failed[*]}"; exit 1; }
say "nothing failed; $out/gpu-check.json"
