#!/usr/bin/env bash
# Fetches the quickstart's corpus into data/cache: Tiny Shakespeare (1.1 MB), or, where its source cannot be
# reached, as much text of the King James Bible from Debian's package bible-kjv-text.
# The last line on stdout is the path of the corpus file.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/fetch_lib.sh

sum=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
shakespeare=data/cache/shakespeare.txt
bible=data/cache/bible-kjv.txt
bible_bytes=1115394 # about as much text as Tiny Shakespeare, so that runs cost the same

usage() {
  cat <<END
usage: data/fetch_shakespeare.sh

Makes one plain text file in data/cache and prints its path as the last line:
  $shakespeare  Tiny Shakespeare, downloaded and checked (sha256 ${sum:0:12}...)
  $bible    otherwise: the first 1.1 MB of the King James Bible, from the Debian packages
                          bible-kjv and bible-kjv-text
A good file that is already there is used at once; delete it to fetch again.
END
}

case "${1:-}" in
  "") ;;
  -h | --help) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac

finish() { # NAME FILE
  echo "corpus: $1"
  echo "$2"
  exit 0
}

# The text through the package's own reader, which is unpacked, with its library, where the system lacks it.
bible_verses() { # FOLDER: prints one verse a line, "Ge1:1 In the beginning ..."
  local range="gen1:1-rev22:21"
  if command -v bible >/dev/null; then
    bible -f "$range" </dev/null
    return
  fi
  command -v apt-get >/dev/null && scripts/setup.sh --unpack "$1/root" bible-kjv bible-kjv-text >&2 || return 1
  # The reader looks for its text in the current folder.
  (cd "$1/root/usr/lib" && LD_LIBRARY_PATH=$(unpacked_libraries "$1/root") ../bin/bible -f "$range" </dev/null)
}

if has_sha256 "$shakespeare" "$sum"; then finish "Tiny Shakespeare" "$shakespeare"; fi
if [ -s "$bible" ]; then finish "King James Bible (delete $bible to try Tiny Shakespeare again)" "$bible"; fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
say "fetching Tiny Shakespeare"
if download "$url" "$folder/input.txt" && install_checked "$folder/input.txt" "$sum" "$shakespeare"; then
  finish "Tiny Shakespeare" "$shakespeare"
fi

say "no Tiny Shakespeare from here; taking the King James Bible from Debian's packages instead"
if bible_verses "$folder" >"$folder/verses" && [ "$(wc -c <"$folder/verses")" -gt 4000000 ]; then
  # Without the references, and with an empty line between chapters.
  awk -v limit="$bible_bytes" '{
      chapter = $1; sub(/:.*/, "", chapter); sub(/^[^ ]+ +/, "")
      if (NR > 1 && chapter != previous) { printf "\n"; size += 1 }
      previous = chapter; size += length($0) + 1
      if (size > limit) exit
      print
    }' "$folder/verses" >"$folder/bible.txt"
  mkdir -p data/cache
  mv "$folder/bible.txt" "$bible.part"
  mv "$bible.part" "$bible"
  finish "King James Bible (Tiny Shakespeare could not be reached)" "$bible"
fi
die "no corpus could be fetched; put any plain text of about 1 MB at $bible and run this again"
