#!/usr/bin/env bash
# Checks and measures Evergraph on a machine with an NVIDIA GPU, in some 20 minutes, or in parts. Needs the driver,
# NVRTC and Python; uses PyTorch, compute-sanitizer and Nsight Compute where they are. Needs no Rust and no network.
#
#   make gpu DATA=FOLDER                before, on a machine with Rust: builds target/gpu
#   scripts/gpu-check.sh A              there, with the bundle in target/gpu or beside this script; then B, C, D, E
#   python3 benches/gpu/publish.py OUT  afterwards, here: results, page and list of verified kernels under docs
#
# On a machine that is lent for 15 minutes, in calls of ten minutes at most, what matters most first. The second one gets
# what is left, less 45 s for what is around it:
#
#   PARTS=/tmp/parts timeout -k 20 440 bash target/gpu/gpu-check.sh --go-on --seconds 420 A B C
#   PARTS=/tmp/parts timeout -k 20 $((LEFT - 25)) bash target/gpu/gpu-check.sh --go-on --seconds $((LEFT - 45)) D
#
# Before the second, copy parts.tar.gz of the first to target/gpu: if the machine is another one by then, figures that
# belong together still are, provided that GPU and driver are the same.
#
# Groups, the time that each may take, and the time on an H200 where it is known:
#
# A  4 min, 20 s   smoke check tests   the device opens; a kernel of each file; capture, update, launch; memory of the
#                                      host read in place; every parity test. After a failure step tests-apart runs
#                                      each test in a process of its own, and the check stops
# B  7 min, 1 min  train-* learn-*     TGN without and with 172 features; the daemon: what it learns in a second, and how
#                  samples rows eval   soon it has learned new events; sampling 1x10 and 2x10; rows in place, cached and
#                                      copied; layers; average precision beside that of the CPU
# C  7 min, 1 min  train-* profile-*   TGN kernel by kernel, as graphs in their turn and recorded ahead, and with gate and
#                                      publishing; TGAT; GraphMixer; the time of each kernel
# D  8 min         pyg-* torch-*       on the same GPU: PyG's TGN, and where it starts over with all events as events
#                                      arrive; torch's samples, layers and rows. The last two need rows.json of group B
# E  7 min         sanitizer-*         memcheck, racecheck, initcheck, synccheck
#
#   gpu-check.sh [--quick] [--resume] [--go-on] [--seconds N] [--list] [GROUP|STEP]...
#
# runs all groups if none is named; a step's name is also that of the steps that begin with it and a dash.
# --resume     leaves out what an earlier run finished: it needs that run's parts
# --go-on      measures even if group A failed
# --seconds N  ends within N seconds: the last step is cut short, and those behind it are skipped
# --quick      tiny sizes: shows that every step runs, and measures nothing
# --list       prints group, step, limit in seconds and command of each step, and runs none
#
# $OUT (default: out, beside the bundle) gets gpu-check.json, gpu-check.log and parts.tar.gz, anew before each step and
# at the end. SIGTERM and SIGINT end the step that runs, and its log is kept; a run that is killed loses that step.
# Parts are figures, logs and compiled kernels. They stay in $PARTS (default: parts, beside the bundle); a parts.tar.gz
# beside the bundle takes their place. Where the bundle is carried anew between calls, set PARTS to a folder outside of
# it in every call, as above. Parts of another bundle, GPU, driver, kernel or of a quick run are not used: they are
# moved to $PARTS.before.
# $EVERGRAPH_KERNEL_SOURCES names a folder whose kernels are run in place of those compiled in.
# Exit status: 0 all is right, 1 something failed, 2 it cannot be checked here, 143 a signal ended it. A missed target
# is no failure.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { printf 'gpu-check: %s\n' "$*" >&2; }
cannot() { say "cannot check here: $*"; exit 2; }

# What is kept of the seconds of a call for a step that does not end at once, and to write the results.
readonly KEPT_SECONDS=15
# A day is no limit.
quick= resume= go_on= list= seconds=86400 names=()
for argument in "$@"; do
    [ "$seconds" != next ] || { seconds=$argument; continue; }
    case "$argument" in
        --quick) quick=yes ;;
        --resume) resume=yes ;;
        --go-on) go_on=yes ;;
        --list) list=yes ;;
        --seconds) seconds=next ;;
        --seconds=*) seconds=${argument#*=} ;;
        -*) say "there is no option $argument; see the head of this script"; exit 2 ;;
        *) names+=("$argument") ;;
    esac
