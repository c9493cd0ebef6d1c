#!/usr/bin/env bash
# Builds wheel and sdist, and uses the wheel as somebody does who has no checkout: in clean environments, with an empty home.
#
#     scripts/check_wheel.sh [FOLDER]    FOLDER: for wheel, sdist and all else; default: a new one in /tmp
#
# PYTHON names the interpreter (python3), PIP_FIND_LINKS a folder of wheels, such as torch for CPUs.
set -euo pipefail
shopt -s inherit_errexit
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(realpath "${1:-$(mktemp -d)}")
python=$(command -v "${PYTHON:-python3}")
mkdir -p "$work/home" "$work/user"
unset PYTHONPATH
export HOME=$work/home WANDB_MODE=offline PYTHONNOUSERSITE=1
section() { echo "=== $* ($SECONDS s)"; }

section "the sdist builds the same wheel"
"$python" -m venv "$work/build"
"$work/build/bin/pip" install --quiet build
"$work/build/bin/python" -m build --sdist --outdir "$work/dist" "$root"
"$work/build/bin/python" -m build --wheel --outdir "$work/dist" "$root"
"$work/build/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/from_sdist" "$work"/dist/werdict-*.tar.gz
"$python" - "$work"/dist/*.whl "$work"/from_sdist/*.whl <<'PYTHON'
import sys, zipfile

tree, sdist = ({item.filename: item.CRC for item in zipfile.ZipFile(file).infolist()} for file in sys.argv[1:])
differ = sorted(name for name in {*tree, *sdist} if tree.get(name) != sdist.get(name) and not name.endswith("/RECORD"))
sys.exit(f"the wheels differ in {len(differ)} files, such as {differ[:5]}" if differ else 0)
PYTHON
wheel=$(echo "$work"/dist/*.whl)
cd "$work/user"

section "comparing without torch"
"$python" -m venv "$work/light"
mapfile -t light < <("$python" -c "import runpy, sys; print(*runpy.run_path(sys.argv[1])['light_requirements'](), sep='\n')" "$root/scripts/setup.py")
"$work/light/bin/pip" install --quiet "${light[@]}"
"$work/light/bin/pip" install --quiet --no-deps "$wheel"
printf 'system,id,reference,hypothesis\n' > results.csv
for id in 1 2 3 4 5 6; do printf 'x,%s,a b,a b\ny,%s,a b,a\n' "$id" "$id"; done >> results.csv
"$work/light/bin/asr-compare" results=results.csv out=light --json | "$python" -m json.tool > light.json
"$work/light/bin/asr-compare" --version
! "$work/light/bin/python" -c "import torch" 2> /dev/null

section "optimizers with torch alone"
"$python" -m venv "$work/whole"
PATH=$work/whole/bin:$PATH
pip install --quiet torch
pip install --quiet --no-deps "$wheel"
python -c "$(sed -n '/^The optimizers need only torch/,/^A run is/p' "$root/README.md" | sed '/^```python$/,/^```$/!d;/^```/d')"

section "the whole package"
pip install --quiet "${wheel}[tts,export,pretrained]"   # beside torch, whose installation takes longest
python -c "import asr, sys; sys.exit(0 if asr.__file__.startswith(sys.prefix) else asr.__file__)"
python -m pip check
asr-train --version
python -m asr.doctor
for command in $(sed -n '/^\[project.scripts\]/,/^$/s/^\(asr-[a-z]*\) = .*/\1/p' "$root/pyproject.toml"); do
    "$command" --help > /dev/null
done

section "the default recipe, shortened; decode, transcribe, export, resume"
updates=(trainer.max_steps=2 trainer.val_check_interval=1 torch_threads=1)
small=("${updates[@]}" data.prepare.num_train=60 data.prepare.num_dev=8 data.prepare.num_test=10 tokenizer=char
    encoder.num_layers=1 encoder.d_model=48 encoder.subsampling_channels=8)
asr-train "${small[@]}" run_dir=runs/first
asr-train resume=runs/first trainer.max_steps=3 allow_changes=true torch_threads=1
asr-evaluate runs/first --json | python -c "import json, sys; print(json.load(sys.stdin)['sets']['test']['wer'])"
asr-transcribe runs/first "$(find "$HOME" -path '*test-*' -name '*.flac' | head -n 1)" --json | python -m json.tool > transcript.json
asr-export runs/first exported

section "own recordings, own optimizer, a sweep"
mkdir -p mypkg
cat > mypkg/plain.py <<'PYTHON'
import torch


class Plain(torch.optim.SGD):
    """SGD under a name of its own."""
PYTHON
python - <<'PYTHON'
import numpy, soundfile

lines = ["audio\ttext\tspeaker"]
for number in range(40):
    noise = numpy.random.default_rng(number).normal(size=16_000 + 400 * number) * 0.1
    soundfile.write(f"{number}.wav", noise, 16_000)
    lines.append(f"{number}.wav\t{('one two', 'two', 'one', 'two one')[number % 4]}\ts{number % 8}")
open("my.tsv", "w").write("\n".join(lines))
PYTHON
PYTHONPATH=$PWD asr-train recipe=custom/transformer_ctc data.source=my.tsv "${updates[@]}" tokenizer=char encoder.num_layers=1 \
    optimizer._target_=mypkg.plain.Plain optimizer.lr=0.01 run_dir=runs/own
asr-train -m sweep.name=two optimizer=adamw,eve seed=1,2 "${small[@]}"
asr-compare sweep=two --json | python -c "import json, sys; print(json.load(sys.stdin)['folder'])"
asr-runs runs --json | python -c "import json, sys; assert all(run['status'] == 'finished' for run in json.load(sys.stdin))"

section "a pretrained encoder"
python - <<'PYTHON'
from transformers import AutoConfig, AutoModel

size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "conv_dim": (8,) * 7}
positions = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
AutoModel.from_config(AutoConfig.for_model("wav2vec2", **size, **positions)).save_pretrained("model")
PYTHON
asr-train recipe=finetune/ctc trainer=cpu data.source=my.tsv encoder.model=model "${updates[@]}" run_dir=runs/tuned

section "all passed"
