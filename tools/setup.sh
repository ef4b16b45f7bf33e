#!/usr/bin/env bash
# Prepares the machine and the virtual environment; instant when everything is present.
#
#   tools/setup.sh              what running models needs
#   tools/setup.sh --dev        and what tests, lint and types need (validation layers, spirv-val, pytest, ruff, mypy)
#   tools/setup.sh --bench      and the peers to measure against
#   tools/setup.sh --browser    and headless Chromium, which the tests of `vkep view`'s page need (they are skipped without one)
#   tools/setup.sh --system     only the system packages (the part that needs root)
#   tools/setup.sh --python     only the virtual environment: enough for what needs no Vulkan
#   tools/setup.sh --yes        as with VKEP_INSTALL=yes
#
# Missing system packages are installed with apt-get on Debian and Ubuntu, as root. On a terminal the script asks first; without one
# (CI, a container's build) it installs. VKEP_INSTALL=yes never asks, VKEP_INSTALL=no never installs. Where it
# does not install, it prints the line to run and stops.
# Variables: PYTHON (interpreter for the environment), VKEP_VENV (its place, default .venv), VKEP_INSTALL.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${VKEP_VENV:-.venv}"
dev=0 bench=0 browser=0 system_only=0 python_only=0
for argument in "$@"; do
    case "$argument" in
        --dev) dev=1 ;;
        --bench) bench=1 ;;
        --browser) browser=1 ;;
        --system) system_only=1 ;;
        --python) python_only=1 ;;
        --yes) VKEP_INSTALL=yes ;;
        *) echo "setup: unknown argument $argument (known: --dev --bench --browser --system --python --yes)" >&2; exit 2 ;;
    esac
done
install="${VKEP_INSTALL:-ask}"
case "$install" in
    yes | no | ask) ;;
    *) echo "setup: VKEP_INSTALL is '$install', expected yes, no or ask" >&2; exit 2 ;;
esac
extras=cpu
if ((dev)); then extras+=,dev; fi
if ((bench)); then extras+=,bench; fi

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# ---- Python -----------------------------------------------------------------------------------------------------------
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }
can_make_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

python=""
find_python() {
    local candidate fallback=""
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
        new_enough "$candidate" || continue
        if can_make_venv "$candidate"; then python="$candidate"; return; fi
        fallback="${fallback:-$candidate}"
    done
    python="$fallback"
    [[ -n "$python" ]] || die "no Python 3.10 or later found; install one, or name it with PYTHON=/path/to/python3"
}

probe() { "$python" tools/vulkan_probe.py --check "$1"; }

# ---- system packages --------------------------------------------------------------------------------------------------
release_id="" release_codename=""
if [[ -r /etc/os-release ]]; then
    release_id="$(. /etc/os-release; echo "${ID:-}")"
    release_codename="$(. /etc/os-release; echo "${VERSION_CODENAME:-}")"
fi

apt_updated=0
apt_update() {
    ((apt_updated)) && return
    # A third-party source that does not answer must not stop the rest.
    apt-get update -q >&2 || say "apt-get update reported errors; going on with what it could read"
    apt_updated=1
}

apt_install() {
    local packages=("$@")
    say "installing ${packages[*]}"
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}" >&2 && return
    ((apt_updated)) && return 1
    apt_update  # the lists were empty or stale
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}" >&2
}

candidate_major() {  # the major version apt would install of package $1, 0 when it knows none
    local version
    version="$(LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *\([0-9]*:\)\{0,1\}\([0-9][0-9]*\).*/\2/p')"
    echo "${version:-0}"
}