done
case "$seconds" in '' | 0* | *[!0-9]*) say "--seconds takes a number of seconds"; exit 2 ;; esac

bundle=$here
[ -e "$bundle/report.py" ] || bundle=$here/../target/gpu
bundle=$(cd "$bundle" 2>/dev/null && pwd) || cannot "no bundle in $here/../target/gpu; run 'make gpu' where Rust is"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${OUT:-$bundle/out} parts=${PARTS:-$bundle/parts}
parts=${parts%/}

# --- what every step finds ---

# program NAME: the bundle's program, unpacked where it is packed.
program() {
    if [ -e "$bundle/$1.gz" ]; then
        gunzip -c "$bundle/$1.gz" >"$work/$1"
        chmod +x "$work/$1"
    elif [ -x "$bundle/$1" ]; then
        ln -s "$bundle/$1" "$work/$1"
    else
        cannot "$bundle has no program $1; run 'make gpu' where Rust is"
    fi
}

# NVRTC is where CUDA is installed, or among Python's packages.
nvrtc_folders() {
    tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}"
    printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda-*/lib64 /usr/local/cuda/targets/*/lib
    python3 - 2>/dev/null <<'PYTHON' || true
import site, sys
for folder in site.getsitepackages() + [site.getusersitepackages()] + sys.path:
    print(folder + "/nvidia/cu13/lib")
    print(folder + "/nvidia/cuda_nvrtc/lib")
PYTHON
}

# What parts belong to: figures of another bundle, GPU, driver or kernel, or of a quick run, are not those of this run.
identity() {
    local sources=${EVERGRAPH_KERNEL_SOURCES:-}
    echo "${quick:+quick }$(cat "$bundle/version" 2>/dev/null || echo unknown)"
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader --id=0 2>/dev/null || true
    [ -z "$sources" ] || cat "$sources"/*.cu "$sources"/*.cuh | cksum
}

# Parts of an earlier run, where they are of this one.
take_parts() {
    mkdir -p "$out" "$parts"
    local packed=$bundle/parts.tar.gz sum others
    if [ -e "$packed" ]; then
        sum=$(cksum <"$packed")
        if [ "$sum" != "$(cat "$parts/taken" 2>/dev/null)" ]; then
            rm -rf "$parts"
            mkdir -p "$parts"
            tar -xzf "$packed" -C "$parts" || say "$packed is damaged; what it lost is run again"
            echo "$sum" >"$parts/taken"
            say "took the parts of an earlier run from $packed"
        fi
    fi
    identity >"$work/identity"
    if ! cmp -s "$work/identity" "$parts/identity"; then
        mapfile -t others < <(find "$parts" -mindepth 1 -maxdepth 1 ! -name kernels ! -name taken)
        if [ "${#others[@]}" != 0 ]; then
            say "the parts are of another bundle, GPU, driver, kernel or of a quick run: starting anew"
            say "what was there is in $parts.before"
            rm -rf "$parts.before"
            mkdir "$parts.before"
            mv "${others[@]}" "$parts.before/"
        fi
        cp "$work/identity" "$parts/identity"
    fi
}

prepare() {
    [ "$here" = "$bundle" ] || cmp -s "$here/gpu-check.sh" "$bundle/gpu-check.sh" ||
        cannot "$bundle is not of this version; run 'make gpu' where Rust is"
    command -v nvidia-smi >/dev/null 2>&1 || cannot "nvidia-smi is missing, so there is no NVIDIA driver and no GPU"
    nvidia-smi -L | grep -q '^GPU ' || cannot "the driver lists no GPU: $(nvidia-smi -L 2>&1 | head -n 1)"
    program it
    program evergraph
    local missing folder
    missing=$(ldd "$work/it" "$work/evergraph" | grep 'not found' | sort -u || true)
    [ -z "$missing" ] || cannot "libraries are missing: $missing"
    take_parts
    # Of CUDA's folder only the compiler, since torch brings its own versions of the rest.
    while read -r folder; do
        if ls "$folder"/libnvrtc.so.1[23] >/dev/null 2>&1; then
            mkdir "$work/nvrtc"
            ln -s "$folder"/libnvrtc*.so* "$work/nvrtc/"
            export LD_LIBRARY_PATH="$work/nvrtc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
            say "NVRTC is in $folder"
            break
        fi
    done < <(nvrtc_folders)
    export EVERGRAPH_KERNEL_DIR=$parts/kernels EVERGRAPH_SKIPS=$parts/skips.txt EVERGRAPH_GPU=require
    [ -z "$quick" ] || export EVERGRAPH_GPU=small
    # The daemon is asked over HTTP by its own bench.
    export NO_PROXY=127.0.0.1,localhost no_proxy=127.0.0.1,localhost
    if [ -d "$bundle/data" ]; then
        mkdir -p "$bundle/data/protocol"
        export EVERGRAPH_TEST_DATA=$bundle/data
    fi
    # Packages that PyG's TGN needs and that Python lacks here, where they were carried.
    if [ -d "$bundle/wheels" ]; then
        python3 -B "$bundle/unpack_wheels.py" "$bundle/wheels" "$work/site" || say "wheels were not unpacked"
        export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$work/site"
    fi
    if [ ! -e "$events" ]; then
        python3 -B "$bundle/make_stream.py" "$work/generated.csv" ${quick:+600}
        [ -n "$quick" ] || say "no event file was carried: figures are of a generated stream of Wikipedia's shape"
    fi
}

# --- steps ---

failed=()

# wanted GROUP STEP: whether a step is asked for.
wanted() {
    [ "${#names[@]}" != 0 ] || return 0
    local name
    for name in "${names[@]}"; do
        [ "$1" != "$name" ] || return 0
        case "$2" in "$name" | "$name"-*) return 0 ;; esac
    done
    return 1
}

# record GROUP STEP [KEY VALUE]...: a line about a step; the last of each step counts.
record() {
    python3 - "$@" >>"$parts/steps.jsonl" <<'PYTHON'
import json, sys
group, step, *pairs = sys.argv[1:]
given = dict(zip(pairs[::2], pairs[1::2]))
print()  # Behind a line that a kill cut short.
if "ok" in given:
    given["ok"] = given["ok"] == "true"
if "seconds" in given:
    given["seconds"] = int(given["seconds"])
print(json.dumps({"group": group, "step": step} | given))
PYTHON
}

finished() {
    [ -e "$parts/steps.jsonl" ] && python3 -B - "$bundle" "$parts/steps.jsonl" "$1" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import report
steps = {step["step"]: step for step in report.steps_of(report.read_lines(sys.argv[2]))}
sys.exit(not steps.get(sys.argv[3], {}).get("ok", False))
PYTHON
}

# Writes what is known by now: figures, the log, and the parts for a run that goes on. What fails here stops no step.
write_out() { write_all "$@" || say "results were not written: see above"; }
write_all() {
    python3 -B "$bundle/report.py" --parts "$parts" --events "$(basename "$events")" ${quick:+--quick} \
        --version "$(cat "$bundle/version" 2>/dev/null || echo unknown)" --json "$out/gpu-check.json" "$@"
    local log
    for log in "$parts"/*.log; do
        [ ! -e "$log" ] || { echo "== $(basename "$log" .log)"; tail -n 3000 "$log"; }
    done >"$out/gpu-check.log"
    tar -czf "$out/parts.tar.gz.tmp" -C "$parts" . && mv "$out/parts.tar.gz.tmp" "$out/parts.tar.gz"
}

# Ends the step that runs, with all that it started, and keeps what it printed: it stays a step that did not end.
interrupted() {
    trap '' TERM INT
    say "a signal ends this run"
    # shellcheck disable=SC2046  # A number each.
    kill $(jobs -p) 2>/dev/null || true
    wait
    write_out --table
    exit 143
}

# group NAME SECONDS: what the steps after it belong to, and how long they may take together.
group() { group=$1 group_left=$2; }

# step NAME SECONDS COMMAND...: runs it with its output kept, and goes on after a failure. Status 3 is one that cannot
# run here, for the reason in the last line of its output. What runs finds its limit in $step_seconds.
step() {
    local name=$1 limit=$2 left=$group_left over="the time of group $group is over" cut= code=0 started taken why result
    shift 2
    wanted "$group" "$name" || return 0
    # What a GPU cannot open or compute need not be measured.
    [ "${#failed[@]}" = 0 ] || [ "$group" != A ] || [ "$name" = tests-apart ] || [ -n "$go_on" ] || return 0
    if [ -n "$list" ]; then
        echo "$group $name $limit $*"
        return
    fi
    if [ -n "$resume" ] && [ "$name" != tests-apart ] && finished "$name"; then
        say "done    $name, by an earlier run"
        return
    fi
    # Without a GPU, on the stand-in driver, steps take longer however tiny.
    [ -z "$quick" ] || limit=$((limit * 3)) left=$((left * 3))
    if [ "$left" -gt "$((seconds - SECONDS - KEPT_SECONDS))" ]; then
        left=$((seconds - SECONDS - KEPT_SECONDS)) over="the $seconds s of this call are over"
    fi
    if [ "$left" -le 0 ]; then
        say "skipped $name: $over"
        # What an earlier run found out stays, a failure too.
        grep -qs "\"step\": \"$name\", \"ok\"" "$parts/steps.jsonl" || record "$group" "$name" skipped "$over"
        return
    fi
    [ "$limit" -le "$left" ] || limit=$left cut="; $over"
    record "$group" "$name" started "$(date -u +%FT%TZ)"
    write_out
    # A step that fails leaves no figure of an earlier run behind.
    rm -f "$parts/$name.json"
    started=$SECONDS
    export step_seconds=$limit
    # In the background, since a signal is only taken when a command in the foreground has ended.
    timeout --kill-after=5 "$limit" "$@" >"$parts/$name.log" 2>&1 </dev/null &
    wait "$!" || code=$?
    taken=$((SECONDS - started))
    group_left=$((group_left - taken))
    why=$(grep -v '^[[:space:]]*$' "$parts/$name.log" | tail -n 1 || true)
    result=$(grep '^test result:' "$parts/$name.log" | tail -n 1 || true)
    case "$code" in
        0)
            say "ok      $name ($taken s)"
            record "$group" "$name" ok true seconds "$taken" ${result:+result "$result"}
            return
            ;;
        3)
            say "skipped $name: $why"
            record "$group" "$name" skipped "$why" seconds "$taken"
            return
            ;;
        124 | 137) why="it took more than $limit s$cut" ;;
    esac
    say "FAILED  $name: its log follows"
    record "$group" "$name" ok false why "$why" seconds "$taken" ${result:+result "$result"}
    failed+=("$name")
    tail -n 60 "$parts/$name.log" >&2
}

# The tests under a tool that finds faults. A tool that refuses to attach, or is not through in time, has measured
# nothing; what it has found until then is a failure all the same.
cuda_tool() { command -v "$1" || ls /usr/local/cuda*/bin/"$1" 2>/dev/null | head -n 1 || true; }
sanitizer=$(cuda_tool compute-sanitizer)
sanitize() {
    local tool=$1 ends=$((SECONDS + step_seconds - 15)) code=0 log=$parts/sanitizer-$1.txt
    shift
    [ -n "$sanitizer" ] || { echo "compute-sanitizer is not installed"; return 3; }
    # `timeout` has a group of processes of its own, which the end of the step does not reach.
    trap 'kill "$!"' TERM
    run_sanitizer() {
        code=0
        timeout --kill-after=5 "$((ends > SECONDS ? ends - SECONDS : 1))" "$sanitizer" --tool "$tool" \
            --error-exitcode 9 "$@" >"$log" 2>&1 &
        wait "$!" || code=$?
        cat "$log"
    }
    # Calls that the driver refuses on purpose, such as the update of a graph of another shape, are no faults.
    run_sanitizer --report-api-errors no "$@"
    if [ "$code" != 0 ] && grep -qiE 'unrecogni[sz]ed option|unknown option|invalid option' "$log"; then
        run_sanitizer "$@"
    fi
    if grep -qE -e 'SUMMARY:.*[^0-9][1-9][0-9]* (error|hazard)' \
        -e '^=+ +(Invalid|Uninitialized|Barrier error|.*[Rr]ace reported)' "$log"; then
        echo "$tool found faults"
        return 1
    fi
    if [ "$code" = 124 ] || [ "$code" = 137 ]; then
        echo "$tool was not through in time, and had found no fault until then"
        return 3
    fi
    if grep -qiE 'device not supported|(unable|failed) to attach|no attachable|before first instrumented' "$log"; then
        echo "$tool could not check: $(grep -m 1 -iE 'not supported|attach|instrumented' "$log")"
        return 3
    fi
    [ "$code" = 0 ] && grep -qE 'SUMMARY:.*[^0-9]0 (error|hazard)' "$log" && return 0
    echo "$tool ended with status $code and no summary of 0 faults"
    return 1
}
export -f sanitize
export sanitizer parts

