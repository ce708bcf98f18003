#!/bin/bash
# Collects programs, the shared libraries they need, and what scripts/gpu_check.sh reads, in BUILD/bundle: a folder to
# copy to machines where nothing can be installed.
#
#   scripts/bundle.sh BUILD PROGRAM...        (make bundle calls it)
#
# Everything but glibc comes along, libstdc++ too: glibc must be the target's own, because it belongs to its kernel and
# its driver.  The programs find the rest in lib/ beside them.  Fails if a library would come from elsewhere, or if the
# folder is larger than 60 MiB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=$1
shift
bundle=$build/bundle
limit_mib=60

fail() { printf 'bundle: %s\n' "$1" >&2; exit 1; }

# "name path" of the libraries that a program needs, without glibc's.
libraries() {
  env -i PATH="$PATH" ldd "$1" | awk '$2 == "=>" { print $1, ($3 == "not" ? "-" : $3) }' |
    grep -Ev '^(libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so\.|^linux-vdso'
}

rm -rf "$bundle"
mkdir -p "$bundle/lib" "$bundle/configs" "$bundle/data" "$bundle/tests/pytorch"
for program; do
  while read -r name path; do
    [[ $path != - ]] || fail "$build/$program needs $name, which is not found."
    [[ -e $bundle/lib/$name ]] || cp -L "$path" "$bundle/lib/$name"
  done < <(libraries "$build/$program")
  cp "$build/$program" "$bundle/"
done
strip --strip-unneeded "${@/#/$bundle/}" "$bundle"/lib/*
cp scripts/gpu_check.sh LICENSE "$bundle/"
cp configs/tiny.toml configs/gpt2-124m.toml "$bundle/configs/"
cp data/tiny.txt "$bundle/data/"
cp tests/pytorch/{baseline,gpu_step}.py "$bundle/tests/pytorch/"

# Nothing may come from this machine but glibc.
here=$(realpath "$bundle")
for program; do
  while read -r name path; do
    [[ $(realpath -m "$path") == "$here/lib/"* ]] ||
      fail "$program takes $name from $path and not from the bundle; delete $build/$program and make again."
  done < <(libraries "$bundle/$program")
done
size=$(du -sm "$bundle" | cut -f1)
((size <= limit_mib)) || fail "$bundle is $size MiB, more than $limit_mib; choose fewer ARCHS."
glibc=$(objdump -T "${@/#/$bundle/}" "$bundle"/lib/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "$bundle: $size MiB, for $(uname -m) with glibc ${glibc#GLIBC_} or newer; check a GPU with $bundle/gpu_check.sh"
