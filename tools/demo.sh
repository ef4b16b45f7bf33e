#!/usr/bin/env bash
# The demo command: prepares the machine, then runs a real model on Vulkan. Arguments go to tools/demo.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./tools/setup.sh
exec "${VKEP_VENV:-.venv}/bin/python" -m tools.demo "$@"
