#!/usr/bin/env bash
# The bench command: prepares the machine and the peers, then measures. Arguments go to `python -m tools.bench`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./tools/setup.sh --bench
exec "${VKEP_VENV:-.venv}/bin/python" -m tools.bench "$@"
