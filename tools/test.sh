#!/usr/bin/env bash
# The test command: lint, types, then pytest with the validation layers on. Arguments go to pytest.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./tools/setup.sh --dev || exit
status=0
./tools/lint.sh || status=1
VKEP_VALIDATION="${VKEP_VALIDATION:-1}" "${VKEP_VENV:-.venv}/bin/python" -m pytest "$@" || status=$?
if ((status)); then
    echo "test: FAILED (see above)" >&2
fi
exit "$status"
