#!/usr/bin/env bash
# Builds the documentation's site in build/site; a broken link, a missing page or an unknown name is an error,
# and so is a search word that does not find its page first (tools/site_search.py; needs node).
#
#   tools/docs.sh               build
#   tools/docs.sh --examples    run the examples and the Python blocks of the pages first, and build only if all of them work
#   tools/docs.sh --serve       show it on localhost and build again at each change
#
# Without --examples it needs no Vulkan driver, and not vkep either: the reference is read from the sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ "${1:-}" == --examples ]]; then
    shift
    ./tools/setup.sh --dev
    "${VKEP_VENV:-.venv}/bin/python" -m pytest -q -n 2 tests/test_examples.py
fi
venv="${VKEP_DOCS_VENV:-build/docs-venv}"
if ! "$venv/bin/python" -c 'import mkdocs, material, mkdocstrings, ruff' >/dev/null 2>&1; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --disable-pip-version-check -q 'mkdocs-material>=9.5,<10' 'mkdocstrings[python]>=0.27' ruff
fi
if [[ "${1:-}" == --serve ]]; then exec "$venv/bin/python" -m mkdocs serve; fi
export NO_MKDOCS_2_WARNING=1
if [[ -n "${GITHUB_REPOSITORY:-}" ]]; then
    export VKEP_REPOSITORY="$GITHUB_SERVER_URL/$GITHUB_REPOSITORY" VKEP_EDIT=edit/main/docs/
fi
"$venv/bin/python" -m mkdocs build --strict "$@"
exec "$venv/bin/python" -m tools.site_search
