#!/usr/bin/env bash
# Fetches FineWeb-10B, already tokenised with GPT-2's tokenizer in llm.c shards of 10^8 tokens, into
# data/cache/fineweb10B.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/fetch_lib.sh

folder=data/cache/fineweb10B
base=https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main
most=103

usage() {
  cat <<END
usage: data/fetch_fineweb.sh [--dry-run] N

Downloads the validation shard and the first N training shards (1..$most, 200 MB and 10^8 tokens each) of
FineWeb-10B into $folder.  Shards that are already there are kept.  --dry-run prints the addresses only.
Use them with
  data.train = "$folder/fineweb_train_*.bin"    data.val = "$folder/fineweb_val_*.bin"
END
}

dry_run=
count=
for argument in "$@"; do
  case "$argument" in
    -h | --help) usage && exit 0 ;;
    --dry-run) dry_run=1 ;;
    *[!0-9]* | "") usage >&2 && exit 2 ;;
    *) count=$((10#$argument)) ;;
  esac
done
if [ -z "$count" ]; then usage >&2 && exit 2; fi
if [ "$count" -lt 1 ] || [ "$count" -gt "$most" ]; then die "N is $count; FineWeb-10B has training shards 1 to $most"; fi

# A shard is good when its size is the one its header announces: 1024 + 2 * tokens.
is_complete() {
  [ -f "$1" ] || return 1
  local magic tokens
  magic=$(od -An -tu4 -N4 "$1" | tr -d ' ')
  tokens=$(od -An -tu4 -j8 -N4 "$1" | tr -d ' ')
  [ "$magic" = 20240520 ] && [ "$(wc -c <"$1")" -eq $((1024 + 2 * tokens)) ]
}

shards=(fineweb_val_000000.bin)
for ((i = 1; i <= count; ++i)); do
  shards+=("$(printf 'fineweb_train_%06d.bin' "$i")")
done
for shard in "${shards[@]}"; do
  if [ -n "$dry_run" ]; then
    echo "$base/$shard"
    continue
  fi
  if is_complete "$folder/$shard"; then continue; fi
  mkdir -p "$folder"
  download "$base/$shard" "$folder/$shard.part" || die "$shard could not be downloaded; run this again to go on"
  is_complete "$folder/$shard.part" || die "$folder/$shard.part is no complete shard; delete it and run this again"
  mv "$folder/$shard.part" "$folder/$shard"
done
if [ -z "$dry_run" ]; then echo "$folder"; fi
