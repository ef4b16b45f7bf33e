#!/usr/bin/env bash
# Runs Python on SwiftShader, a CPU driver without 8-, 16- and 64-bit types, with subgroups of 4, workgroups of 256 lanes and 128
# bytes of push constants: the least that devices have. Chromium and Chrome bring the driver along, on Windows and macOS too. On
# Debian it is taken from the package chromium-common, which need not be installed (6 MB in the cache). Installs nothing.
#
#   tools/swiftshader.sh -m tools.backend_suite --kinds node --every 10
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vkep-swiftshader
if (($# == 0)); then
    sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
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

library=""
macos="/Applications/Google Chrome.app/Contents/Frameworks/Google Chrome Framework.framework/Versions"
for candidate in "$cache/libvk_swiftshader.so" /usr/lib/chromium/libvk_swiftshader.so /opt/google/chrome/libvk_swiftshader.so \
    "$macos"/*/Libraries/libvk_swiftshader.dylib "/c/Program Files/Google/Chrome/Application"/*/vk_swiftshader.dll; do
    if [[ -e $candidate ]]; then library=$candidate; fi
done
if [[ -z $library ]]; then
    fetch >&2
    library=$cache/libvk_swiftshader.so
fi
mkdir -p "$cache"
manifest=$cache/icd.json
case $OSTYPE in
    darwin*) export DYLD_FALLBACK_LIBRARY_PATH="$(brew --prefix)/lib" ;;  # the Vulkan loader of `brew install vulkan-loader`
    msys* | cygwin*)
        PATH="$(dirname "$library"):$PATH"  # Chrome has a Vulkan loader beside the driver
        library=$(cygpath -w "$library") manifest_name=$(cygpath -w "$manifest")
        ;;
esac
cat >"$manifest" <<JSON
{"file_format_version": "1.0.0", "ICD": {"library_path": "${library//\\/\\\\}", "api_version": "1.3.0"}}
JSON
export VK_DRIVER_FILES=${manifest_name:-$manifest}
exec "${VKEP_PYTHON:-$root/.venv/bin/python}" "$@"
