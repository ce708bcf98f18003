#!/bin/bash
# Proves Hearth on a real GPU: a short table, and a JSON file.  Eight minutes at most.
#
#   gpu_check.sh [--out DIR] [--quick] [--limit SECONDS] [SECTION...]
#
# Runs from `make bundle`'s folder, where nothing else need be installed, or from a source tree built with ARCHS.
# Sections (all of them unless named), each with its own time limit; one that fails does not stop the others:
#
#   conformance    what every PTX instruction does, bit for bit as the emulator has it
#   kernels        the kernels' tests
#   memcheck       compute-sanitizer memcheck on the small ones, if the tool is there
#   racecheck      compute-sanitizer racecheck, likewise
#   losses         20 steps of the tiny model against the CPU's losses (within 0.5%)
#   native         GPT-2 124M, 60 steps: tokens/s and MFU, our GEMM
#   cublaslt       the same with cuBLASLt's
#   pytorch        the same step in PyTorch, if that is installed
#   bench          hearth-bench's table
#
# DIR (gpu-check in the present folder) gets gpu_check.json, and a log for each section.  --quick takes tiny models and
# few tests, to try this script out; --limit is every section's time limit instead of its own.  HEARTH, HEARTH_GPU_TESTS, HEARTH_CONFORMANCE,
# HEARTH_CONFORMANCE_EMULATED and HEARTH_BENCH name other programs; CUDA_HOME is the CUDA toolkit (/usr/local/cuda).
# Exit codes: 0 nothing failed, 1 something did, 2 wrong arguments.
set -uo pipefail

# name, seconds
sections=(
  "conformance 20"
  "kernels 75"
  "memcheck 60"
  "racecheck 60"
  "losses 30"
  "native 45"
  "cublaslt 45"
  "pytorch 75"
  "bench 70"
)

self=$(realpath "${BASH_SOURCE[0]}")
root=${self%/*} programs=${self%/*}
if [[ ! -x $root/hearth ]]; then
  root=${root%/*}
  programs=$root/build
fi
hearth=${HEARTH:-$programs/hearth}
gpu_tests=${HEARTH_GPU_TESTS:-$programs/hearth-gpu-tests}
conformance=${HEARTH_CONFORMANCE:-$programs/hearth-conformance}
emulated=${HEARTH_CONFORMANCE_EMULATED:-$programs/hearth-conformance-emulated}
bench=${HEARTH_BENCH:-$programs/hearth-bench}
# cuBLAS is where the CUDA toolkit is, when the loader does not know it.
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${CUDA_HOME:-/usr/local/cuda}/lib64

# ---- sections.  Each prints what it likes; its last line is what the table shows; lines "@name number" go into the
# JSON file.  Exit code 0: passed, 77: skipped, others: failed.

skip() { echo "$1"; exit 77; }
fail() { echo "$1"; exit 1; }
needs() { [[ -x $1 ]] || fail "there is no $1"; }
value() { echo "@$1 $2"; }

section_conformance() {
  needs "$conformance"
  needs "$emulated"
  local words
  words=$("$conformance" "$out/device.dump" 2>&1) || fail "${words:0:200}"
  "$emulated" "$out/emulator.dump" || fail "the emulator failed"
  local records differ
  records=$(cut -d: -f1 "$out/device.dump" | uniq | wc -l)
  # A GPU that is not sm_90 has fewer records.
  if ! grep -q wgmma "$out/device.dump"; then
    "$emulated" "$out/emulator.dump" --sm80 || fail "the emulator failed"
  fi
  value records "$records"
  differ=$(diff "$out/device.dump" "$out/emulator.dump" | sed -n 's/^[<>] \([^:]*\):.*/\1/p' | sort -u)
  [[ -z $differ && $records -gt 0 ]] || fail "not as the emulator has it: $(paste -sd';' <<<"$differ" | sed 's/;/; /g')"
  echo "$records instructions and variants, the same bits"
}

# What is small enough for the sanitizer's slowness: every kernel by its own tests, every operation by the device's.
small='*/gpu:*/gpu_*:Attention.*:AttentionValues.*:*/native:*/cuda_bf16:-*Large*:*Long*'
quick_tests='*AdamW*'

