"""Instance layers that need no environment variables of the user: the ML emulation layers, and how the loader finds
them.

Arm's ML emulation layers provide VK_ARM_tensors and VK_ARM_data_graph on any Vulkan 1.3 device, by compute shaders. The
package ``ai-ml-emulation-layer-for-vulkan`` contains their libraries with manifests that name them without a path, for
users who set LD_LIBRARY_PATH; `emulation_layers` writes manifests with absolute paths instead.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Graph above Tensor: the first calls the second for its tensors
EMULATION_LAYERS = ("VK_LAYER_ML_Graph_Emulation", "VK_LAYER_ML_Tensor_Emulation")
#: an error of the emulation layers (0.11) themselves, below the application: their compute pipelines read push
#: constants that their pipeline layouts lack
LAYERS_OWN_ERRORS = frozenset({"VUID-VkComputePipelineCreateInfo-layout-00703"})
#: an error of the validation layer itself (its text: "most likely a validation bug"): rarely, on a busy machine, where the host
#: signals a timeline semaphore that the queue waits for
VALIDATION_OWN_ERRORS = frozenset({"UNASSIGNED-VkSemaphore-state-timeout"})
_PACKAGE, _PROJECT = "emulation_layer", "ai-ml-emulation-layer-for-vulkan"
_SEARCH_VARIABLE = "VK_ADD_LAYER_PATH"
_environment_lock = threading.Lock()


@dataclass(frozen=True)
class LayerSet:
    """Layers by name, outermost first, and the folder with their manifests."""

    names: tuple[str, ...]
    folder: Path


class LayersMissing(Exception):
    """The emulation layers are not installed, or not available for this platform; the text says which and what to
    do."""


@contextlib.contextmanager
def layer_search(folders: Sequence[str | os.PathLike[str]]) -> Iterator[None]:
    """While inside, the loader also looks for layer manifests in ``folders``.

    The loader reads the environment (VK_ADD_LAYER_PATH) at each call that lists or loads layers, and has no other
    interface for it; so the variable is set for that call only, and restored.
    """
    if not folders:
        yield
        return
    with _environment_lock:
        before = os.environ.get(_SEARCH_VARIABLE)
        parts = [os.fspath(folder) for folder in folders] + ([before] if before else [])
        os.environ[_SEARCH_VARIABLE] = os.pathsep.join(parts)
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SEARCH_VARIABLE]
            else:
                os.environ[_SEARCH_VARIABLE] = before


def emulation_layers(folder: str | os.PathLike[str]) -> LayerSet:
    """The emulation layers of the installed package, with manifests written to ``folder`` (kept where they are right).

    The loader reads every manifest in that folder, and loads the libraries that these name: it must be a folder to which no other
    user ever could write, such as a new temporary one.

    Raises `LayersMissing`, ``OSError`` where the folder cannot be written.
    """
    try:
        spec = importlib.util.find_spec(_PACKAGE)
    except (ImportError, ValueError) as error:
        raise LayersMissing(f"looking for the package {_PROJECT}: {error}") from error
    if spec is None or not spec.submodule_search_locations:
        raise LayersMissing(
            f"the ML emulation layers are not installed: pip install {_PROJECT} (vkep's extra 'vgf' brings it)"
        )
    deploy = Path(next(iter(spec.submodule_search_locations))) / "deploy"
    manifests = {}
    for path in sorted(deploy.rglob("VkLayer_*.json")):
        text = json.loads(path.read_text(encoding="utf-8"))
        manifests[text["layer"]["name"]] = text
    missing = [name for name in EMULATION_LAYERS if name not in manifests]
    if missing:
        raise LayersMissing(f"the package {_PROJECT} in {deploy} has no manifest of {', '.join(missing)}")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name in EMULATION_LAYERS:
        manifest = manifests[name]
        library = Path(manifest["layer"]["library_path"]).name
        found = sorted(deploy.rglob(library))
        if not found:
            raise LayersMissing(f"the package {_PROJECT} in {deploy} has no {library} for this platform")
        manifest["layer"]["library_path"] = str(found[0].resolve())
        _write(target / f"{name}.json", json.dumps(manifest, indent=1))
    return LayerSet(EMULATION_LAYERS, target)


def _write(path: Path, text: str) -> None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return
    import tempfile

    # another process may be reading it: never a half-written file
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".manifest")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
