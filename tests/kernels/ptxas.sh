#!/bin/bash
# Compiles every kernel with nvcc for every architecture, and fails on register spills and on ptxas warnings.
#
#   tests/kernels/ptxas.sh            compares with tests/kernels/ptxas.txt when that was made by the same nvcc
#   tests/kernels/ptxas.sh --record   writes that file: a line per kernel
#
# A line has the registers of a thread for each architecture, then, each the most of all architectures, the bytes of
# shared memory that the kernel declares (what a launch adds is in the kernel's source), the bytes of stack, and the bytes
# of registers that are spilled.
#
# nvcc and the architectures are those of scripts/cuda.sh.  Without nvcc it says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/../.."

record=tests/kernels/ptxas.txt
nvcc=$(scripts/cuda.sh nvcc)
if [ -z "$nvcc" ]; then
  echo "nvcc is not installed: the kernels were not compiled for GPUs"
  exit 0
fi

version=$("$nvcc" --version | sed -n 's/.*release [0-9.]*, \(V[0-9.]*\).*/\1/p')
options=()
archs=()
for arch in $(scripts/cuda.sh all); do
  options+=(-gencode "arch=compute_$arch,code=sm_$arch") archs+=("sm_$arch")
done
[ ${#archs[@]} -gt 0 ] || { scripts/cuda.sh problem 80 >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for source in kernels/*.cu; do
  "$nvcc" -std=c++20 -O3 --expt-relaxed-constexpr --threads 0 -I. -Isrc "${options[@]}" -Xptxas -v -fatbin \
    -o "$work/out.fatbin" "$source" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  cat "$work/log" >>"$work/all.log"
done

# ptxas prints, per kernel: "Compiling entry function 'NAME' for 'ARCH'", its spills, "Used N registers".
# The table has a line per kernel: registers for each architecture.
cat "$work/all.log" | c++filt | sed 's/(anonymous namespace):://g; s/hearth::kernels:://g; s/hearth:://g; s/void //' | awk -v archs="${archs[*]}" '
  BEGIN { count = split(archs, order, " ") }
  /Compiling entry function/ {
    split($0, part, "\047"); kernel = part[2]; arch = part[4]
    sub(/\(.*/, "", kernel)  # the arguments say nothing new
  }
  function most(table, name, value) { if (!(name in table) || value > table[name]) table[name] = value }
  /spill stores/ {
    most(stack, kernel, $1 + 0)
    most(spilled, kernel, $5 + $9)
    if ($1 + $5 + $9 > 0) print kernel, arch, $0 >"/dev/stderr"
  }
  /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/); registers[kernel, arch] = substr($0, RSTART + 5, RLENGTH - 5)
    most(shared, kernel, match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH - 11) + 0 : 0)
    kernels[kernel]
  }
  END {
    for (i = 1; i <= count; ++i) printf "%7s", order[i]
    print "  shared  stack  spilled"
    for (kernel in kernels) {
      for (i = 1; i <= count; ++i) printf "%7s", registers[kernel, order[i]]
      printf "%8d%7d%9d  %s\n", shared[kernel], stack[kernel], spilled[kernel], kernel
    }
  }' 2>"$work/spills" | (IFS= read -r head; echo "$head"; sort -k$((${#archs[@]} + 4))) >"$work/table"

failed=0
if grep -hE 'warning|C75[0-9][0-9]' "$work/all.log"; then failed=1; fi
if [ -s "$work/spills" ]; then
  echo "spilled registers or a stack:" >&2
  cat "$work/spills" >&2
  failed=1
fi
if [ "${1:-}" = --record ]; then
  { echo "# made by tests/kernels/ptxas.sh --record with nvcc $version"; cat "$work/table"; } >"$record"
elif [ -f "$record" ] && head -1 "$record" | grep -qF "nvcc $version"; then
  diff <(tail -n +2 "$record") "$work/table" || { echo "registers or shared memory changed: look, then tests/kernels/ptxas.sh --record" >&2; failed=1; }
fi
[ $failed = 0 ] && echo "$(($(wc -l <"$work/table") - 1)) kernels, ${#archs[@]} architectures: no spills, no warnings"
exit $failed