# apart FILTER...: each test in a process of its own, since after a fault a process cannot use the GPU any more,
# so that in one process a fault fails all tests behind it. What fails runs once more under memcheck, which names the
# line of the kernel. Each failure is printed when it is known: the time may be over before the last.
apart() {
    ends=$(($(date +%s) + step_seconds - 15))
    rm -rf "$work/apart"
    mkdir "$work/apart"
    # within SECONDS COMMAND...: what is left at most. In the group of processes that ends with the step.
    within() {
        local left=$((ends - $(date +%s)))
        timeout --foreground --kill-after=5 "$((left < 1 ? 1 : left < $1 ? left : $1))" "${@:2}" </dev/null 2>&1
    }
    alone() {
        local log=$work/apart/$1
        [ "$(date +%s)" -lt "$ends" ] || { echo "$1" >>"$work/apart/left"; return 0; }
        within 30 "$it" --exact "$1" --nocapture >"$log" && return
        echo "$1" >>"$work/apart/failing"
        { echo "--- $1"; tail -n 60 "$log"; } >"$log.said"
        if [ -n "$sanitizer" ]; then
            EVERGRAPH_GPU=small within 45 "$sanitizer" --tool memcheck --report-api-errors no --print-limit 5 \
                "$it" --exact "$1" --nocapture >"$log.memcheck" || true
            { echo "--- $1, under memcheck"; head -n 60 "$log.memcheck"; } >>"$log.said"
        fi
        cat "$log.said"
    }
    export -f alone within
    export ends
    "$it" "$@" --list | sed -n 's/: test$//p' >"$work/apart/tests"
    [ -s "$work/apart/tests" ] || { echo "$it lists no tests"; return 1; }
    touch "$work/apart/failing" "$work/apart/left"
    xargs -P 8 -I{} bash -c 'alone {}' <"$work/apart/tests"
    # The last line is the reason that is reported.
    echo "of $(wc -l <"$work/apart/tests") tests apart $(wc -l <"$work/apart/left") were not run, and" \
        "$(wc -l <"$work/apart/failing") fail: $(xargs <"$work/apart/failing")"
    [ ! -s "$work/apart/failing" ]
}
export -f apart
export work

