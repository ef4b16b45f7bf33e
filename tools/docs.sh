#!/usr/bin/env bash
# Builds the documentation's site in build/site; a broken link, a missing page or an unknown name is an error.
#
#   tools/docs.sh               build
#   tools/docs.sh --serve       show it on localhost and build again at each change
#
# It needs no Vulkan driver, and not vkep either: the reference is read from the sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="${VKEP_DOCS_VENV:-build/docs-venv}"
if ! "$venv/bin/python" -c 'import mkdocs, material, mkdocstrings, ruff' >/dev/null 2>&1; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --disable-pip-version-check -q 'mkdocs-material>=9.5,<10' 'mkdocstrings[python]>=0.27' ruff
fi
if [[ "${1:-}" == --serve ]]; then exec "$venv/bin/python" -m mkdocs serve; fi
export NO_MKDOCS_2_WARNING=1
exec "$venv/bin/python" -m mkdocs build --strict "$@"
