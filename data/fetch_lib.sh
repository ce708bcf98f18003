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

# download URL FILE: with curl or wget, whichever is there.
download() {
  say "  trying $1"
  if command -v curl >/dev/null; then
    curl --fail --silent --show-error --location --connect-timeout 10 --retry 1 --output "$2" "$1"
  elif command -v wget >/dev/null; then
    wget --quiet --timeout=10 --tries=2 --output-document="$2" "$1"
  else
    say "  neither curl nor wget is installed"
    return 1
  fi
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
