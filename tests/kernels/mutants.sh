#!/bin/bash
# Are the kernel tests able to fail?  tests/kernels/mutants.sh [BUILD]        (make mutants; part of make test)
#
# Each mutant is a copy of a real kernel, in BUILD/mutants, with one line deleted or changed: a barrier, a wait for
# an asynchronous copy, the zero fill beyond a matrix, a 64-bit offset.  It is linked with the suite of that kernel, which must fail;
# the suite must pass with the kernel as it is.  A line that is no longer there exactly once is a failure too.
# Prints what happened to each; the last line is "N killed, N survived".
#
# The Makefile hands over EMULATED_CXX, the compiler with its flags for kernels on the emulator, CHECK_FLAGS for the race
# detector, and EMULATED_LINK.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

build=${1:-build}
objects=$build/obj
mutants=$build/mutants
: "${EMULATED_CXX:?start this with make mutants}" "${CHECK_FLAGS:?}" "${EMULATED_LINK:?start this with make mutants}"

# ONLY, a regular expression, chooses some.
# name | kernel | file that changes | its line, exact but for indentation | what it becomes | suite | filter | "checked"
# where only the race detector can see it: the emulator's lanes take turns, and its copies see every write.
table() {
  grep -E "^(${ONLY:-.*})\|" <<'TABLE'
gemm-barrier|gemm_sm80|gemm_sm80.cu|__syncthreads();  // (a) all see the tiles of `step` (b) all are done with those of step - 1||gemm_sm80|GemmSm80.ForwardIsExact/*
gemm-no-wait|gemm_sm80|gemm_sm80.cu|ptx::cp_async_wait<T::stages - 2>();||gemm_sm80|GemmSm80.ForwardIsExact/*
gemm-wait-too-shallow|gemm_sm80|gemm_sm80.cu|ptx::cp_async_wait<T::stages - 2>();|ptx::cp_async_wait<T::stages - 1>();|gemm_sm80|GemmSm80.ForwardIsExact/*
gemm-no-empty-groups|gemm_sm80|gemm_sm80.cu|ptx::cp_async_commit();  // empty groups too, so that the count of groups is the count of steps|if (step < work.end) ptx::cp_async_commit();|gemm_sm80|GemmSm80.ForwardIsExact/*
gemm-ring-still-read|gemm_sm80|gemm_sm80.cu|__syncthreads();  // all are done with the ring, and the column sums are complete||gemm_sm80|GemmSm80.WeightGradientAddsExactly/*
gemm-unstaged|gemm_sm80|gemm_sm80.cu|__syncthreads();  // C is staged||gemm_sm80|GemmSm80.ForwardIsExact/*
wgmma-no-wait-full|gemm_sm90|gemm_sm90.cu|__device__ __forceinline__ void wait_full() const { ptx::mbarrier_wait(full(), parity); }|__device__ __forceinline__ void wait_full() const {}|gemm_sm90|GemmSm90.ForwardIsExact/*
wgmma-no-wait-empty|gemm_sm90|gemm_sm90.cu|ptx::mbarrier_wait(empty(), parity ^ 1);||gemm_sm90|GemmSm90.ForwardIsExact/*
wgmma-no-release|gemm_sm90|gemm_sm90.cu|stage.release();||gemm_sm90|GemmSm90.ForwardIsExact/*
wgmma-no-wait-for-sums|gemm_sm90|gemm_sm90.cu|ptx::wgmma_wait<0>();  // the other warpgroup's products keep the tensor cores busy||gemm_sm90|GemmSm90.ForwardIsExact/*
wgmma-staging-fence|gemm_sm90|gemm_sm90.cu|ptx::fence_proxy_async();  // of the panel's writes||gemm_sm90|GemmSm90.ForwardIsExact/*_lazy|checked
wgmma-staging-barrier|gemm_sm90|gemm_sm90.cu|__syncwarp();              // the panel is written, and TMA sees it||gemm_sm90|GemmSm90.ForwardIsExact/*_lazy|checked
wgmma-staging-still-read|gemm_sm90|gemm_sm90.cu|if (lane_index() == 0) ptx::bulk_wait_read<staging_panels - 1>();||gemm_sm90|GemmSm90.ForwardIsExact/*
wgmma-staging-unfinished|gemm_sm90|gemm_sm90.cu|if (lane_index() == 0) ptx::bulk_wait_read<0>();||gemm_sm90|GemmSm90.ForwardIsExact/*
wgmma-release-before-loads|gemm_sm90|gemm_sm90.cu|__syncwarp();  // all lanes are done||gemm_sm90|GemmSm90.GradientTimesGeluDerivative/*_lazy|checked
gemm-no-zero-fill|gemm_sm80|tiles.cuh|ptx::cp_async16(tile.at(row, chunk), source, valid, site);|ptx::cp_async16(tile.at(row, chunk), source, true, site);|gemm_sm80|GemmSm80.ForwardIsExact/*
attention-barrier|attention|attention.cu|__syncthreads();  // (a) the tile is visible to all (b) all are done with the tile before||attention|Attention.*
attention-no-wait|attention|attention.cu|ptx::cp_async_wait<0>();||attention|Attention.*
attention-dkv-barrier|attention_backward|attention_backward.cu|__syncthreads();  // (a) the tiles of `step` are visible to all (b) all are done with those of step - 1||attention|Attention.*
attention-dq-barrier|attention_backward|attention_backward.cu|__syncthreads();  // (a) the tile is visible to all (b) all are done with the tile before||attention|Attention.*
decode-barrier|attention_decode|attention_decode.cu|__syncthreads();  // the partial results of all groups are visible||attention|*AttentionDecode*
reduce-called-twice|cross_entropy|simt.cuh|block_sync(site);  // whoever read `scratch` before is done||cross_entropy|*CrossEntropy*
reduce-too-early|cross_entropy|simt.cuh|block_sync(site);  // all partial results are visible||cross_entropy|*CrossEntropy*
loss-reads-padding|cross_entropy|cross_entropy.cu|if (column + j >= p.shard.valid) x[j] = minus_infinity;  // padding||cross_entropy|*CrossEntropy*
norm-sums-barrier|residual_norm|residual_norm.cu|__syncthreads();  // all warps' sums are visible||residual_norm|*ResidualNorm.Backward*
unfused-sums-barrier|unfused|unfused.cu|__syncthreads();  // they are visible||unfused|Unfused.*
scatter-counts-barrier|embedding|embedding.cu|__syncthreads();  // (a) the warps' counts are visible (b) all are done with the list that is overwritten||embedding|*Embedding.TokensBackward*
offset-of-rows|cross_entropy|rows.h|constexpr T* row(int64_t r) const { return data + r * stride; }|constexpr T* row(int64_t r) const { return data + static_cast<int32_t>(r * stride); }|offsets|FarRows.CrossEntropy
offset-of-tiles|gemm_sm80|tiles.cuh|const bf16* source = valid ? from + row * stride + chunk * chunk_elements : from;|const bf16* source = valid ? from + static_cast<int32_t>(row * stride) + chunk * chunk_elements : from;|offsets|FarRows.Gemm
scatter-entries-barrier|embedding|embedding.cu|__syncthreads();  // (a) the entries are visible (b) all have read the warps' counts||embedding|*Embedding.TokensBackward*
TABLE
}

# Object files of all sources but tests, with the kernel's own replaced by $2.
link_list() {  # link_list KERNEL OBJECT BUILD
  local source
  for source in tests/emulator/*.cpp kernels/*.cu; do
    case $source in
      *_test.cpp | tests/emulator/planted_*) ;;
      "kernels/$1.cu") echo "$2" ;;
      kernels/*) echo "$objects/$3/$source.o" ;;
      *) echo "$objects/emulated/$source.o" ;;
    esac
  done
}

# Says on one line whether the suite fails with the changed kernel; 0 when it does.
try_mutant() {
  local name kernel file line changed suite filter kind folder source count
  IFS='|' read -r name kernel file line changed suite filter kind <<<"$1"
  kind=${kind:-emulated}
  folder=$mutants/$name
  mkdir -p "$folder/kernels"
  count=$(LINE=$line awk '{ sub(/^ */, "") } $0 == ENVIRON["LINE"] { ++n } END { print n + 0 }' "kernels/$file")
  if ((count != 1)); then
    echo "FAILED: $name: kernels/$file has the line \"$line\" $count times; change tests/kernels/mutants.sh"
    return 1
  fi
  LINE=$line CHANGED=$changed awk '{ bare = $0; sub(/^ */, "", bare); print bare == ENVIRON["LINE"] ? ENVIRON["CHANGED"] : $0 }' \
    "kernels/$file" >"$folder/kernels/$file"
  source=kernels/$kernel.cu
  [[ -f $folder/$source ]] && source=$folder/$source
  # The flags are many words.  A copy that differs in one line needs no optimisation to run for a second.
  # shellcheck disable=SC2046,SC2086
  if ! $EMULATED_CXX $([[ $kind == checked ]] && echo "$CHECK_FLAGS") -iquote "$folder" -O1 -w -x c++ -c "$source" -o "$folder/kernel.o" 2>"$folder/log" ||
    ! ${EMULATED_CXX%% *} -o "$folder/tests" $(link_list "$kernel" "$folder/kernel.o" "$kind") \
      "$objects/$kind/tests/kernels/${suite}_test.cpp.o" "$build/libhearth.a" $EMULATED_LINK 2>>"$folder/log"; then
    tail -n 20 "$folder/log"
    echo "FAILED: $name does not compile ($folder/log)"
    return 1
  fi
  timeout -k 5 60 "$folder/tests" --gtest_color=no --gtest_fail_fast --gtest_filter="$filter" \
    >"$folder/log" 2>&1 </dev/null
  local status=$?
  rm -f "$folder/tests" "$folder/kernel.o"
  if ! grep -q '^\[ RUN ' "$folder/log"; then
    echo "FAILED: $name: no test ran with --gtest_filter=$filter ($folder/log)"
  elif ((status == 0)); then
    echo "FAILED: $name survived the tests $filter: kernels/$file without \"$line\""
  else
    echo "killed: $name"
    return 0
  fi
  return 1
}

rm -rf "$mutants"
mkdir -p "$mutants"
# The kernels as they are.
filters=$(table | awk -F'|' '!seen[$7]++ { printf "%s%s", (NR > 1 ? ":" : ""), $7 }')
if ! "$build/hearth-kernel-tests" --gtest_brief=1 --gtest_filter="$filters" >"$mutants/unchanged.txt" 2>&1; then
  tail -n 20 "$mutants/unchanged.txt"
  echo "FAILED: the suites do not pass with the kernels as they are ($mutants/unchanged.txt)"
  echo "0 killed, 1 survived"
  exit 1
fi
export -f try_mutant link_list
export build objects mutants EMULATED_CXX CHECK_FLAGS EMULATED_LINK
# shellcheck disable=SC2016  # the inner shell's dollars
table | xargs -d '\n' -P "$(nproc)" -I{} bash -c 'try_mutant "$1"' mutant {} >"$mutants/results.txt"
cat "$mutants/results.txt"
killed=$(grep -c '^killed: ' "$mutants/results.txt")
total=$(table | wc -l)
echo "$killed killed, $((total - killed)) survived"
((killed == total))