evergraph=$work/evergraph it=$work/it
export it
events=$bundle/data/wikipedia.csv.gz
[ -e "$events" ] && [ -z "$quick" ] || events=$work/generated.csv
if [ -z "$list" ]; then
    prepare
    trap interrupted TERM INT
fi

tests=(gpu::)
size=(--embedding-dimension 100 --batch-events 600)
# A daemon on some copies of the stream, of which the last events come in rounds.
arriving=(--round-events 5000 --rounds 3) batch=600 copies=4 narrow=()
if [ -n "$quick" ]; then
    tests=(gpu::fingerprints gpu::rows gpu::cache gpu::staging)
    size=(--embedding-dimension 16 --batch-events 30 --events-max 90)
    arriving=(--round-events 60 --rounds 1) batch=30 copies=1
    narrow=(--set model.embedding_dimension=16 --set model.memory_dimension=16)
fi

# Limits are some ten times what a step takes on an H200, where that is known.
group A 230
step smoke 40 "$it" gpu::smoke gpu::capture::recorded_steps --test-threads=1 --nocapture
step check 20 "$evergraph" check --data "$work/data" --listen 127.0.0.1:0 --set device.use=cuda:0 \
    --set device.kernel_dir="$parts/kernels"
# Only what passed every test counts as verified, so only this run writes fingerprints of the kernels.
step tests 80 env EVERGRAPH_GPU_FINGERPRINTS="$parts/fingerprints.json" "$it" "${tests[@]}" --test-threads=1
if [ "${#failed[@]}" != 0 ]; then
    step tests-apart 90 bash -c 'apart "$@"' apart "${tests[@]}"
    [ -n "$go_on" ] || { write_out --table; say "group A failed: stopped here"; exit 1; }
