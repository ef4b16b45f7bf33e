#!/usr/bin/env bash
# What a release is tried with on a real GPU: each step's output goes to a file of its own, and a step that fails or takes
# too long does not stop the others. What is not installed (onnxruntime, torch) its steps skip or leave out.
#
#   tools/check_gpu.sh OUT [STEP ...]      steps: tests ort soak suite kernels tiles models start tune unseen (default: all; also
#                                  unseen-quick: ten of its networks, 5 minutes)
#
# VKEP_JOBS (default: one fewer than the cores) workers run the suites; VKEP_PYTHON is the interpreter.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if (($# == 0)); then
    sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
out=$1
shift
steps=("$@")
((${#steps[@]})) || steps=(tests ort soak suite kernels tiles models start tune unseen)
python=${VKEP_PYTHON:-python}
jobs=${VKEP_JOBS:-$(($(nproc) > 2 ? $(nproc) - 1 : 1))}
mkdir -p "$out"
failed=0

step() { # NAME SECONDS COMMAND...
    local name=$1 seconds=$2 began=$SECONDS status=0
    shift 2
    timeout "$seconds" "$@" >"$out/$name.log" 2>&1 || status=$?
    ((status)) && failed=1
    printf '%-14s rc %-3d %4d s  %s\n' "$name" "$status" $((SECONDS - began)) "$(tail -n 1 "$out/$name.log" | cut -c1-120)"
}

models() { "$python" -m tools.models --missing --out models "$@"; }

bench() { # NAME ARGUMENTS...: of models against torch
    local name=$1
    shift
    step "$name" 240 "$python" -m tools.bench --markdown --json "$out/$name.json" "$@"
}

variant() { # NAME MODEL,... OPTIONS...: the same models in another type or batch size
    local name=$1 wanted=${2//,/ } folder=models/$1
    shift 2
    # shellcheck disable=SC2086
    "$python" -m tools.models --missing --out "$folder" "$@" $wanted >"$out/$name-models.log" 2>&1
    # shellcheck disable=SC2086
    bench "$name" --rounds 8 --peers vkep torch torch-graph --models $(printf "$folder/%s.onnx " $wanted)
}

for what in "${steps[@]}"; do
    case $what in
    tests) step tests 420 "$python" -m pytest -q -n "$jobs" tests/registry tests/device tests/memory tests/kernels tests/session tests/mixed ;;
    ort) step ort 300 "$python" -m pytest -q tests/ort ;;
    soak) step soak 420 "$python" -m tools.ort_soak --json "$out/soak.json" ;;
    suite)
        step suite 560 "$python" -m tools.backend_suite --check --quiet --jobs "$jobs"
        step suite-ort 560 "$python" -m tools.backend_suite --through ort --check --quiet --jobs "$jobs"
        ;;
    kernels) step kernels 420 "$python" -m tools.bench.gpu_ops --json "$out/kernels.json" ;;
    tiles) step tiles 560 "$python" -m tools.bench.tiles --json "$out/tiles.json" ;;
    models)
        bench models --rounds 8 --peers vkep vkep-ort torch torch-graph --models resnet50 mobilenetv2 bert_enc gpt2step
        variant float16 resnet50,mobilenetv2,bert_enc,gpt2step --float16
        variant float16-32 resnet50,mobilenetv2,bert_enc --float16 --batch 32
        variant float32-32 resnet50,mobilenetv2,bert_enc --batch 32
        ;;
    start)
        models resnet50 >"$out/start-model.log" 2>&1
        step start 120 "$python" -m tools.bench.start models/resnet50.onnx
        step start-cold 120 "$python" -m tools.bench.start models/resnet50.onnx --cold --processes 3
        ;;
    tune)
        models resnet50 >"$out/tune-model.log" 2>&1
        step tune 300 "$python" -m vkep tune models/resnet50.onnx
        ;;
    unseen-quick) step unseen-quick 310 "$python" -m tools.bench.unseen --quick --json "$out/unseen-quick.json" ;;
    unseen) step unseen 1800 "$python" -m tools.bench.unseen --compile --seconds 1700 --json "$out/unseen.json" ;;
    *)
        echo "check_gpu: no step $what" >&2
        exit 2
        ;;
    esac
done
exit "$failed"
