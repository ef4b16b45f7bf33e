"""Files that are kept between processes: vkep's cache folder, and bounded folders of entries by key.

Several processes may use one folder: an entry is written to a temporary file and renamed. An entry ends with a seal: a
digest of its name and all its bytes, under a secret that only this user can read. An entry that another user wrote, or
that is damaged, is dropped and made again.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import hmac
import logging
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import platformdirs

_log = logging.getLogger(__name__)

_SEAL_BYTES = 32
#: a seal is computed from digests of pieces of this many bytes, which threads compute in parallel
_PIECE = 8 << 20
# suffix of a file that is being written, and the age in seconds after which its writer counts as dead
_TEMPORARY, _ABANDONED_S = ".writing-", 3600
#: permission bits that let other users write
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_KEY = re.compile(r"[0-9a-f]{64}\Z")
#: folders whose write failure was reported: each session has its own cache objects
_reported: set[Path] = set()
_reported_lock = threading.Lock()


def cache_root() -> Path:
    """Return the root of vkep's caches: ``$VKEP_CACHE_DIR``, or the platform's cache folder of the user."""
    chosen = os.environ.get("VKEP_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("vkep", appauthor=False))


def code_folder(*parts: str) -> Path:
    """Return a folder below the cache for files that are loaded or run as code: no other user may write to it.

    Write permission of other users is removed. Where a parent folder belongs to another user, a private folder that
    ends with the process replaces it, with a warning. Raises no `OSError`: the caller gets it when it writes to the
    folder.
    """
    root = cache_root()
    folder = root.joinpath(*parts)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder, *folder.parents):
            if not _belongs_to_this_user(path):
                return _private_folder(path).joinpath(*parts)
            _keep_others_out(path)
            if path == root:
                break
    return folder


def is_trusted(path: Path) -> bool:
    """Whether a file exists that this user (or root) wrote and no other user may write."""
    try:
        mode = path.stat().st_mode
        return _belongs_to_this_user(path) and (sys.platform == "win32" or not mode & _OTHERS_WRITE)
    except OSError:
        return False


def _belongs_to_this_user(path: Path) -> bool:
    return sys.platform == "win32" or path.stat().st_uid in (os.getuid(), 0)


def _keep_others_out(path: Path) -> None:
    mode = path.stat().st_mode
    if sys.platform != "win32" and mode & _OTHERS_WRITE and path.stat().st_uid == os.getuid():
        path.chmod(mode & ~_OTHERS_WRITE)


@functools.cache
def _private_folder(instead_of: Path) -> Path:
    _log.warning(
        "%s belongs to another user: code is not loaded from it, but compiled again in each process", instead_of
    )
    folder = Path(tempfile.mkdtemp(prefix="vkep-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def write_atomically(path: Path, data: bytes | Iterable[bytes | memoryview], mode: int = 0o644) -> None:
    """Write a file (``data`` whole or in pieces) atomically: another process sees the old file, the new one or none,
    never a part. Raises `OSError`."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def digest_of_files(folder: Path, suffixes: Collection[str]) -> str:
    """64 hex digits for the names and contents of the files with these suffixes in and below a folder, except in
    ``__pycache__``."""
    root = str(folder)
    found = []
    for parent, folders, names in os.walk(root):  # paths as text, for speed: opening a model waits for this
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [os.path.join(parent, name) for name in names if os.path.splitext(name)[1] in suffixes]
    digest = hashlib.sha256()
    for path in sorted(filter(os.path.isfile, found)):
        digest.update(f"\0{path[len(root) :]}\0".encode())
        with open(path, "rb", buffering=0) as file:
            digest.update(file.read())
    return digest.hexdigest()


def is_key(text: str) -> bool:
    """Whether a text is a key: 64 hexadecimal digits."""
    return _KEY.match(text) is not None


# ---- seals


