"""Folders and files of this user alone.

What another user could have written is not trusted. `own_folder` gives folders that no other user may write, `read_own`
reads regular files of this user alone, and `write_own` stores them.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import logging
import mmap
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from vkep.text import shortened
from vkep.threads import Threads

_log = logging.getLogger(__name__)

#: a name as long as those of entries
_LONGEST_NAME = "0" * 128
#: more bytes than this are read in parts of as many
_LONG = 8 << 20
#: prefix of a file that is being written
TEMPORARY = ".writing-"
#: permission bits that let other users write
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: reading waits for no writer of a FIFO, and follows no link. Windows has only the last of these flags
_READ = sum(getattr(os, flag, 0) for flag in ("O_NONBLOCK", "O_NOFOLLOW", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))


def own_folder(root: Path, *parts: str) -> Path:
    """Return ``root/parts``, or, with a warning, a folder that ends with the process (`process_folder`).

    The latter replaces a folder (``root``, or one below it) that another user owns or linked to, a root that every user
    may write to, folders whose permissions cannot be changed, and paths that the system does not take. Other folders of
    this user are made private: the root loses write permission of other users, folders below it all their permissions.
    What is no folder below the root is removed; a file of the user stays. Nothing is created; `make_folder` does that.
    Raises no `OSError`.
    """
    path = root
    for part in ("", *parts):
        path /= part
        try:
            problem = _problem(path, below=path != root)
        except (OSError, ValueError):  # nothing is there, or it cannot be read: who uses the folder gets the error
            break
        if problem:
            return _private(path, problem, parts)
    path = root.joinpath(*parts)
    try:
        os.lstat(path / _LONGEST_NAME)
    except ValueError:
        return _private(path, "is no path", parts)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
            return _private(path, f"cannot be used ({error.strerror})", parts)
    return path


def _private(path: Path, problem: str, parts: tuple[str, ...]) -> Path:
    _warn_once("%s %s: this process uses a private folder instead, which ends with it", shortened(str(path)), problem)
    return process_folder().joinpath(*parts)


def _problem(path: Path, below: bool) -> str:
    """Why a folder is not used; empty where it may be. Raises `OSError`."""
    if sys.platform != "win32":
        status, owners = path.lstat(), (os.geteuid(), 0)
        if below and not path.is_dir():
            if stat.S_ISREG(status.st_mode):
                return "is a file"
            path.unlink()
            return ""
        if status.st_uid in owners and stat.S_ISLNK(status.st_mode):
            status = path.stat()
        if status.st_uid not in owners:
            return "belongs to another user"
        unwanted = status.st_mode & (0o077 if below else OTHERS_WRITE)
        if unwanted and (below or not unwanted & stat.S_IWOTH):
            with contextlib.suppress(OSError):
                path.chmod(stat.S_IMODE(status.st_mode) & ~unwanted)
            unwanted = path.stat().st_mode
        if unwanted & OTHERS_WRITE:
            return "can be written to by other users"
    return ""


_warn_once = functools.cache(_log.warning)


def process_folder() -> Path:
    """Return a folder of this process alone, which is removed when the process ends."""
    return _process_folder(os.getpid())


@functools.cache
def _process_folder(process: int) -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="vkep-"))
    except OSError:
        return Path(os.devnull, "vkep")  # nothing can be written there: nothing is kept

    def remove() -> None:
        if os.getpid() == process:  # a forked child leaves it
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    import multiprocessing.util  # it loads modules that planning does without

    multiprocessing.util.Finalize(None, remove, exitpriority=0)  # processes that multiprocessing forks skip atexit
    return folder


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents for this user alone, whatever the umask. Raises `OSError`."""
    if not path.is_dir():
        if path.parent != path:  # of a drive that Windows has not
            make_folder(path.parent)
        with contextlib.suppress(FileExistsError):  # another process made it; or a file is there, and writing fails
            path.mkdir(0o700)


class NotOwnFileError(OSError):
    """What lies at a path is no regular file of this user with the expected size and permissions."""


def is_own_file(status: os.stat_result, forbidden: int = 0) -> bool:
    """Whether a status is that of a regular file of this user, without the permission bits ``forbidden``."""
    if not stat.S_ISREG(status.st_mode):
        return False
    return sys.platform == "win32" or (status.st_uid == os.geteuid() and not status.st_mode & forbidden)


def read_own(path: Path, limit: int, forbidden: int = 0) -> bytes | memoryview:
    """Read a regular file of this user with at most ``limit`` bytes and none of the permission bits ``forbidden``; a long one by
    several threads.

    Anything else (a FIFO, a device, a link, a folder, another user's file) is `NotOwnFileError`: it is not waited for
    and not followed. Raises `OSError`.
    """
    try:
        handle = os.open(path, _READ)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV) or path.is_symlink():  # a socket, or a device that is not there
            raise NotOwnFileError(f"{path} is no regular file") from error
        raise
    try:
        status = os.fstat(handle)
        if not is_own_file(status, forbidden) or status.st_size > limit:
            raise NotOwnFileError(f"{path} is no regular file of this user, or has more than {limit} bytes")
        if status.st_size > _LONG and hasattr(os, "preadv"):
            return _read_long(handle, status.st_size)
        with open(handle, "rb", buffering=0, closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def _read_long(handle: int, size: int) -> memoryview:
    """The first ``size`` bytes of a file, in memory that the threads also get: the system clears it page by page, which takes as
    long as the copy. Raises `OSError`, also where the file has become shorter."""
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    content = memoryview(memory)

    def read(at: int) -> None:
        end = min(at + _LONG, size)
        while at < end:
            got = os.preadv(handle, [content[at:end]], at)
            if not got:
                raise NotOwnFileError(f"the file ended at byte {at} of {size} while it was read")
            at += got

    with Threads(min(8, os.cpu_count() or 1), thread_name_prefix="vkep-read") as pool:
        list(pool.map(read, range(0, size, _LONG)))
    return content


def write_own(path: Path, data: bytes | Iterable[bytes | memoryview], mode: int = 0o600) -> None:
    """Write a file of the cache atomically. Missing folders are created, and a folder in its place is removed. Raises
    `OSError`."""
    make_folder(path.parent)
    if path.is_dir():
        remove(path)
    write_atomically(path, data, mode)


def remove(path: Path) -> None:
    """Remove a file or a link, or a folder with its content. Raises `OSError`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def write_atomically(path: Path, data: bytes | Iterable[bytes | memoryview], mode: int = 0o644) -> None:
    """Write a file (``data`` whole or in pieces) atomically: another process sees the old file, the new one or none,
    never a part. Raises `OSError`."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
