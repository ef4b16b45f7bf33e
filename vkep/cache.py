"""Files that are kept between processes: vkep's cache folder, and bounded folders of entries by key.

Several processes may use one folder: an entry is written to a temporary file and renamed. An entry ends with a seal: a
digest of its name and all its bytes, under a secret that only this user can read. An entry that another user wrote, or
that is damaged, is dropped and made again. Code has its digest in such an entry beside it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import logging
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import platformdirs

from vkep.own_files import (
    OTHERS_WRITE,
    TEMPORARY,
    NotOwnFileError,
    make_folder,
    own_folder,
    read_own,
    remove,
    write_own,
)
from vkep.threads import Threads

_log = logging.getLogger(__name__)

_SEAL_BYTES = 32
#: a seal is computed from digests of pieces of this many bytes, which threads compute in parallel
_PIECE = 8 << 20
#: age in seconds of a file that is being written, after which its writer counts as dead
_ABANDONED_S = 3600
#: maximum bytes of a shared object
_LARGEST_CODE = 64 << 20
_KEY = re.compile(r"[0-9a-f]{64}\Z")
#: folders whose write failure was reported: each session has its own cache objects
_reported: set[Path] = set()
_reported_lock = threading.Lock()


def cache_root() -> Path:
    """Return the root of vkep's caches: ``$VKEP_CACHE_DIR``, or the platform's cache folder of the user (`own_folder`)."""
    return own_folder(_chosen_root())


def cache_folder(*parts: str) -> Path:
    """Return a folder below the root of vkep's caches (`own_folder`), which may not exist yet."""
    return own_folder(_chosen_root(), *parts)


def code_folder(*parts: str) -> Path:
    """As `cache_folder`, and create it. Raises no `OSError`: the caller gets it when it writes to the folder."""
    folder = cache_folder(*parts)
    with contextlib.suppress(OSError):
        make_folder(folder)
    return folder


def _chosen_root() -> Path:
    chosen = os.environ.get("VKEP_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("vkep", appauthor=False))


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


def unsealed(name: str, data: bytes | memoryview) -> memoryview | None:
    """Return the content of a result of `sealed`; None where the seal does not match."""
    content = memoryview(data)[: max(len(data) - _SEAL_BYTES, 0)]
    pieces = [content[at : at + _PIECE] for at in range(0, len(content), _PIECE)]
    if len(pieces) > 1:
        with Threads(min(len(pieces), os.cpu_count() or 1)) as pool:
            digests = list(pool.map(_digest, pieces))
    else:
        digests = [_digest(piece) for piece in pieces]
    return content if hmac.compare_digest(_seal(name, digests), data[len(content) :]) else None


def _digest(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def _seal(name: str, digests: list[bytes]) -> bytes:
    return hmac.digest(_secret(_chosen_root()), b"".join([name.encode(), b"\0", *digests]), "sha256")


@functools.cache
def _secret(root: Path) -> bytes:
    """Return the secret of this user's cache folder; it is created where it is missing. Where it cannot be stored, the
    process uses a temporary one."""
    root = own_folder(root)
    path, made = root / "secret", secrets.token_bytes(_SEAL_BYTES)
    for _ in range(2):  # another process may create it at the same time
        with contextlib.suppress(OSError):
            found = b""
            with contextlib.suppress(NotOwnFileError, PermissionError):
                found = bytes(read_own(path, _SEAL_BYTES, forbidden=0o077))
            if len(found) == _SEAL_BYTES:
                return found
            remove(path)
        with contextlib.suppress(OSError):
            make_folder(root)
            handle, temporary = tempfile.mkstemp(dir=root, prefix=TEMPORARY)  # readable by its owner alone
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(made)
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    raise
                except OSError:  # a file system without hard links: of several processes the last one's stays
                    os.replace(temporary, path)
            finally:
                os.unlink(temporary)
    return made


# ---- sealed files


def read_sealed(path: Path, limit: int) -> memoryview | None:
    """Return the content that `write_sealed` wrote, or None where there is none. What is damaged, or not a file of this
    user with at most ``limit`` bytes, is removed and counts as missing."""
    try:
        content = unsealed(path.name, read_own(path, limit))
    except (NotOwnFileError, MemoryError):
        content = None
    except OSError:
        return None
    if content is None:
        drop_damaged(path)
    return content


def write_sealed(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write content for `read_sealed`, as `write_own`. Raises `OSError`."""
    write_own(path, sealed(path.name, data))


def drop_damaged(path: Path) -> None:
    """Remove an entry that cannot be read, and log a warning."""
    _log.warning("dropping a damaged cache entry: %s", path)
    with contextlib.suppress(OSError):
        remove(path)


def keep_digest(path: Path, made_from: str) -> None:
    """Seal the digest of a file of code, and of what it was made from, beside it. Raises `OSError`."""
    write_sealed(_digest_path(path), _code_digest(path, made_from))


def has_kept_digest(path: Path, made_from: str) -> bool:
    """Whether a file of code is this user's, no other user may write it, and `keep_digest` was called for its bytes with
    the same ``made_from``."""
    kept = read_sealed(_digest_path(path), 1 << 10)
    try:
        return kept is not None and kept == _code_digest(path, made_from)
    except (OSError, MemoryError):
        return False


def holds_code(path: Path, data: bytes) -> bool:
    """Whether a file of code is this user's, no other user may write it, and it has these bytes."""
    try:
        return read_own(path, len(data), forbidden=OTHERS_WRITE) == data
    except OSError:
        return False


def _digest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sealed")


def _code_digest(path: Path, made_from: str) -> bytes:
    content = hashlib.sha256(read_own(path, _LARGEST_CODE, forbidden=OTHERS_WRITE)).digest()
    return hashlib.sha256(content + made_from.encode()).digest()


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
        self.folder, self.limit = own_folder(folder), limit
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
        content = read_sealed(path, self.limit)
        if content is not None:
            self.used(path)
        return content

    def store(self, key: str, data: bytes | Iterable[bytes | memoryview]) -> None:
        """Store an entry. A folder that cannot be written is reported once in a process, and this object writes no more
        to it."""
        path = self.path(key)
        if not self._usable:
            return
        try:
            write_sealed(path, data)
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

    def prune(self, limit: int | None = None) -> int:
        """Drop the entries not used for longest until the folder fits ``limit`` bytes; return the bytes dropped."""
        limit = self.limit if limit is None else limit
        self._remove_abandoned()
        entries = []
        for path in self._entries():
            with contextlib.suppress(OSError):  # another process may drop it at the same time
                status = path.lstat()
                # what fits no folder of this size goes first, whatever its age: no entry has to go for it
                entries.append((status.st_size <= limit, status.st_mtime_ns, status.st_size, path))
        total, dropped = sum(size for *_, size, _ in entries), 0
        for *_, size, path in sorted(entries):
            if total - dropped <= limit:
                break
            with contextlib.suppress(OSError):
                remove(path)
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
            for path in self.folder.glob(f"{TEMPORARY}*"):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > _ABANDONED_S:
                        path.unlink()