run_tests() {  # run_tests COMMAND...: GoogleTest's output, then a line
  local log=$out/tests.$$ code
  "$@" >"$log" 2>&1
  code=$?
  cat "$log"
  local passed failed
  passed=$(grep -c '^\[       OK \]' "$log")
  failed=$(grep '^\[  FAILED  \].*ms)$' "$log" | sed 's/^\[  FAILED  \] //; s/,.*//; s/ (.*//' | paste -sd' ')
  rm -f "$log"
  value passed "$passed"
  [[ -z $failed ]] || fail "failed: ${failed:0:200}"
  ((code == 0)) || fail "$passed passed, then the program ended with exit code $code"
  ((passed > 0)) || fail "no test ran"
  echo "$passed passed"
}

section_kernels() {
  needs "$gpu_tests"
  local filter='*'
  ((quick)) && filter=$quick_tests
  run_tests "$gpu_tests" --gtest_color=no --gtest_filter="$filter"
}

sanitize() {  # sanitize TOOL
  needs "$gpu_tests"
  local sanitizer
  sanitizer=$(type -P compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
  [[ -x $sanitizer ]] || skip "compute-sanitizer is not installed"
  local filter=$small
  ((quick)) && filter=$quick_tests
  run_tests "$sanitizer" --tool "$1" --error-exitcode 9 "$gpu_tests" --gtest_color=no --gtest_filter="$filter"
}
section_memcheck() { sanitize memcheck; }
section_racecheck() { sanitize racecheck; }

# One number of every step of a run, a line each.
series() { sed -n "/\"event\":\"step\"/s/.*\"$2\":\([-+0-9.eE]*\).*/\1/p" "$1/metrics.jsonl"; }
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }'; }

train() {  # train RUN CONFIG OPTION...: fails with the program's last words
  local run=$1 config=$2 words=$out/words.$$
  shift 2
  (cd "$root" && "$hearth" train "configs/$config.toml" --run.dir="$run" --data.train=data/tiny.txt --data.val= \
    --data.tokenizer=byte --eval.every=0 --sample.every=0 --checkpoint.every=0 --checkpoint.resume=none "$@") \
    2>&1 | tee "$words"
  local code=${PIPESTATUS[0]} last
  last=$(tail -n 1 "$words")
  rm -f "$words"
  ((code == 0)) || fail "exit code $code: ${last:0:200}"
}

section_losses() {
  needs "$hearth"
  local steps=20
  ((quick)) && steps=3
  local kind
  for kind in cuda cpu; do
    train "$out/tiny-$kind" tiny --train.steps=$steps --device.kind=$kind
  done
  local worst
  worst=$(paste <(series "$out/tiny-cuda" loss) <(series "$out/tiny-cpu" loss) | awk -v steps=$steps '
    NF == 2 { d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > worst) worst = d; ++n }
    END { if (n == steps) printf "%.6f", worst }')
  [[ -n $worst ]] || fail "not every step has a loss on both devices"
  value worst_relative_difference "$worst"
  awk -v worst="$worst" 'BEGIN { exit !(worst <= 0.005) }' || fail "a loss differs by $worst of the CPU's (bound 0.005)"
  echo "$steps losses within $worst of the CPU's"
}

gpt2() {  # gpt2 ENGINE
  needs "$hearth"
  local run=$out/gpt2-$1
  if ((quick)); then
    train "$run" tiny --train.steps=3 --device.kind=cuda --device.gemm="$1"
  else
    train "$run" gpt2-124m --model.vocab=50257 --train.steps=60 --train.batch=32 --train.micro_batch=32 \
      --device.kind=cuda --device.gemm="$1"
  fi
  # The first steps warm up; with fewer than 20, none is left out.
  local steps rate mfu
  steps=$(series "$run" loss | wc -l)
  rate=$(series "$run" tokens_per_second | tail -n +$((steps >= 20 ? 11 : 1)) | median)
  mfu=$(series "$run" mfu | tail -n +$((steps >= 20 ? 11 : 1)) | median)
  [[ -n $rate ]] || fail "no step was timed"
  value tokens_per_second "$rate"
  [[ -n $mfu ]] && value mfu "$mfu"
  value last_loss "$(series "$run" loss | tail -n 1)"
  awk -v rate="$rate" -v mfu="$mfu" -v steps="$steps" 'BEGIN {
    printf "%.0f tokens/s%s, %d steps\n", rate, mfu == "" ? "" : sprintf(", MFU %.1f%%", 100 * mfu), steps }'
}
section_native() { gpt2 native; }
section_cublaslt() { gpt2 cublaslt; }

