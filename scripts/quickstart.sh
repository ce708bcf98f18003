#!/bin/bash
# `make quickstart` after the build: fetch a small corpus, train a small GPT on it, print what it writes.
#
# The run goes into runs/quickstart.  Called again it goes on from the newest checkpoint; once the run is
# complete it only prints another sample.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

hearth=${HEARTH_BINARY:-build/hearth}
run=runs/quickstart
default_corpus=data/cache/shakespeare.txt

[[ -x $hearth ]] || { echo "quickstart: there is no $hearth; run 'make quickstart'." >&2; exit 2; }

fetched=$(data/fetch_shakespeare.sh)
corpus=${fetched##*$'\n'}
[[ -s $corpus ]] || { echo "quickstart: data/fetch_shakespeare.sh named no corpus but '$corpus'." >&2; exit 65; }

arguments=(configs/shakespeare-char-cpu.toml "--run.dir=$run")
prompt=$'ROMEO:\n'
echo
if [[ $corpus == "$default_corpus" ]]; then
  echo "Corpus: Tiny Shakespeare ($corpus, $(wc -c <"$corpus") bytes), one token a character."
else
  echo "Corpus: $corpus ($(wc -c <"$corpus") bytes), one token a character, since Tiny Shakespeare could not be"
  echo "fetched: losses will differ from those in the README."
  arguments+=("--data.train=$corpus")
  prompt="And the "
fi
echo "Training a GPT on it; Ctrl-C saves, the same command goes on."
echo
"$hearth" train "${arguments[@]}"

echo
echo "What it writes now:"
echo
"$hearth" generate "$run" --prompt "$prompt" --tokens 500 --temperature 0.8 --seed "$((SRANDOM % 1000000))"

cat <<END

Next:
  $hearth generate $run --prompt "KING " --temperature 0.6      another sample
  $hearth train configs/shakespeare-char-cpu.toml --run.dir=runs/mine --data.train=YOUR.txt      your own text
  $hearth eval $run      its loss on the validation split
  rm -r $run      start over; configs/reference.toml explains every setting
END
