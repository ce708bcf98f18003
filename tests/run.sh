#!/bin/bash
# Runs the tests of a build folder: tests/run.sh [BUILD] [GOOGLETEST OPTION...]
#
# The test program runs in shards at once (SHARDS, one per core up to two), each with its output in
# BUILD/test-logs.  Failures are printed in full; the last line is "N passed, N failed", and ", N skipped" if
# any were.  A shard that crashes or takes longer than TEST_TIMEOUT seconds counts as one more failure, and the
# test that was running is named.  Exit code: 0 when nothing failed and something ran.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

build=${1:-build}
shift || true
program=$build/hearth-tests
logs=$build/test-logs
cores=$(nproc)
shards=${SHARDS:-$((cores < 2 ? cores : 2))}
export HEARTH_BINARY=${HEARTH_BINARY:-$build/hearth}
export HEARTH_EMULATED=${HEARTH_EMULATED:-$build/hearth-emulated}
export HEARTH_FAULTY=${HEARTH_FAULTY:-$build/hearth-faulty}

if [[ ! -x $program ]]; then
  echo "tests/run.sh: there is no $program; run 'make test'." >&2
  echo "0 passed, 1 failed"
  exit 1
fi

# What GoogleTest wrote -> one line of numbers and the failures' text.  A line that closes a test may follow
# output without a newline, so it is looked for anywhere in its line.
# shellcheck disable=SC2016  # awk's dollars
digest='
  /\[ RUN      \] / { running = $0; sub(/.*\[ RUN      \] /, "", running); block = "" }
  running != "" { block = block $0 "\n" }
  /\[       OK \] .* \([0-9]+ ms\)$/ { ++passed; note() }
  /\[  SKIPPED \] .* \([0-9]+ ms\)$/ { ++skipped; note() }
  /\[  FAILED  \] .* \([0-9]+ ms\)$/ { ++failed; failures = failures block "\n"; note() }
  /\[==========\] [0-9]+ tests? from [0-9]+ test suites? ran\./ { complete = 1 }
  !(running != "") { outside = outside $0 "\n" }
  function note() {
    milliseconds = $0; sub(/ ms\)$/, "", milliseconds); sub(/.*\(/, "", milliseconds)
    print milliseconds, running >> slow
    running = ""
  }
  END {
    # A failure outside of any test (set-up of a suite) or a crash leaves a status without a failed test.
    if (status != 0 && (failed == 0 || !complete)) {
      ++failed
      why = status == 124 || status == 137 ? "ran out of time" : "stopped with status " status
      printf "shard %s %s%s\n%s\n", shard, why, (running != "" ? " in " running : ""), (running != "" ? block : outside)
    }
    printf "%s", failures
    print passed + 0, failed + 0, skipped + 0 > counts
  }'

# Under the race detector: of suites that run under every schedule one, and those that run once.
checked_filter='AdamW.*/random_lazy:CrossEntropy.*/random_lazy:Elementwise.*/random_lazy:Embedding.*/random_lazy'
checked_filter+=':GemmSm80.*/random_lazy:GemmSm90.*/random_lazy:Unfused.*/random_lazy:ResidualNorm.*/random_lazy:AttentionDecode.*/random_lazy'
checked_filter+=':Attention.*:AttentionValues.*:*Once.*:GemmSm80Shapes.*:GemmSm90Shapes.*'
checked_filter+=':-GemmSm80Shapes.OfModels:ResidualNormOnce.ForwardOfManyRows'  # slow, and what others do
rm -rf "$logs"
mkdir -p "$logs"

# run_shard NAME PROGRAM COUNT INDEX [OPTION...]: in the background.
run_shard() {
  local name=$1 program=$2 count=$3 index=$4
  shift 4
  (
    GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$index \
      timeout -k 10 "${TEST_TIMEOUT:-1500}" "$program" --gtest_color=no "$@" </dev/null >"$logs/shard-$name.txt" 2>&1
    echo $? >"$logs/status-$name"
  ) 2>/dev/null &
}

echo "running $program in $shards shard(s), output in $logs"
names=()
for ((shard = 0; shard < shards; ++shard)); do
  run_shard "$shard" "$program" "$shards" "$shard" "$@"
  names+=("$shard")
done
wait
# The CUDA kernels on the emulator use all cores by themselves.
if [[ -x $build/hearth-kernel-tests ]]; then
  echo "running $build/hearth-kernel-tests"
  run_shard kernels "$build/hearth-kernel-tests" 1 0 "$@"
  names+=(kernels)
  wait
fi
# And on this machine's GPU, if the build is for one.
if [[ -x $build/hearth-gpu-tests ]] && type -P nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  echo "running $build/hearth-gpu-tests"
  run_shard gpu "$build/hearth-gpu-tests" 1 0 "$@"
  names+=(gpu)
  wait
fi

# Every kernel once.
if [[ -x $build/hearth-kernel-tests-checked ]]; then
  echo "running $build/hearth-kernel-tests-checked"
  run_shard checked "$build/hearth-kernel-tests-checked" 1 0 --gtest_filter="${CHECKED_FILTER:-$checked_filter}" "$@"
  names+=(checked)
  wait
fi

passed=0 failed=0 skipped=0
# A broken kernel that no test notices is a failed test.
if [[ -x $build/hearth-kernel-tests && $# == 0 ]]; then
  echo "breaking kernels, output in $logs/mutants.txt"
  make --no-print-directory -s BUILD="$build" mutants >"$logs/mutants.txt" 2>&1
  if ! read -r passed _ failed _ < <(grep -E '^[0-9]+ killed, [0-9]+ survived$' "$logs/mutants.txt"); then
    passed=0 failed=1
  fi
  ((failed)) && grep -v '^killed: ' "$logs/mutants.txt"
fi
for shard in "${names[@]}"; do
  awk -v shard="$shard" -v status="$(<"$logs/status-$shard")" -v counts="$logs/counts-$shard" -v slow="$logs/times" \
    "$digest" "$logs/shard-$shard.txt"
  read -r p f s <"$logs/counts-$shard"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
if [[ -s $logs/times ]]; then
  echo "slowest: $(sort -rn "$logs/times" | head -5 | awk '{ printf "%s%s %.1f s", (NR > 1 ? ", " : ""), $2, $1 / 1000 }')"
fi
if ((passed + failed == 0)); then
  echo "tests/run.sh: no test was run" >&2
  failed=1
fi
closing="$passed passed, $failed failed"
((skipped)) && closing+=", $skipped skipped"
echo "$closing"
((failed == 0))
