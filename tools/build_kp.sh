#!/usr/bin/env bash
# Builds Kompute's Python package kp 0.9.0 from its source release and installs it, for the Kompute delegate (vkep[kompute]).
#
#   tools/build_kp.sh              build and install into the virtual environment
#   tools/build_kp.sh --wheel DIR  only build; the wheel goes to DIR
#
# kp is published as source only. Its CMake files clone their dependencies with git while configuring; here they come from the
# system (Vulkan and fmt headers, by apt-get when run as root on Debian or Ubuntu) and from pip (pybind11), given in a
# CMake toolchain file, since setup.py passes no options on. kp asks for numpy below 2 because of the pybind11 that it
# pins; built with a pybind11 that knows numpy 2 it needs no such limit, and the wheel made here has none.
# Variables: VKEP_VENV (virtual environment, default .venv), JOBS (compiler processes, default 2).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=0.9.0
python="$(pwd)/.venv/bin/python"
if [[ -n "${VKEP_VENV:-}" ]]; then python="$VKEP_VENV/bin/python"; fi
target=""
case "${1:-}" in
    "") ;;
    --wheel) target="$(mkdir -p "${2:?--wheel needs a folder}" && cd "$2" && pwd)" ;;
    *) echo "build_kp: unknown argument $1 (known: --wheel DIR)" >&2; exit 2 ;;
esac
say() { echo "build_kp: $*" >&2; }
[[ -x "$python" ]] || { say "no $python: run tools/setup.sh first, or set VKEP_VENV"; exit 1; }

missing=()
command -v cmake >/dev/null || missing+=(cmake)
command -v c++ >/dev/null || missing+=(g++)
command -v make >/dev/null || missing+=(make)
[[ -e /usr/include/vulkan/vulkan.hpp ]] || missing+=(libvulkan-dev)
[[ -e /usr/include/fmt/core.h ]] || missing+=(libfmt-dev)
[[ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]] || missing+=(python3-dev)
if ((${#missing[@]})); then
    if [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
        say "installing ${missing[*]}"
        apt-get update -q >&2 || true
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
    else
        say "these are missing; run: sudo apt-get install ${missing[*]}"
        exit 1
    fi
fi

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
build="$folder/venv/bin/python"
"$build" -m pip install -q 'setuptools<80' wheel 'pybind11>=2.12,<3'
# no wheel and no build isolation: pip asks the package for its metadata, which needs the setuptools just installed
"$build" -m pip download -q "kp==$version" --no-deps --no-binary :all: --no-build-isolation -d "$folder"
tar -xzf "$folder/kp-$version.tar.gz" -C "$folder"
source="$folder/kp-$version"
sed -i 's/"numpy<2.0.0"/"numpy"/' "$source/setup.py"

{
    for option in USE_BUILT_IN_PYBIND11 USE_BUILT_IN_FMT USE_BUILT_IN_VULKAN_HEADER INSTALL; do
        echo "set(KOMPUTE_OPT_$option OFF CACHE BOOL \"\")"
    done
    echo 'set(KOMPUTE_OPT_DISABLE_VULKAN_VERSION_CHECK ON CACHE BOOL "")'
    echo "set(PYTHON_EXECUTABLE \"$build\" CACHE FILEPATH \"\")"
    echo "set(pybind11_DIR \"$("$build" -m pybind11 --cmakedir)\" CACHE PATH \"\")"
    # the headers of Vulkan and pybind11 are most of the work: they are read twice, not eleven times, and optimized little
    echo 'set(CMAKE_UNITY_BUILD ON CACHE BOOL "")'
    echo 'set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF CACHE BOOL "")'
    echo 'set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")'
} >"$folder/toolchain.cmake"

say "building kp $version"
export CMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" KOMPUTE_PYTHON_NUM_PARALLEL_THREADS="${JOBS:-2}"
"$build" -m pip wheel -q "$source" --no-deps --no-build-isolation -w "${target:-$folder/wheel}"
if [[ -z "$target" ]]; then
    "$python" -m pip install -q --no-deps --force-reinstall "$folder"/wheel/kp-*.whl
    "$python" -c 'import kp; print("build_kp: kp", kp.__version__, "sees", [d["device_name"] for d in kp.Manager().list_devices()])' >&2
else
    say "$(ls "$target"/kp-*.whl)"
fi
