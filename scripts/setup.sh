#!/bin/bash
# Installs what is missing to build Hearth; does nothing, fast, when nothing is.
#
#   scripts/setup.sh [--local | --list | --downloader | --unpack FOLDER PACKAGE...]
#
# Looks for a compiler and for the headers and libraries below, where the compiler looks (so what was
# installed by hand counts too).  What is missing comes from apt: as root, through sudo, or, without root,
# downloaded and unpacked into build/deps, where the Makefile looks.  --local asks for build/deps even where
# root could be had; --list prints the packages; --downloader brings what the scripts in data/ fetch with, which
# the build does without; --unpack brings other packages, and what they need, into a folder, as any user.  Exit codes: 0 done, 1 the installation failed, 2 this system needs a hand (the message
# says which).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# package, then files that prove it: a header below an include folder, lib... below a library folder.
needs=(
  "libdnnl-dev dnnl.hpp libdnnl.so"
  "libgloo-dev gloo/context.h libgloo.so"
  "libcxxopts-dev cxxopts.hpp"
  "libtomlplusplus-dev toml++/toml.h"
  "nlohmann-json3-dev nlohmann/json.hpp"
  "libpcre2-dev pcre2.h libpcre2-8.so"
  "libgtest-dev gtest/gtest.h libgtest.a"
)
compiler=${CXX:-g++}
deps=build/deps
certificates=etc/ssl/certs/ca-certificates.crt

fail() {  # fail CODE MESSAGE
  printf 'setup: %s\n' "$2" >&2
  exit "$1"
}

in_any() {  # in_any FILE FOLDER...: true if a folder holds the file (a dangling link does not count)
  local file=$1 folder
  shift
  for folder; do
    [[ -n $folder && -e $folder/$file ]] && return 0
  done
  return 1
}

