#!/usr/bin/env bash
# Runs Python on SwiftShader, a CPU driver without 8-, 16- and 64-bit types, with subgroups of 4, workgroups of 256 lanes and 128
# bytes of push constants: what poor devices have. For Debian on x86-64 (its package chromium-common carries the driver); installs
# nothing, keeps 6 MB in the cache.
#
#   tools/swiftshader.sh -m tools.backend_suite --kinds node --every 10
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vkep-swiftshader
if (($# == 0)); then
    sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi

fetch() {
    local folder
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' RETURN
    (cd "$folder" && apt-get -qq -o APT::Sandbox::User=root download chromium-common && dpkg -x ./*.deb system)
    mkdir -p "$cache"
    cp "$folder"/system/usr/lib/chromium/libvk_swiftshader.so "$cache/"
}

[[ -e $cache/libvk_swiftshader.so ]] || fetch >&2
cat >"$cache/icd.json" <<JSON
{"file_format_version": "1.0.0", "ICD": {"library_path": "$cache/libvk_swiftshader.so", "api_version": "1.3.0"}}
JSON
export VK_DRIVER_FILES=$cache/icd.json
exec "${VKEP_PYTHON:-$root/.venv/bin/python}" "$@"
