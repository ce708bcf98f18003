#!/bin/bash
# The tests that take long: tests/run_long.sh [BUILD] [PART...]        (make test-long)
#
#   fuzz      every parser fed FUZZ_INPUTS (100000) mutated inputs, with address and undefined sanitizers
#   soak      SOAK_STEPS (10000) steps of configs/tiny.toml: memory and file descriptors stay flat
#   checked   the CUDA kernels on the emulator: all of their tests under the race detector
#   kill      KILLS (12) kill -9 at random moments, each resumed: the final state equals an uninterrupted run's
#   layouts   a tiny model in fp64 in every layout of up to 8 ranks with every option, against one process
#   seeds     the quickstart with SEEDS (3) seeds: validation loss at the end, mean <= 1.91, none above 1.93
#
# Without a part: all of them.  The last line is "N passed, N failed", and ", N skipped" if any were; the exit
# code is 0 when nothing failed.  Logs and numbers stay in BUILD/long.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

build=${1:-build}
shift || true
parts=("$@")
((${#parts[@]})) || parts=(fuzz soak checked kill layouts seeds)
hearth=$build/hearth
work=$build/long
passed=0 failed=0 skipped=0

pass() { echo "passed: $*"; ((++passed)); }
fail() { echo "FAILED: $*"; ((++failed)); }
skip() { echo "skipped: $*"; ((++skipped)); }

# --- fuzz ---------------------------------------------------------------------------------------------------

fuzz() {
  local sanitize=$build/sanitize count=${FUZZ_INPUTS:-100000} seed=${FUZZ_SEED:-$SRANDOM} parser
  if ! make --no-print-directory -j"$(nproc)" BUILD="$sanitize" SANITIZE=address,undefined OPT=-O1 \
    "$sanitize/hearth-fuzz" >"$work/fuzz-build.txt" 2>&1; then
    tail -n 20 "$work/fuzz-build.txt"
    fail "fuzz: $sanitize/hearth-fuzz was not built ($work/fuzz-build.txt)"
    return
  fi
  local -a parsers
  read -r -a parsers < <("$sanitize/hearth-fuzz" 2>&1 | sed -n 's/^parsers: *//p')
  ((${#parsers[@]})) || { fail "fuzz: hearth-fuzz names no parsers"; return; }
  echo "fuzz: $count inputs each, seed $seed: ${parsers[*]}"
  export sanitize count seed work
  # shellcheck disable=SC2016  # the inner shell's dollars
  printf '%s\n' "${parsers[@]}" | xargs -P "$(nproc)" -I{} sh -c \
    '"$sanitize/hearth-fuzz" {} "$count" "$seed" >"$work/fuzz-{}.txt" 2>&1; echo $? >"$work/fuzz-{}.status"'
  for parser in "${parsers[@]}"; do
    if [[ $(<"$work/fuzz-$parser.status") == 0 ]]; then
      pass "fuzz $(tail -n 1 "$work/fuzz-$parser.txt")"
    else
      tail -n 40 "$work/fuzz-$parser.txt"
      fail "fuzz $parser ($work/fuzz-$parser.txt)"
    fi
  done
}

# --- soak ---------------------------------------------------------------------------------------------------

# Samples "seconds resident-KiB descriptors" of a process until it ends.  A descriptor that is open in a few
# samples only (a checkpoint being written) is no leak, so the least of each stretch is compared.
sample_process() {  # sample_process PID FILE
  local start=$SECONDS resident
  while resident=$(awk '/^VmRSS/ { print $2 }' "/proc/$1/status" 2>/dev/null) && [[ -n $resident ]]; do
    echo "$((SECONDS - start)) $resident $(find "/proc/$1/fd" -mindepth 1 2>/dev/null | wc -l)" >>"$2"
    sleep 0.25
  done
}

soak() {
  local steps=${SOAK_STEPS:-10000} often run=$work/soak samples=$work/soak-samples.txt pid status
  often=$((steps / 20))
  rm -rf "$run" "$samples"
  "$hearth" train configs/tiny.toml "--run.dir=$run" "--train.steps=$steps" "--eval.every=$often" \
    "--sample.every=$often" "--checkpoint.every=$often" "--log.every=$often" >"$work/soak.txt" 2>&1 &
  pid=$!
  sample_process "$pid" "$samples"
  wait "$pid"
  status=$?
  if ((status != 0)); then
    tail -n 20 "$work/soak.txt"
    fail "soak: the run ended with status $status"
    return
  fi
  # The first fifth is start-up and warm-up.  Memory: the largest of the last fifth against the largest of
  # the second one, at most 1 MiB and 1% more.  Descriptors: the least of those stretches is the same.
  local verdict
  verdict=$(awk '
    { resident[NR] = $2; descriptors[NR] = $3 }
    END {
      if (NR < 20) { print "too short: " NR " samples"; exit }
      fifth = int(NR / 5)
      for (i = fifth + 1; i <= NR - 1; ++i) {
        if (i <= 2 * fifth) { early = max(early, resident[i]); few = least(few, descriptors[i]) }
        if (i > NR - fifth) { late = max(late, resident[i]); many = least(many, descriptors[i]) }
      }
      ok = late <= early * 1.01 + 1024 && few == many
      printf "%s resident %.1f MiB early, %.1f MiB late; descriptors %d and %d; %d samples\n", (ok ? "ok" : "grew:"),
        early / 1024, late / 1024, few, many, NR
    }
    function max(a, b) { return a > b ? a : b }
    function least(a, b) { return a == "" || b < a ? b : a }' "$samples")
  if [[ $verdict == ok* ]]; then
    pass "soak: $steps steps, ${verdict#ok }"
  else
    fail "soak: $verdict ($samples)"
  fi
}

# --- checked ------------------------------------------------------------------------------------------------

# Death tests fork, which the detector's shadow memory makes slow; they run in make test.
checked() {
  local program=$build/hearth-kernel-tests-checked status
  if ! make --no-print-directory -j"$(nproc)" BUILD="$build" "$program" >"$work/checked-build.txt" 2>&1; then
    tail -n 20 "$work/checked-build.txt"
    fail "checked: $program was not built ($work/checked-build.txt)"
    return
  fi
  "$program" --gtest_color=no --gtest_brief=1 --gtest_filter='-*DeathTest*' >"$work/checked.txt" 2>&1
  status=$?
  if ((status == 0)); then
    pass "checked: $(sed -n 's/^\[==========\] //p' "$work/checked.txt" | tail -n 1)"
  else
    tail -n 40 "$work/checked.txt"
    fail "checked: status $status ($work/checked.txt)"
  fi
}

# --- kill ---------------------------------------------------------------------------------------------------

# The lines of metrics.jsonl without what is measured in time, and without the start-up lines.
training_lines() {
  grep -E '"event":"(step|eval)"' "$1/metrics.jsonl" | sed -E 's/"(ms|mfu|tokens_per_second)":[^,}]*,?//g'
}

same_state() {  # same_state RUN RUN STEP: the tensors of the last checkpoints and the losses of every step
  local folder file
  printf -v folder 'checkpoints/step-%08d' "$3"
  for file in "$1/$folder"/*.safetensors; do
    cmp "$file" "$2/$folder/${file##*/}" || return 1
  done
  diff <(training_lines "$1") <(training_lines "$2") | head -n 10
  [[ $(training_lines "$1" | sha256sum) == "$(training_lines "$2" | sha256sum)" ]]
}

kill_loop() {
  local kills=${KILLS:-12} steps=${KILL_STEPS:-3000} done_kills=0 attempts=0 status pid delay
  local whole=$work/kill-whole broken=$work/kill-broken
  local -a arguments=(configs/tiny.toml "--train.steps=$steps" --model.dropout=0.1 --checkpoint.every=50
                      --eval.every=100 --log.every=500)
  RANDOM=${KILL_SEED:=$((SRANDOM % 32768))}
  rm -rf "$whole" "$broken"
  local start=$EPOCHREALTIME
  if ! "$hearth" train "${arguments[@]}" "--run.dir=$whole" >"$work/kill-whole.txt" 2>&1; then
    tail -n 20 "$work/kill-whole.txt"
    fail "kill: the uninterrupted run failed"
    return
  fi
  # So that the kills fall all over the run: each process gets between 0.05 s and twice its share.
  local share
  share=$(awk -v a="$start" -v b="$EPOCHREALTIME" -v n="$kills" 'BEGIN { print (b - a) / (n + 1) }')
  : >"$work/kill-broken.txt"
  while ((++attempts <= 10 * kills)); do
    "$hearth" train "${arguments[@]}" "--run.dir=$broken" >>"$work/kill-broken.txt" 2>&1 &
    pid=$!
    if ((done_kills < kills)); then
      delay=$(awk -v s="$share" -v r="$RANDOM" 'BEGIN { printf "%.3f", 0.05 + 2 * s * r / 32768 }')
      sleep "$delay"
      kill -9 "$pid" 2>/dev/null
    fi
    wait "$pid" 2>/dev/null
    status=$?
    ((status == 137)) || break
    ((++done_kills))
  done
  if ((status != 0)); then
    tail -n 20 "$work/kill-broken.txt"
    fail "kill: status $status after $done_kills kills (KILL_SEED=$KILL_SEED, $work/kill-broken.txt)"
  elif ((done_kills * 2 < kills)); then
    fail "kill: only $done_kills of $kills kills came before the run was complete"
  elif ! same_state "$whole" "$broken" "$steps"; then
    fail "kill: the state after $done_kills kills differs (KILL_SEED=$KILL_SEED, $whole and $broken)"
  elif compgen -G "$broken/checkpoints/*.tmp*" >/dev/null; then
    fail "kill: a half-written checkpoint was left in $broken/checkpoints"
  else
    pass "kill: $done_kills kills, $steps steps, tensors and losses equal to the uninterrupted run's"
    rm -rf "$whole" "$broken"
  fi
}

# --- layouts ------------------------------------------------------------------------------------------------

layouts() {
  local log=$work/layouts.txt tests=$build/hearth-tests
  [[ -x $tests ]] || { fail "layouts: there is no $tests"; return; }
  if HEARTH_ALL_LAYOUTS=1 "$tests" --gtest_brief=1 --gtest_filter='Layouts/LayoutParity.*' >"$log" 2>&1; then
    pass "layouts: $(sed -nE 's/^\[  PASSED  \] ([0-9]+) tests?\.$/\1/p' "$log") agree with one process within 1e-10"
  else
    grep -E 'FAILED|Failure|actual' "$log" | head -n 20
    fail "layouts: some train another model ($log)"
  fi
}

# --- seeds --------------------------------------------------------------------------------------------------

seeds() {
  local count=${SEEDS:-3} seed run loss losses=() corpus=data/cache/shakespeare.txt
  if [[ $(data/fetch_shakespeare.sh 2>/dev/null | tail -n 1) != "$corpus" ]]; then
    skip "seeds: Tiny Shakespeare could not be fetched"
    return
  fi
  for ((seed = 1; seed <= count; ++seed)); do
    run=$work/seed-$seed
    rm -rf "$run"
    if ! "$hearth" train configs/shakespeare-char-cpu.toml "--run.dir=$run" "--train.seed=$seed" \
      >"$work/seed-$seed.txt" 2>&1; then
      tail -n 20 "$work/seed-$seed.txt"
      fail "seeds: the run with seed $seed failed"
      return
    fi
    loss=$(sed -nE 's/.*"event":"eval","step":2000,.*"val_loss":([0-9.]+).*/\1/p' "$run/metrics.jsonl" | tail -n 1)
    losses+=("${loss:-999}")
  done
  local verdict
  verdict=$(printf '%s\n' "${losses[@]}" | awk '{ sum += $1; if ($1 > most) most = $1 }
    END { printf "%s mean %.4f, largest %.4f", (sum / NR <= 1.91 && most <= 1.93 ? "ok" : "too large:"), sum / NR, most }')
  if [[ $verdict == ok* ]]; then
    pass "seeds: validation loss at step 2000 over $count seeds: ${verdict#ok } (${losses[*]})"
  else
    fail "seeds: validation loss at step 2000: $verdict (${losses[*]})"
  fi
}

# ------------------------------------------------------------------------------------------------------------

[[ -x $hearth ]] || { echo "tests/run_long.sh: there is no $hearth; run 'make test-long'." >&2; exit 2; }
mkdir -p "$work"
for part in "${parts[@]}"; do
  case $part in
    fuzz | soak | checked | layouts | seeds) "$part" ;;
    kill) kill_loop ;;
    *)
      echo "tests/run_long.sh: unknown part '$part'; known are fuzz soak checked kill layouts seeds." >&2
      exit 2
      ;;
  esac
done
closing="$passed passed, $failed failed"
((skipped)) && closing+=", $skipped skipped"
echo "$closing"
((failed == 0))
