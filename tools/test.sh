#!/usr/bin/env bash
# The test command: lint and types, beside them pytest with the validation layers on (in tests of single kernels and
# operators only with --nightly), a worker for each core (VKEP_TEST_JOBS: another number). Arguments go to pytest.
#
#   tools/test.sh               everything
#   tools/test.sh --quick       ruff, names, floors, graphs, sizes, plans, and operators by the interpreter of operations: for use
#                               while you work, in under a minute and without a Vulkan driver
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0
if [[ "${1:-}" == --quick ]]; then
    shift
    ./tools/setup.sh --dev --python || exit
    bin="${VKEP_VENV:-.venv}/bin"
    "$bin/ruff" check . || status=1
    "$bin/ruff" format --check . || status=1
    "$bin/python" -m pytest -q -n 2 --dist worksteal -m "not gpu and not slow" --interpreter \
        tests/test_*.py tests/graph tests/ops tests/plan tests/sizes "$@" || status=1
    if ((status)); then echo "test --quick: FAILED (see above)" >&2; fi
    exit "$status"
fi
./tools/setup.sh --dev || exit
# beside the tests: mypy takes one core for a minute
found=$(mktemp)
./tools/lint.sh >"$found" 2>&1 &
lint=$!
trap 'kill "$lint" 2>/dev/null; rm -f "$found"' EXIT
trap 'exit 130' INT
cores=$(nproc 2>/dev/null || echo 1)
jobs="${VKEP_TEST_JOBS:-$((cores < 8 ? cores : 8))}"
VKEP_VALIDATION="${VKEP_VALIDATION:-1}" "${VKEP_VENV:-.venv}/bin/python" -m pytest -n "$jobs" --dist worksteal "$@" || status=$?
wait "$lint" || status=1
cat "$found"
if ((status)); then
    echo "test: FAILED (see above)" >&2
fi
exit "$status"