elif [ -z "$list" ] && wanted A tests && grep -qs '"tests-apart"' "$parts/steps.jsonl"; then
    record A tests-apart skipped "all tests pass in one process"
fi

# train NAME MODEL FEATURES EPOCHS FLAG...: a model; the first epoch fills caches and buffers.
train() {
    local epochs=$4 limit=30
    [ -z "$quick" ] || epochs=2
    [ "$3" = 0 ] || limit=40
    step "train-$1" "$limit" "$evergraph" bench train --events "$events" --model "$2" --row-dimension "$3" \
        "${size[@]}" --epochs "$epochs" --device cuda:0 "${@:5}" --json "$parts/train-$1.json"
}

group B 400
for features in 0 172; do
    train "tgn-$features" tgn "$features" 6 --alone
done
for features in 0 172; do
    # A part of the time writes the events with features as text.
    step "learn-$features" $((features == 0 ? 60 : 90)) "$evergraph" bench learn --events "$events" \
        --repeat "$copies" --row-dimension "$features" "${arriving[@]}" --set device.use=cuda:0 \
        --set device.kernel_dir="$parts/kernels" --set learner.batch_events="$batch" ${narrow[@]+"${narrow[@]}"} \
        --json "$parts/learn-$features.json"
done
step samples 30 "$evergraph" bench sample --events "$events" --device cuda:0 ${quick:+--runs 1} \
    --json "$parts/samples.json"