has_file() {  # has_file FILE: is there, as a header or as a library (a static one does as well)
  local -a extra
  if [[ $1 == lib* ]]; then
    IFS=: read -r -a extra <<<"${LIBRARY_PATH:-}"
    local folders=("$deps/usr/lib" "$deps"/usr/lib/*-linux-gnu* /usr/lib/*-linux-gnu* /usr/lib /usr/lib64
                   /usr/local/lib /usr/local/lib64 "${extra[@]}")
    in_any "$1" "${folders[@]}" || in_any "${1%.*}.a" "${folders[@]}" || in_any "${1%.*}.so" "${folders[@]}"
  else
    IFS=: read -r -a extra <<<"${CPATH:-}:${CPLUS_INCLUDE_PATH:-}"
    in_any "$1" "$deps/usr/include" "$deps"/usr/include/*-linux-gnu* /usr/include /usr/include/*-linux-gnu* \
      /usr/local/include "${extra[@]}"
  fi
}

find_missing() {  # sets missing=(packages): for the build, or, with --downloader, for the scripts in data/
  if ((downloader)); then
    find_missing_downloader
  else
    find_missing_for_build
  fi
}

find_missing_for_build() {
  local need package file
  missing=()
  for need in "${needs[@]}"; do
    read -r -a files <<<"$need"
    package=${files[0]}
    for file in "${files[@]:1}"; do
      has_file "$file" || { missing+=("$package"); break; }
    done
  done
  type -P make >/dev/null || missing+=(make)
  type -P "${compiler%% *}" >/dev/null || missing+=(g++)
}

# curl or wget, and the certificates of the authorities that https trusts, where the common systems keep them.
find_missing_downloader() {
  missing=()
  [[ -x $deps/usr/bin/curl ]] || type -P curl >/dev/null || type -P wget >/dev/null || missing+=(curl)
  in_any "$certificates" "$deps" /. || in_any tls/certs/ca-bundle.crt /etc/pki || in_any ca-bundle.pem /etc/ssl ||
    in_any cert.pem /etc/ssl || missing+=(ca-certificates)
}

check_compiler() {  # C++20 as we use it needs g++ 12 or clang++ 14
  local version least=12
  version=$($compiler -dumpversion) || fail 2 "'$compiler' does not run; install g++ 12 or newer, or set CXX."
  [[ $compiler == *clang* ]] && least=14
  ((${version%%.*} >= least)) && return
  fail 2 "'$compiler' is version $version, Hearth needs g++ >= 12 or clang++ >= 14.
       Install a newer one (for example: apt-get install g++-12) and build with: make CXX=g++-12"
}

apt_lists_empty() { ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; }

install_as_root() {  # install_as_root [sudo...]: apt-get install, with fresh lists if the present ones do not do
  local -a run=("$@" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600)
  local -a install=(install --yes --no-install-recommends "${missing[@]}")
  if ! apt_lists_empty && "${run[@]}" "${install[@]}" >"$log" 2>&1; then
    return 0
  fi
  echo "setup: apt-get update" >&2
  "${run[@]}" update >>"$log" 2>&1 || true  # one dead source must not stop the others: the install decides
  "${run[@]}" "${install[@]}" >>"$log" 2>&1
}

# Links in a -dev package name a library beside them; where that one is installed in the system already, it is
# not in build/deps, so the link is turned to the system's.
repair_links() {  # repair_links FOLDER
  local link name found
  find "$1" -xtype l -name '*.so*' | while read -r link; do
    name=$(readlink "$link")
    for found in /usr/lib/*-linux-gnu*/"${name##*/}" /lib/*-linux-gnu*/"${name##*/}" \
      /usr/lib/*-linux-gnu*/"${link##*/}".[0-9]*; do
      [[ -e $found ]] && { ln -sfn "$found" "$link"; break; }
    done
  done
}

# Some packages have their shared libraries in lib or straight in usr/lib.  All are gathered in usr/lib/TRIPLE, so
# that one folder is enough to link and to run with.
gather_libraries() {  # gather_libraries FOLDER
  local folder triple
  triple=$($compiler -print-multiarch 2>/dev/null) || triple=
  if [[ -z $triple ]]; then
    folder=$(compgen -G '/usr/lib/*-linux-gnu*' | head -n 1)
    triple=${folder##*/}
  fi
  mkdir -p "$1/usr/lib/$triple" || return 1
  if [[ -d $1/lib && ! -L $1/lib ]]; then
    cp -a "$1/lib/." "$1/usr/lib/" && rm -r "${1:?}/lib" || return 1
  fi
  find "$1/usr/lib" -mindepth 1 -maxdepth 1 -name 'lib*.so*' ! -type d -exec mv -t "$1/usr/lib/$triple" {} +
}

# The bundle of certificates that the package ca-certificates makes when it is installed; unpacking alone does not.
bundle_certificates() {  # bundle_certificates FOLDER
  [[ -d $1/usr/share/ca-certificates && ! -e $1/$certificates ]] || return 0
  mkdir -p "$1/${certificates%/*}" && cat "$1"/usr/share/ca-certificates/*/*.crt >"$1/$certificates"
}

# Names the packages, and those that they need and the system lacks, and downloads them into the folder.  Packages
# that apt would only upgrade are left out: a second libc must not come in.
download_packages() {  # download_packages ARCHIVES APT-OPTION... -- PACKAGE...: sets wanted=(packages)
  local archives=$1
  local -a apt=(apt-get -qq -o APT::Sandbox::User=root)
  shift
  while [[ $1 != -- ]]; do
    apt+=("$1")
    shift
  done
  shift
  # shellcheck disable=SC2207  # package names have no blanks
  wanted=($("${apt[@]}" install --simulate --no-install-recommends "$@" 2>>"$log" |
    awk '$1 == "Inst" && $3 !~ /^\[/ { print $2 }'))
  ((${#wanted[@]})) && (cd "$archives" && "${apt[@]}" download "${wanted[@]}" >>"$log" 2>&1)
}

# Downloads packages, and what they need, and unpacks them into a folder, beside what is there already.
unpack() {  # unpack FOLDER PACKAGE...
  local folder=$1 archive
  shift
  local -a wanted own_lists
  local staging=$folder.new archives
  archives=$(realpath -m "$folder.archives")
  rm -rf "$staging" "$archives"
  mkdir -p "$staging" "$archives/partial" "$archives/state/lists/partial" || return 1
  if apt_lists_empty || ! download_packages "$archives" -- "$@"; then
    # Package lists of our own: the system's can only be brought up to date by root.
    own_lists=(-o "Dir::State=$archives/state" -o Dir::State::status=/var/lib/dpkg/status -o "Dir::Cache=$archives")
    echo "setup: apt-get update (lists of our own)" >&2
    apt-get -qq -o APT::Sandbox::User=root "${own_lists[@]}" update >>"$log" 2>&1 || true
    download_packages "$archives" "${own_lists[@]}" -- "$@" || return 1
  fi
  echo "setup: unpacking into $folder: ${wanted[*]}" >&2
  if [[ -d $folder ]]; then
    cp -a "$folder/." "$staging/" || return 1
  fi
  for archive in "$archives"/*.deb; do
    dpkg-deb -x "$archive" "$staging" || return 1
  done
  gather_libraries "$staging" || return 1
  repair_links "$staging"
  bundle_certificates "$staging" || return 1
  rm -rf "$folder.old"
  [[ -d $folder ]] && mv "$folder" "$folder.old"
  mv "$staging" "$folder" || return 1
  rm -rf "$folder.old" "$archives"
}

ask_sudo() {
  echo "setup: sudo apt-get install (to use no root: Ctrl-C, then scripts/setup.sh --local)" >&2
  sudo -v
}

install_missing() {
  echo "setup: missing: ${missing[*]}" >&2
  if [[ $local_only == 0 && $EUID == 0 ]]; then
    install_as_root
  elif [[ $local_only == 0 ]] && type -P sudo >/dev/null && sudo -n true 2>/dev/null; then
    install_as_root sudo -n
  elif [[ $local_only == 0 && -t 0 && -t 2 ]] && type -P sudo >/dev/null && ask_sudo; then
    install_as_root sudo
  else
    if [[ " ${missing[*]} " == *" g++ "* || " ${missing[*]} " == *" make "* ]]; then
      fail 2 "no compiler or no make, and no root to install them with. Ask an administrator for:
       apt-get install g++ make"
    fi
    unpack "$deps" "${missing[@]}"
  fi
}

begin_changes() {
  log=$PWD/build/setup.log
  mkdir -p build
  exec 9>build/setup.lock
  flock 9  # two makes at once: the second waits, then finds everything there
  : >"$log"
}

local_only=0 downloader=0
case ${1:-} in
  "") ;;
  --local) local_only=1 ;;
  --downloader) downloader=1 ;;
  --list)
    printf '%s\n' g++ make curl ca-certificates "${needs[@]%% *}"
    exit 0
    ;;
  --unpack)
    (($# >= 3)) || fail 2 "--unpack wants a folder and packages."
    begin_changes
    unpack "${@:2}" || fail 1 "could not unpack ${*:3} (all output: $log). Is there a network?"
    exit 0
    ;;
  *) fail 2 "unknown argument '$1'; known are --local, --list, --downloader and --unpack." ;;
esac

find_missing
if ((${#missing[@]} == 0)); then
  ((downloader)) || check_compiler
  exit 0
fi
if ((downloader)) && ! type -P apt-get >/dev/null; then
  fail 2 "missing: ${missing[*]}. This system has no apt; install curl or wget, and certificates, its own way."
fi
if ! type -P apt-get >/dev/null || ! type -P dpkg-deb >/dev/null; then
  fail 2 "missing: ${missing[*]}
       These are Debian's package names and this system has no apt. Install the same libraries its own way:
       g++ >= 12, GNU make, oneDNN, Gloo, cxxopts, toml++, nlohmann-json, PCRE2 (8 bit), GoogleTest,
       with headers and libraries where the compiler finds them (or set CPATH and LIBRARY_PATH)."
fi
begin_changes
find_missing
if ((${#missing[@]})); then
  if ! install_missing; then
    tail -n 15 "$log" >&2
    fail 1 "could not install ${missing[*]} (all output: $log). Is there a network?"
  fi
  find_missing
  ((${#missing[@]} == 0)) || fail 1 "apt reported success, but these are still not found: ${missing[*]}"
fi
((downloader)) || check_compiler
