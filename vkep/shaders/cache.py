"""SPIR-V on disk, addressed by the content that it was compiled from, and prebuilt SPIR-V in a wheel."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from vkep.cache import CacheFolder, cache_folder, is_key
from vkep.own_files import write_atomically

_log = logging.getLogger(__name__)

#: default limit of a cache folder, bytes: a module has some kilobytes
DEFAULT_LIMIT = 256 << 20
MANIFEST = "manifest.json"


class SpirvCache(CacheFolder):
    """Modules by the digest of their source and compiler; in vkep's cache folder, ``spirv/``."""

    what, suffix = "SPIR-V", ".sealed-spv"

    def __init__(self, folder: Path | None = None, limit: int = DEFAULT_LIMIT) -> None:
        super().__init__(cache_folder("spirv") if folder is None else folder, limit)


@dataclass(frozen=True, slots=True)
class PrebuiltEntry:
    """The manifest's entry for one module; ``key`` does not depend on the compiler."""

    key: str
    source: str
    defines: Mapping[str, str]
    arguments_in_memory: bool
    sha256: str  #: of the module


class PrebuiltSpirv:
    """A read-only folder of ``<key>.spv`` files with a manifest, for machines without a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._digests: dict[str, str] = {}
        manifest = folder / MANIFEST
        if manifest.is_file():
            try:
                entries = json.loads(manifest.read_text(encoding="utf-8"))["modules"]
                self._digests = {entry["key"]: entry["sha256"] for entry in entries}
            except (OSError, ValueError, KeyError, TypeError) as error:
                _log.warning("ignoring prebuilt SPIR-V: %s is damaged (%s)", manifest, str(error))

    def __len__(self) -> int:
        return len(self._digests)

    def load(self, key: str) -> bytes | None:
        """The module, or None where the folder has none or a damaged one (which is reported)."""
        if key not in self._digests:
            return None
        path = self.folder / f"{key}.spv"
        try:
            binary = path.read_bytes()
        except OSError as error:
            _log.warning("prebuilt SPIR-V is missing: %s", str(error))
            return None
        if hashlib.sha256(binary).hexdigest() != self._digests[key]:
            _log.warning("ignoring prebuilt SPIR-V: %s is damaged", path)
            return None
        return binary


def write_prebuilt(folder: Path, modules: Iterable[tuple[PrebuiltEntry, bytes]]) -> None:
    """Write a folder for `PrebuiltSpirv`; modules of an earlier manifest that are not among these are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for entry, binary in modules:
        write_atomically(folder / f"{entry.key}.spv", binary)
        entries.append(asdict(entry))
    kept = {entry["key"] for entry in entries}
    for path in folder.glob("*.spv"):
        if is_key(path.stem) and path.stem not in kept:
            path.unlink()
    entries.sort(key=lambda e: (e["source"], sorted(e["defines"].items()), e["arguments_in_memory"]))
    text = json.dumps({"format": 1, "modules": entries}, indent=1, sort_keys=True)
    write_atomically(folder / MANIFEST, text.encode("utf-8"))
