#!/usr/bin/env bash
# ruff (rules and format) and mypy; --fix formats, and fixes what ruff can. Every check runs; the exit code is not 0 when one
# of them failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./tools/setup.sh --dev || exit
bin="${VKEP_VENV:-.venv}/bin"
failed=()
if [[ "${1:-}" == --fix ]]; then
    "$bin/ruff" check --fix . || failed+=("ruff check")
    "$bin/ruff" format .
else
    "$bin/ruff" check . || failed+=("ruff check")
    "$bin/ruff" format --check . || failed+=("ruff format --check")
fi
if "$bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    "$bin/mypy" || failed+=("mypy")
else
    echo "lint: no mypy on Python 3.10, whose newest numpy (2.2) has no defaults for the parameters of ndarray" >&2
fi
if ((${#failed[@]})); then
    printf 'lint: failed: %s\n' "${failed[*]}" >&2
    exit 1
fi