section_pytorch() {
  ((quick)) && skip "not in a quick check"
  local python=${PYTHON:-python3}
  "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null ||
    skip "PyTorch with CUDA is not installed"
  "$python" "$root/tests/pytorch/gpu_step.py" || fail "PyTorch's step failed"
}

section_bench() {
  needs "$bench"
  ((quick)) && skip "not in a quick check"
  "$bench" --json "$out/bench.json" || fail "hearth-bench failed"
  [[ -s $out/bench.json ]] || fail "hearth-bench wrote no JSON"
  echo "table: bench.log, bench.json"
}

# ---- running them

usage() { printf 'gpu_check: %s\n' "$1" >&2; exit 2; }

out=$PWD/gpu-check quick=0 all_limits='' only=()
while (($#)); do
  case $1 in
    --out) (($# > 1)) || usage "--out needs a folder."; out=$2; shift 2 ;;
    --quick) quick=1; shift ;;
    --limit)
      [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || usage "--limit needs a number of seconds."
      all_limits=$2
      shift 2
      ;;
    --section) "section_$2"; exit ;;  # this script's own, in a process that can be stopped
    -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$self"; exit 0 ;;
    *)
      [[ " ${sections[*]/ */ } " == *" $1 "* ]] ||
        usage "unknown argument '$1'; known are --out, --quick, --limit and the sections ${sections[*]/ */}."
      only+=("$1")
      shift
      ;;
  esac
done
mkdir -p "$out" || usage "cannot make the folder '$out'."
out=$(realpath "$out")

json_text() {  # json_text TEXT: quoted
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  printf '"%s"' "$(tr -d '\000-\037' <<<"$text")"
}

numbers() {  # numbers LOG: ,"name":number of its "@name number" lines
  sed -n 's/^@\([a-z_]*\) \(-\{0,1\}[0-9][-+0-9.eE]*\)$/,"\1":\2/p' "$1" | tr -d '\n'
}

run_section() {  # run_section NAME SECONDS: a line of the table, a line of $out/sections
  local name=$1 limit=$2 start=$SECONDS log=$out/$1.log code status result
  rm -rf "$out/tiny-"* "$out/gpt2-$name"
  local -a quickly=()
  ((quick)) && quickly=(--quick)
  timeout -k 5 "$limit" "$self" --out "$out" "${quickly[@]}" --section "$name" >"$log" 2>&1 </dev/null
  code=$?
  result=$(grep -v '^@' "$log" | tail -n 1)
  case $code in
    0) status=passed ;;
    77) status=skipped ;;
    124 | 137) status=failed result="not done after $limit s (${result:0:100})" ;;
    *) status=failed ;;
  esac
  [[ $status == failed ]] && failures=$((failures + 1))
  printf '%-12s %-8s %4d s  %s\n' "$name" "$status" $((SECONDS - start)) "$result"
  printf '{"name":"%s","status":"%s","seconds":%d,"result":%s%s}\n' "$name" "$status" $((SECONDS - start)) \
    "$(json_text "$result")" "$(numbers "$log")" >>"$out/sections"
}

gpu=$(timeout 20 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
version=$("$hearth" --version 2>/dev/null)
echo "${version:-no hearth at $hearth}; GPU: ${gpu:-none found}; logs: $out"
rm -f "$out/sections"
failures=0
for section in "${sections[@]}"; do
  read -r name limit <<<"$section"
  [[ ${#only[@]} == 0 || " ${only[*]} " == *" $name "* ]] && run_section "$name" "${all_limits:-$limit}"
done
{
  printf '{"version":%s,"gpu":%s,"date":"%s","seconds":%d,"failures":%d,"sections":[\n' "$(json_text "$version")" \
    "$(json_text "$gpu")" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$SECONDS" "$failures"
  paste -sd, "$out/sections" | sed 's/},{/},\n{/g'
  printf ']}\n'
} >"$out/gpu_check.json"
rm -f "$out/sections"
echo "$failures failed, $SECONDS s; $out/gpu_check.json"
((failures == 0))
