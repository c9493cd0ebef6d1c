#!/usr/bin/env bash
# Runs the quick tests as other processors compute: by the instructions that torch and oneDNN may use, and by threads.
#
#     scripts/other_processors.sh [ARGUMENTS OF PYTEST …]
#
# Instructions that this processor lacks (AMX, avx512_bf16) cannot be added: run it on such a machine, too.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
while read -r settings; do
    echo "+ ${settings}"
    # shellcheck disable=SC2086
    env ${settings} .venv/bin/pytest -n 2 --dist loadfile --quiet "$@" || failed=1
done <<'END_OF_SETTINGS'
ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2
ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1
OMP_NUM_THREADS=16
END_OF_SETTINGS
exit "${failed}"
