#!/usr/bin/env bash
# The main job from nothing: real zh/en text from Debian packages, a tokenizer trained on it, a
# small KDA language model trained on that, and text out of it. scripts/quickstart.sh KDA_PROGRAM
# KDA_QUICKSTART_STEPS and KDA_QUICKSTART_DATA change the length and the corpus preset.
set -euo pipefail
cd "$(dirname "$0")/.."
kda=${1:?usage: scripts/quickstart.sh path/to/kda}
preset=${KDA_QUICKSTART_DATA:-debian-small}
steps=${KDA_QUICKSTART_STEPS:-300}
data=data/$preset
run=runs/quickstart

step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@"; }

step "1/4 corpus: $preset"
if [ -f "$data/MANIFEST.json" ]; then echo "$data is there already"; else
  # Only Debian 12 has every package of the frozen evaluation set in the frozen version.
  extra=()
  grep -q '^VERSION_CODENAME=bookworm' /etc/os-release || extra=(--allow-missing-eval)
  show "$kda" data build --preset "$preset" --out "$data" "${extra[@]}"
fi

step "2/4 tokenizer"
if [ -f data/tokenizer/quickstart.model ]; then echo "data/tokenizer/quickstart.model is there already"; else
  show "$kda" tokenizer train --data "$data" --vocab-size 8192 --max-bytes 8000000 --out data/tokenizer/quickstart
fi

step "3/4 training (Ctrl-C saves; make quickstart again goes on)"
if [ -d "$(printf '%s/step-%06d' "$run" "$steps")" ]; then
  echo "$run is trained already; remove it to train again"
else
  show "$kda" train --preset toy --data "$data" --tokenizer data/tokenizer/quickstart.model \
    --steps "$steps" --batch 4 --seq-len 256 --lr 3e-3 --warmup 60 --clip 0.5 --out "$run" --auto-resume
fi

step "4/4 text"
for prompt in "The file" "如果" "Open the"; do
  show "$kda" generate --ckpt "$run" --prompt "$prompt" --max-new-tokens 48 --temperature 0.8 --top-p 0.95 --seed 1
  echo
done
printf '\nloss plot: %s   metrics: %s\n' "$run/loss.svg" "$run/metrics.jsonl"