step rows 90 "$evergraph" bench ops --device cuda:0 ${quick:+--quick} --json "$parts/rows.json"
# The clocks of a GPU that has just worked.
[ -n "$list" ] || ! wanted B rows || rm -f "$parts/machine.json"
step eval 60 "$evergraph" eval --events "$events" --model tgn --protocol prequential --device cuda:0 \
    ${quick:+--embedding-dimension 16} --batch-events "$batch" --json "$parts/eval.json"
[ ! -e "$bundle/eval-cpu.json" ] || [ -n "$list" ] || cp "$bundle/eval-cpu.json" "$parts/"

# profile FILE SKIP COUNT PROGRAM...: the time of each kernel of some launches behind others, with clocks and caches as
# every other step finds them.
profiler=$(cuda_tool ncu)
profile() {
    [ -n "$profiler" ] || { echo "Nsight Compute (ncu) is not installed"; return 3; }
    rm -f "$1"
    # It kills the program behind the last launch, so its status says nothing.
    "$profiler" --clock-control none --cache-control none --metrics gpu__time_duration.sum --print-units base \
        --launch-skip "$2" --launch-count "$3" --kill yes --csv --log-file "$1" "${@:4}" || true
    python3 -B "$bundle/profile_kernels.py" "$1"
}
export -f profile
export profiler bundle

group C 440
for launch in direct graph ahead; do
    for features in 0 172; do
        train "tgn-$features-$launch" tgn "$features" 6 --alone --launch "$launch"
    done
done
for features in 0 172; do
    train "tgn-$features-served" tgn "$features" 6
done
train tgat-0 tgat 0 3 --alone
train graphmixer-0 graphmixer 0 3 --alone
# Some steps behind the first third of the stream, kernel by kernel: a graph would be one launch.
launches=(8000 300)
[ -z "$quick" ] || launches=(100 50)
for each in tgn-0 tgn-172 tgat-0 graphmixer-0; do
    step "profile-$each" 30 bash -c 'profile "$@"' profile "$parts/profile-$each.csv" "${launches[@]}" \
        "$evergraph" bench train --events "$events" --model "${each%-*}" --row-dimension "${each#*-}" "${size[@]}" \
        --epochs 1 --alone --device cuda:0 --launch direct
done

peer() { step "$1" 120 python3 -B "$bundle/$2.py" "${@:3}"; }

group D 480
# PyG's rounds take longest of all, and two show how they differ.
rounds=2
[ -z "$quick" ] || rounds=1
for features in 0 172; do
    peer "pyg-$features" peer_training "$events" "$features" "$parts/pyg-$features.json"
done
for features in 0 172; do
    peer "pyg-continual-$features" peer_rounds "$events" "$features" "$parts/pyg-continual-$features.json" \
        "${arriving[@]}" --rounds "$rounds" --batch "$batch" --device cuda
done
peer torch-samples peer_samples "$events" "$parts/torch-samples.json"
peer torch-layers peer_layers "$parts/rows.json" "$parts/torch-layers.json"
peer torch-rows peer_rows "$parts/rows.json" "$parts/torch-rows.json"

group E 420
for tool in memcheck racecheck initcheck synccheck; do
    step "sanitizer-$tool" 105 env EVERGRAPH_GPU=small bash -c 'sanitize "$@"' sanitize "$tool" \
        "$it" gpu::smoke gpu::capture::recorded_steps gpu::rows gpu::cache --test-threads=1
done

[ -z "$list" ] || exit 0
write_out --table
[ "${#failed[@]}" = 0 ] || { say "failed: ${failed[*]}"; exit 1; }
say "nothing failed; results are in $out"