# Takes the driver from Debian's backports, which have a newer Mesa than the release. Fails where there are none.
install_backported_mesa() {
    [[ "$release_id" == debian && -n "$release_codename" ]] || return 1
    local file=/etc/apt/sources.list.d/vkep-backports.sources stanza code=0
    stanza="$("$python" tools/apt_sources.py "$release_codename")" || code=$?
    case $code in
        0)
            printf '%s\n' "# Added by vkep's tools/setup.sh for mesa-vulkan-drivers; may be removed." "$stanza" >"$file"
            # Only this file's lists: quick, and safe from other sources' trouble.
            if ! apt-get update -q -o Dir::Etc::SourceList="$file" -o Dir::Etc::SourceParts=- \
                -o APT::Get::List-Cleanup=0 -o APT::Update::Error-Mode=any >&2; then
                rm -f "$file"
                say "backports cannot be read"
                return 1
            fi
            ;;
        2) apt_update ;;  # backports are among the machine's own sources already
        *) return 1 ;;
    esac
    if ! apt_install -t "$release_codename-backports" mesa-vulkan-drivers; then
        if ((code == 0)); then rm -f "$file"; fi
        return 1
    fi
}

install_driver() {
    if [[ "$(candidate_major mesa-vulkan-drivers)" == 0 ]]; then apt_update; fi
    if (($(candidate_major mesa-vulkan-drivers) < 25)); then
        install_backported_mesa && return
        say "no newer Mesa in backports; going on with the release's own"
    fi
    apt_install mesa-vulkan-drivers
}

have_nvidia() { [[ -e /dev/nvidiactl ]]; }

newer_mesa_tried=0  # remembered by a stamp, so that a machine without backports asks only once
system_missing=()  # what is needed and is not there, by package name
look_at_system() {
    system_missing=()
    probe loader || system_missing+=(libvulkan1)
    if ! probe gpu; then
        # The NVIDIA driver gives no device without the GL and EGL loader libraries.
        if have_nvidia; then system_missing+=(libegl1 libgl1); fi
        probe device || system_missing+=(mesa-vulkan-drivers)
    fi
    if ((dev)); then
        probe validation || system_missing+=(vulkan-validationlayers)
        command -v spirv-val >/dev/null || system_missing+=(spirv-tools)
    fi
    can_make_venv "$python" || [[ -x "$venv/bin/python" ]] || system_missing+=("$(venv_package)")
}

venv_package() {  # /usr/bin/python3 is the distribution's; another one has its version in the package's name
    if [[ "$(command -v "$python")" == /usr/bin/python3 ]]; then
        echo python3-venv
    else
        echo "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    fi
}

# Whether system packages may be installed: by root, with apt-get, where VKEP_INSTALL or the person at the terminal says so.
may_install() {
    if ((EUID != 0)) || ! command -v apt-get >/dev/null || [[ "$install" == no ]]; then return 1; fi
    if [[ "$install" == yes || ! -t 0 || ! -t 2 ]]; then return 0; fi
    local answer=""
    read -r -p "setup: install the system packages $* with apt-get? [Y/n] " answer || return 1
    case "$answer" in
        "" | [yY]*) install=yes ;;
        *) install=no; return 1 ;;
    esac
}

ask_root() {
    local arguments="--system"
    if ((dev)); then arguments+=" --dev"; fi
    say "missing system packages: ${system_missing[*]}"
    if command -v apt-get >/dev/null; then
        say "run this line, then start again:  sudo ${PYTHON:+PYTHON=$PYTHON }./tools/setup.sh $arguments"
        say "or, with the release's own driver:  sudo apt-get install -y ${system_missing[*]}"
    else
        say "install them with your distribution's package manager (the names are Debian's), then start again"
    fi
    exit 1
}

