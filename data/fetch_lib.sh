# What the fetch scripts share; sourced by them, not run.  Progress goes to stderr: stdout carries results only.
# shellcheck shell=bash

say() { echo "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}

# has_sha256 FILE SUM: whether the file exists and has this checksum.
has_sha256() {
  [ -f "$1" ] || return 1
  local sum
  if command -v sha256sum >/dev/null; then
    sum=$(sha256sum "$1")
  else
    sum=$(shasum -a 256 "$1")
  fi
  [ "${sum%% *}" = "$2" ]
}

# What scripts/setup.sh unpacked where there is no root, and where its libraries lie.
unpacked=build/deps

# unpacked_libraries FOLDER: the value of LD_LIBRARY_PATH for programs of packages unpacked there.
unpacked_libraries() {
  local folder path=
  for folder in "$1"/usr/lib/*-linux-gnu* "$1"/lib/*-linux-gnu*; do
    [ -d "$folder" ] && path=$path${path:+:}$(realpath "$folder")
  done
  echo "$path"
}

# downloader URL FILE: one attempt, with the system's curl or wget or with the curl of setup.sh.
downloader() {
  local -a quietly=(--fail --silent --show-error --location --connect-timeout 10 --retry 1)
  local trust=$unpacked/etc/ssl/certs/ca-certificates.crt # only where the system has no certificates
  [ -e "$trust" ] || trust=
  if command -v curl >/dev/null; then
    curl "${quietly[@]}" ${trust:+--cacert "$trust"} --output "$2" "$1"
  elif command -v wget >/dev/null; then
    wget --quiet --timeout=10 --tries=2 ${trust:+--ca-certificate="$trust"} --output-document="$2" "$1"
  else
    LD_LIBRARY_PATH=$(unpacked_libraries $unpacked) $unpacked/usr/bin/curl "${quietly[@]}" \
      ${trust:+--cacert "$trust"} --output "$2" "$1"
  fi
}

# download URL FILE
download() {
  scripts/setup.sh --downloader || say "  trying without"
  say "  trying $1"
  downloader "$1" "$2"
}

# install_checked FILE SUM TARGET: moves a finished file to its place, all at once, if its checksum is right.
install_checked() {
  if ! has_sha256 "$1" "$2"; then
    say "  what arrived has another checksum than expected; not used"
    return 1
  fi
  mkdir -p "$(dirname "$3")"
  mv "$1" "$3.part"
  mv "$3.part" "$3"
}
