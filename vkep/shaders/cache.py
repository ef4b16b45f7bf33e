"""SPIR-V on disk, addressed by the content that it was compiled from, and prebuilt SPIR-V that a wheel carries.

Several processes may use one cache folder: an entry is written to a temporary file and renamed into place, and it
carries its own digest, so that a torn or altered entry is seen, dropped and built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import platformdirs

_log = logging.getLogger(__name__)

_MAGIC = b"VKEPSPV1"
_HEADER = len(_MAGIC) + 8 + 32  # magic, length of the module, its SHA-256
_KEY = re.compile(r"[0-9a-f]{64}\Z")
#: default bound of a cache folder, bytes: a module is some kilobytes
DEFAULT_LIMIT = 256 << 20
_PRUNE_EVERY = 256  # stores between two looks at the folder's size
MANIFEST = "manifest.json"


def cache_root() -> Path:
    """Folder of vkep's caches: ``$VKEP_CACHE_DIR``, or the user's cache folder of the platform."""
    chosen = os.environ.get("VKEP_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("vkep", appauthor=False))


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that another process sees the old one, the new one or none, never a part. Raises `OSError`."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


class SpirvCache:
    """A folder of modules by key (64 hex digits), bounded by dropping those not used for longest."""

    what: ClassVar[str] = "SPIR-V"  #: for messages
    suffix: ClassVar[str] = ".vkepspv"

    def __init__(self, folder: Path | None = None, limit: int = DEFAULT_LIMIT) -> None:
        if limit <= 0:
            raise ValueError(f"a cache limit is a positive number of bytes, got {limit}")
        self.folder = folder if folder is not None else cache_root() / "spirv"
        self.limit = limit
        self._stores = 0
        self._usable = True

    def path(self, key: str) -> Path:
        if not _KEY.match(key):
            raise ValueError(f"{key!r} is no cache key, expected 64 hex digits")
        return self.folder / f"{key}{self.suffix}"

    def load(self, key: str) -> bytes | None:
        """The module, or None where there is none; a damaged entry is removed and counts as none."""
        path = self.path(key)
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        binary = entry[_HEADER:]
        if entry[:_HEADER] != _header(binary):
            _log.warning("dropping a damaged cache entry: %s", path)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):  # a read-only cache still serves; only the order of dropping suffers
            os.utime(path)
        return binary

    def store(self, key: str, binary: bytes) -> None:
        """Keep a module. A folder that cannot be written is reported once and then left alone."""
        path = self.path(key)
        if not self._usable:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _header(binary) + binary)
        except OSError as error:
            if path.is_file():  # Windows refuses to replace a file that another process reads: it has the same content
                return
            self._usable = False
            advice = "VKEP_CACHE_DIR names another folder"
            _log.warning("%s is not cached on disk: cannot write %s (%s); %s", self.what, path, error, advice)
            return
        if self._stores % _PRUNE_EVERY == 0:
            self.prune()
        self._stores += 1

    def prune(self, limit: int | None = None) -> int:
        """Drop the entries not used for longest until the folder fits ``limit`` bytes; return the bytes dropped."""
        limit = self.limit if limit is None else limit
        entries = []
        for path in self._entries():
            with contextlib.suppress(OSError):  # another process may drop it at the same time
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        total, dropped = sum(size for _, size, _ in entries), 0
        for _, size, path in sorted(entries):
            if total - dropped <= limit:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                dropped += size
        return dropped

    def _entries(self) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if path.suffix == self.suffix]
        except OSError:
            return []


def _header(binary: bytes) -> bytes:
    return _MAGIC + len(binary).to_bytes(8, "little") + hashlib.sha256(binary).digest()


@dataclass(frozen=True, slots=True)
class PrebuiltEntry:
    """What the manifest of a prebuilt folder says about one module; ``key`` does not depend on the compiler."""

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
                _log.warning("ignoring prebuilt SPIR-V: %s is damaged (%s)", manifest, error)

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
            _log.warning("prebuilt SPIR-V is missing: %s", error)
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
        if _KEY.match(path.stem) and path.stem not in kept:
            path.unlink()
    entries.sort(key=lambda e: (e["source"], sorted(e["defines"].items()), e["arguments_in_memory"]))
    text = json.dumps({"format": 1, "modules": entries}, indent=1, sort_keys=True)
    write_atomically(folder / MANIFEST, text.encode("utf-8"))
