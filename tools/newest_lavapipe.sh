#!/usr/bin/env bash
# Runs Python on the newest lavapipe of Debian unstable, beside the system's: it has cooperative matrices, which older ones
# lack, so that kernels on them can be tried without a GPU. For Debian on x86-64; installs nothing, keeps 350 MB in the cache.
#
#   tools/newest_lavapipe.sh -m pytest -n 0 tests/kernels/test_cooperative.py
#
# The driver needs that system's C library, under which this one Python process runs; processes that it starts do not.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vkep-newest-lavapipe
libraries=$cache/system/usr/lib/x86_64-linux-gnu
if (($# == 0)); then
    sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi

fetch() {
    local site folder
    site=$(apt-get indextargets --format '$(SITE)' | grep -m 1 '/debian$')
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' RETURN
    mkdir -p "$folder"/{lists/partial,cache/archives/partial,state,system}
    touch "$folder/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site sid main" >"$folder/sources.list"
    cat >"$folder/apt.conf" <<CONF
Dir::State "$folder/state"; Dir::State::Lists "$folder/lists"; Dir::State::status "$folder/status";
Dir::Cache "$folder/cache"; Dir::Etc::SourceList "$folder/sources.list"; Dir::Etc::SourceParts "/dev/null";
APT::Architecture "amd64"; APT::Install-Recommends "false"; APT::Sandbox::User "root";
CONF
    APT_CONFIG=$folder/apt.conf apt-get -qq update
    APT_CONFIG=$folder/apt.conf apt-get -qq install -y --download-only mesa-vulkan-drivers libvulkan1 libc6 libstdc++6
    for package in "$folder"/cache/archives/*.deb; do dpkg -x "$package" "$folder/system"; done
    rm -rf "$cache"
    mkdir -p "$cache"
    mv "$folder/system" "$cache/system"
}

[[ -e $libraries/libvulkan_lvp.so ]] || fetch >&2
sed "s#\"library_path\": \"[^\"]*\"#\"library_path\": \"$libraries/libvulkan_lvp.so\"#" \
    "$cache/system/usr/share/vulkan/icd.d/lvp_icd.json" >"$cache/lvp.json"
python=${VKEP_PYTHON:-$root/.venv/bin/python}
binary=$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
# its defaults: tests/conftest.py has others
export LP_NATIVE_VECTOR_WIDTH=${LP_NATIVE_VECTOR_WIDTH-256} GALLIVM_PERF=${GALLIVM_PERF-}
export VK_DRIVER_FILES=$cache/lvp.json VKEP_CACHE_DIR=$cache/vkep PYTHONPATH=$packages:$root:$root/registry
exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries:$(dirname "$binary")/../lib:/usr/lib/x86_64-linux-gnu" "$binary" "$@"
