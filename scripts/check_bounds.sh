#!/usr/bin/env bash
# Installs werdict with the lowest or the newest releases that pyproject.toml allows, trains, and runs tests of what uses them.
#
#     scripts/check_bounds.sh lowest|newest|prereleases [TEST …]
#
# uv resolves, because pip cannot find the lowest. PYTHON names the interpreter, UV_FIND_LINKS a folder of wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
shift
tests=("$@")
[ $# -gt 0 ] || tests=(tests/werdict tests/text tests/data tests/training tests/tracking tests/test_options.py tests/test_schema.py)
folder=$(mktemp -d)
# hydra 1.4 needs omegaconf 2.4; indexed manifests and shards of lhotse 2.0 are to replace ours (asr/data/preparation)
printf '%s\n' 'hydra-core>=1.4.0.dev0' 'omegaconf>=2.4.0.dev0' 'lhotse>=2.0.0a0' > "$folder/prereleases.txt"
declare -A options=(
    [lowest]="--resolution lowest-direct"
    [newest]="--upgrade"
    [prereleases]="--upgrade --override $folder/prereleases.txt"
)
"${PYTHON:-python3}" -m venv "$folder/tools"
"$folder/tools/bin/pip" install --quiet uv
uv=$folder/tools/bin/uv
"$uv" venv --quiet --python "${PYTHON:-python3}" "$folder/venv"
# shellcheck disable=SC2086
"$uv" pip install --quiet --python "$folder/venv/bin/python" ${options[$kind]} --editable '.[tts,export,scoring]' \
    'pytest>=8.3' 'pytest-randomly>=3.16' 'pytest-xdist>=3.6' 'hypothesis>=6.130'
"$uv" pip freeze --python "$folder/venv/bin/python" | sed 's/^/    /'
export WANDB_MODE=offline WERDICT_CACHE=$folder/cache
"$folder/venv/bin/asr-train" run_dir="$folder/run" trainer.max_steps=2 trainer.val_check_interval=2 \
    data.prepare.num_train=60 data.prepare.num_dev=8 data.prepare.num_test=10
unset WERDICT_CACHE
"$folder/venv/bin/python" -m pytest -n 2 --dist loadfile --quiet -p no:cacheprovider "${tests[@]}"
