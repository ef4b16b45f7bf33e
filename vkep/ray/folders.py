"""Folders of shipped models, which several processes of a node use: a folder that one of them holds is not removed.

A process holds a folder by a shared lock on a file in it, which the system releases where the process ends. On
Windows it keeps that file open instead: Windows renames no folder with an open file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger("vkep.ray")

#: bytes that the models of a node may take
LIMIT = 64 << 30
_LOCK = ".in-use"
_held: dict[Path, IO[bytes]] = {}


def hold(folder: Path) -> None:
    """Create a folder and keep it until this process ends. Raises ``OSError``."""
    while folder not in _held or not _same(folder, _held[folder]):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = open(folder / _LOCK, "ab")  # noqa: SIM115 -- it is open as long as the process
        except FileNotFoundError:  # it was removed since
            continue
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_SH)  # waits while another process removes the folder
        _held[folder] = file
    with contextlib.suppress(OSError):
        os.utime(folder / _LOCK)


def prune(root: Path, limit: int = LIMIT) -> list[Path]:
    """Remove folders below ``root`` that no process holds, those held longest ago first, until the rest has ``limit`` bytes.

    Returns what was removed.
    """
    found = []
    for folder in root.iterdir():
        with contextlib.suppress(OSError):  # another process may remove it at the same time
            found.append(((folder / _LOCK).stat().st_mtime_ns, _size(folder), folder))
    total = sum(size for _, size, _ in found)
    removed: list[Path] = []
    for _, size, folder in sorted(found):
        if total <= limit:
            break
        if _removed(folder):
            total -= size
            removed.append(folder)
    if total > limit:
        logger.warning("the models in %s take %d bytes, more than %d, and are all in use", root, total, limit)
    return removed


def _removed(folder: Path) -> bool:
    """Remove a folder, unless a process holds it."""
    if folder in _held:
        return False
    try:
        if sys.platform == "win32":
            removed = folder.with_name(f"{folder.name}.removed-{os.getpid()}")
            folder.rename(removed)  # an error where a process has a file in it open
            shutil.rmtree(removed)
        else:
            with open(folder / _LOCK, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
    except OSError:  # held, or not this user's
        return False
    return True


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _same(folder: Path, file: IO[bytes]) -> bool:
    """Whether an open lock is the folder's: it is another's where the folder was removed and made again."""
    with contextlib.suppress(OSError):
        return os.path.samestat((folder / _LOCK).stat(), os.fstat(file.fileno()))
    return False