def sealed(name: str, data: bytes | Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Return ``data`` followed by its seal, which `unsealed` checks under the same name."""
    digests, now, room = [], hashlib.sha256(), _PIECE
    for part in [data] if isinstance(data, bytes) else data:
        yield part
        rest = memoryview(part).cast("B")
        while len(rest) >= room:
            now.update(rest[:room])
            digests.append(now.digest())
            rest, now, room = rest[room:], hashlib.sha256(), _PIECE
        now.update(rest)
        room -= len(rest)
    if room != _PIECE:
        digests.append(now.digest())
    yield _seal(name, digests)


def unsealed(name: str, data: bytes) -> memoryview | None:
    """Return the content of a result of `sealed`; None where the seal does not match."""
    content = memoryview(data)[: max(len(data) - _SEAL_BYTES, 0)]
    pieces = [content[at : at + _PIECE] for at in range(0, len(content), _PIECE)]
    if len(pieces) > 1:
        with ThreadPoolExecutor(min(len(pieces), os.cpu_count() or 1)) as pool:
            digests = list(pool.map(_digest, pieces))
    else:
        digests = [_digest(piece) for piece in pieces]
    return content if hmac.compare_digest(_seal(name, digests), data[len(content) :]) else None


def _digest(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def _seal(name: str, digests: list[bytes]) -> bytes:
    return hmac.digest(_secret(cache_root()), b"".join([name.encode(), b"\0", *digests]), "sha256")


@functools.cache
def _secret(root: Path) -> bytes:
    """Return the secret of this user's cache folder; it is created where it is missing. Where it cannot be stored, the
    process uses a temporary one."""
    path, made = root / "secret", secrets.token_bytes(_SEAL_BYTES)
    for _ in range(2):  # another process may create it at the same time
        with contextlib.suppress(OSError):
            status = path.stat()
            private = sys.platform == "win32" or (status.st_uid == os.getuid() and not status.st_mode & 0o077)
            found = path.read_bytes()
            if private and len(found) == _SEAL_BYTES:
                return found
            path.unlink()
        with contextlib.suppress(OSError):
            root.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=root, prefix=_TEMPORARY)  # readable by its owner alone
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(made)
                os.link(temporary, path)
            finally:
                os.unlink(temporary)
    return made


# ---- folders


class CacheFolder:
    """A folder of sealed files by key (64 hex digits), bounded in size: the entries that were not used for longest are
    dropped."""

    what: ClassVar[str]  #: the kind of content, for messages
    suffix: ClassVar[str]
    #: stores between two checks of the folder's size; a process's first store checks too
    prune_every: ClassVar[int] = 256

    def __init__(self, folder: Path, limit: int) -> None:
        """``limit`` is in bytes. Raises ``ValueError`` where it is not positive."""
        if limit <= 0:
            raise ValueError(f"a cache limit is a positive number of bytes, got {limit}")
        self.folder, self.limit = folder, limit
        self._stores = 0
        self._usable = True

    def path(self, key: str) -> Path:
        """Return the path of an entry. Raises ``ValueError`` for a text that is not a cache key."""
        if not is_key(key):
            raise ValueError(f"{key!r} is no cache key, expected 64 hex digits")
        return self.folder / f"{key}{self.suffix}"

    def load(self, key: str) -> memoryview | None:
        """Return the entry, or None where there is none. A damaged one is removed and counts as missing."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        content = unsealed(path.name, data)
        if content is None:
            self.drop_damaged(path)
        else:
            self.used(path)
        return content

    def store(self, key: str, data: bytes | Iterable[bytes | memoryview]) -> None:
        """Store an entry. A folder that cannot be written is reported once in a process, and this object writes no more
        to it."""
        path = self.path(key)
        if not self._usable:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, sealed(path.name, data))
        except OSError as error:
            if path.is_file():  # Windows refuses to replace a file that another process reads: it has the same content
                return
            self._usable = False
            with _reported_lock:
                level = logging.DEBUG if self.folder in _reported else logging.WARNING
                _reported.add(self.folder)
            advice = "VKEP_CACHE_DIR names another folder"
            _log.log(level, "%s is not cached on disk: cannot write %s (%s); %s", self.what, path, error, advice)
            return
        if self._stores % self.prune_every == 0:
            self.prune()
        self._stores += 1

    def used(self, path: Path) -> None:
        """Record that an entry was used. In a read-only folder this has no effect, except on the order of dropping."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def drop_damaged(self, path: Path) -> None:
        """Remove an entry that cannot be read, and log a warning."""
        _log.warning("dropping a damaged cache entry: %s", path)
        with contextlib.suppress(OSError):
            path.unlink()

    def prune(self, limit: int | None = None) -> int:
        """Drop the entries not used for longest until the folder fits ``limit`` bytes; return the bytes dropped."""
        limit = self.limit if limit is None else limit
        self._remove_abandoned()
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

    def _remove_abandoned(self) -> None:
        """Remove the temporary files of writers that were killed."""
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f"{_TEMPORARY}*"):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > _ABANDONED_S:
                        path.unlink()
