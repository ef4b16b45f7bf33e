"""Folders of shipped models: those in use stay, the others go by age."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from vkep.ray import folders
from vkep.ray.models import packed


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder; what a test holds is released after it."""
    held: dict[Path, IO[bytes]] = {}
    monkeypatch.setattr(folders, "_held", held)
    yield tmp_path
    release(held)


def release(held: dict[Path, IO[bytes]]) -> None:
    while held:
        held.popitem()[1].close()


def made(root: Path, name: str, age: int, nbytes: int = 100) -> Path:
    """A folder of so many bytes that was last held ``age`` seconds ago, and is not held."""
    folder = root / name
    folders.hold(folder)
    folders._held.pop(folder).close()
    (folder / "model.onnx").write_bytes(b"x" * nbytes)
    os.utime(folder / ".in-use", (1e9 - age, 1e9 - age))
    return folder


def test_the_oldest_go_until_the_rest_fits(root: Path) -> None:
    old, new, older = made(root, "old", 20), made(root, "new", 10), made(root, "older", 30)
    assert folders.prune(root, 300) == [] and folders.prune(root, 299) == [older]
    assert not older.exists() and old.exists()
    assert folders.prune(root, 100) == [old] and new.exists()


def test_folders_that_a_process_holds_stay(root: Path) -> None:
    mine, other = made(root, "mine", 30), made(root, "other", 20)
    code = (
        "import pathlib, sys; from vkep.ray import folders; folders.hold(pathlib.Path(sys.argv[1])); "
        "print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(other)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        folders.hold(mine)
        assert folders.prune(root, 0) == []
        process.communicate(b"\n")
    assert folders.prune(root, 0) == [other] and mine.exists()


def test_a_folder_that_was_removed_is_held_again(root: Path) -> None:
    folder = made(root, "m", 30)
    folders.hold(folder)
    release(folders._held)  # as where its process ends
    assert folders.prune(root, 0) == [folder]
    folders.hold(folder)
    assert folders.prune(root, 0) == [] and folder.exists()


def test_writing_a_model_removes_old_ones(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKEP_CACHE_DIR", str(root))
    monkeypatch.setattr(folders.prune, "__defaults__", (250,))
    paths = [packed(np.full(100, at, np.uint8).tobytes()).path() for at in range(2)]
    release(folders._held)
    os.utime(paths[0].parent / ".in-use", (1, 1))
    third = packed(np.full(100, 9, np.uint8).tobytes()).path()
    assert [path.exists() for path in (*paths, third)] == [False, True, True]
