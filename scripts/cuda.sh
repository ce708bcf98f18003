#!/bin/bash
# What the Makefile asks about CUDA.  An architecture is written as in "sm_90a", without the "sm_".
#
#   scripts/cuda.sh nvcc              the path of nvcc; nothing if there is none
#   scripts/cuda.sh home              the folder of its headers and libraries
#   scripts/cuda.sh options           options of this nvcc that make its objects small
#   scripts/cuda.sh seen              the architectures of this machine's GPUs that nvcc can compile for
#   scripts/cuda.sh all               those that Hearth is written for and nvcc can compile for
#   scripts/cuda.sh why               why `seen` is empty and what to do, in one line
#   scripts/cuda.sh problem ARCH...   why these cannot be compiled for, in one line; nothing if they can
#
# nvcc is looked for as $NVCC, in PATH, and in $CUDA_HOME/bin or /usr/local/cuda/bin.
set -uo pipefail

written_for=(80 86 89 90a 100 120)
oldest=12.5  # has cudaGetDriverEntryPointByVersion

find_nvcc() {
  local candidate
  if [[ -n ${NVCC:-} ]]; then
    echo "$NVCC"
    return
  fi
  for candidate in "$(type -P nvcc)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    [[ -n $candidate && -x $candidate ]] && { echo "$candidate"; return; }
  done
}

# sm_90's kernels use what only 90a has.
with_suffix() { [[ $1 == 90 ]] && echo 90a || echo "$1"; }

# A sentence's middle if nvcc is older than $oldest; nothing if it is not, or does not say its version.
too_old() {
  [[ -n $release ]] || return 0
  [[ $(printf '%s\n' "$oldest" "$release" | sort -V | head -n 1) == "$oldest" ]] ||
    echo "$nvcc is of CUDA $release, and Hearth needs $oldest or newer"
}

compiles() {  # compiles ARCH: nvcc knows it
  [[ -z $(too_old) ]] && grep -qx "compute_${1%a}" <<<"$known"
}

# Compute capabilities of the GPUs, "9.0" a line, each once.
capabilities() {
  type -P nvidia-smi >/dev/null || return 0
  timeout 20 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -Ex '[0-9]+\.[0-9]' | sort -u
}

# The architecture for a capability: its own, or the nearest older one of the same generation, whose code it runs.
arch_for() {
  local major=${1%.*} minor=${1#*.} arch
  ((major >= 8)) || return 0
  for ((; minor >= 0; --minor)); do
    arch=$(with_suffix "$major$minor")
    compiles "$arch" && { echo "$arch"; return; }
  done
}

seen() {
  [[ -n $nvcc ]] || return 0
  local capability
  for capability in $(capabilities); do arch_for "$capability"; done | sort -nu | paste -sd' '
}

why() {
  local gpus
  gpus=$(capabilities | paste -sd, | sed 's/,/, /g')
  if [[ -z $gpus ]]; then
    echo "no NVIDIA GPU here: this build is for the CPU only; to compile for GPUs elsewhere: make ARCHS=\"80 90a\""
  elif [[ -z $nvcc ]]; then
    echo "a GPU of compute capability $gpus, but no nvcc: this build is for the CPU only; install the CUDA toolkit" \
      "($oldest or newer), or set CUDA_HOME to it, and make again"
  elif [[ -n $(too_old) ]]; then
    echo "$(too_old): this build is for the CPU only; install a newer CUDA toolkit, or set CUDA_HOME to it, and make again"
  elif [[ -z $(seen) ]]; then
    echo "$nvcc cannot compile for this GPU (compute capability $gpus; Hearth needs 8.0 or newer): this build is for the" \
      "CPU only; for a newer GPU, install a newer CUDA toolkit"
  fi
}

problem() {
  local arch
  if [[ -z $nvcc ]]; then
    echo "ARCHS=\"$*\" needs nvcc, which is neither in PATH nor in CUDA_HOME/bin; install the CUDA toolkit, or build for the" \
      "CPU with ARCHS="
    return
  elif [[ -n $(too_old) ]]; then
    echo "ARCHS=\"$*\": $(too_old); install a newer CUDA toolkit, or build for the CPU with ARCHS="
    return
  fi
  for arch; do
    if ! [[ $arch =~ ^[0-9]+a?$ ]] || ((${arch%a} < 80)); then
      echo "ARCHS: '$arch' is no architecture of 80 or newer; expected some of: $(all)"
      return
    elif ! compiles "$arch"; then
      echo "ARCHS: $nvcc cannot compile for '$arch', only for: $(all)"
      return
    fi
  done
}

all() {
  local arch
  for arch in "${written_for[@]}"; do
    if compiles "$arch"; then echo "$arch"; fi
  done | paste -sd' '
}

home() {  # nvcc says it itself, whatever link or wrapper it was started through
  [[ -n $nvcc ]] || return 0
  local top
  top=$($nvcc --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
  [[ -n $top ]] && realpath -m "$top"
}

nvcc=$(find_nvcc)
known='' release=''
if [[ -n $nvcc && " seen all why problem " == *" $1 "* ]]; then
  known=$($nvcc --list-gpu-arch 2>/dev/null)
  release=$($nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p' | head -n 1)
fi
case $1 in
  nvcc) echo "$nvcc" ;;
  options) [[ -n $nvcc ]] && $nvcc --help | grep -q -e --compress-mode && echo --compress-mode=size ;;
  home | seen | why | all) "$1" ;;
  problem) problem "${@:2}" ;;
esac
exit 0
