#!/usr/bin/env bash
# The test command: lint, types, then pytest with the validation layers on, a worker for each core (VKEP_TEST_JOBS: another
# number). Arguments go to pytest.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./tools/setup.sh --dev || exit
status=0
./tools/lint.sh || status=1
cores=$(nproc 2>/dev/null || echo 1)
jobs="${VKEP_TEST_JOBS:-$((cores < 8 ? cores : 8))}"
VKEP_VALIDATION="${VKEP_VALIDATION:-1}" "${VKEP_VENV:-.venv}/bin/python" -m pytest -n "$jobs" --dist worksteal "$@" || status=$?
if ((status)); then
    echo "test: FAILED (see above)" >&2
fi
exit "$status"