install_system() {
    look_at_system
    if ((${#system_missing[@]} == 0)); then
        # Nothing is missing. A lavapipe older than Mesa 25 is replaced by a newer one, where that is allowed.
        if ! probe current-driver; then
            if ! done_already mesa; then
                newer_mesa_tried=1
                if may_install "mesa-vulkan-drivers (a newer one)"; then install_driver || true; fi
            fi
            probe current-driver || say "the CPU driver is older than Mesa 25: it works, several times slower"
        fi
        return
    fi
    may_install "${system_missing[@]}" || ask_root
    local package plain=()
    for package in "${system_missing[@]}"; do
        [[ "$package" == mesa-vulkan-drivers ]] || plain+=("$package")
    done
    if ((${#plain[@]})); then apt_install "${plain[@]}" || die "apt-get could not install: ${plain[*]}"; fi
    # A real GPU may have needed only the loader: look again before bringing a CPU driver.
    if ! probe device; then
        install_driver || die "apt-get could not install mesa-vulkan-drivers"
    fi
    look_at_system
    if ((${#system_missing[@]} == 2)) && have_nvidia && [[ "${system_missing[*]}" == "libegl1 libgl1" ]]; then
        say "an NVIDIA GPU is here, but its Vulkan driver gives no device; is its manifest (nvidia_icd.json) installed?"
        say "VK_DRIVER_FILES can name it. Going on with the CPU driver."
    elif ((${#system_missing[@]})); then
        "$python" tools/vulkan_probe.py >&2 || true
        die "still missing after installing: ${system_missing[*]}"
    fi
}

# Chromium without a display server: 90 MB to download, 15 s with its libraries. Ubuntu has no such package, but its CI images have
# Google Chrome. Without a browser setup goes on: the tests that need one are skipped.
install_browser() {
    "$python" -c 'import sys; from tools import chromium; sys.exit(chromium.find() is None)' && return
    if [[ "$(candidate_major chromium-headless-shell)" == 0 ]] && ! ((apt_updated)) && command -v apt-get >/dev/null && ((EUID == 0)); then
        apt_update
    fi
    if [[ "$(candidate_major chromium-headless-shell)" != 0 ]] && may_install chromium-headless-shell; then
        apt_install chromium-headless-shell && return
    fi
    say "no browser (Debian: sudo apt-get install chromium-headless-shell): the tests of the page of \`vkep view\` are skipped"
}

# ---- virtual environment ----------------------------------------------------------------------------------------------
make_venv() {
    if [[ -e "$venv" ]] && ! new_enough "$venv/bin/python"; then
        say "$venv has no working Python 3.10 or later; making it again"
        rm -rf "$venv"
    fi
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        say "making $venv with $("$python" --version)"
        "$python" -m venv "$venv" || die "could not make $venv with $python"
    fi
}

install_packages() {
    say "installing vkep with extras [$extras] into $venv"
    "$venv/bin/python" -m pip install --disable-pip-version-check -q -e ".[$extras]" || die "pip could not install .[$extras]"
    if ((bench)); then
        # pnnx converts models for ncnn; its declared dependency, torch, is several GB and not needed for that.
        "$venv/bin/python" -m pip install --disable-pip-version-check -q --no-deps pnnx ||
            say "pnnx could not be installed: the bench goes on without ncnn"
    fi
}

# ---- main -------------------------------------------------------------------------------------------------------------
key="$( (cat pyproject.toml tools/setup.sh; readlink -f "$venv") | sha256sum | cut -d' ' -f1)"
stamp_of() { echo "$venv/.vkep-setup-$1"; }
done_already() {  # a larger set of extras covers a smaller one
    local name="$1"
    [[ "$(cat "$(stamp_of "$name")" 2>/dev/null)" == "$key" && -x "$venv/bin/python" ]]
}

wanted=(run)
if ((dev)); then wanted+=(dev); fi
if ((bench)); then wanted+=(bench); fi

find_python
((python_only)) || install_system
if ((browser)); then install_browser; fi
if ((system_only)); then say "system packages are in place"; exit 0; fi
for name in "${wanted[@]}"; do
    if ! done_already "$name"; then
        make_venv
        install_packages
        for name in "${wanted[@]}"; do echo "$key" >"$(stamp_of "$name")"; done
        break
    fi
done
if ((newer_mesa_tried)); then echo "$key" >"$(stamp_of mesa)"; fi
