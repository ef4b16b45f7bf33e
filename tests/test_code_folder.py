"""What vkep loads from its cache folder was written by this user, and no other may write it."""

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from vkep import SessionOptions, cache, own_files
from vkep.session.options import plans_folder, spirv_folder
from vkep.shaders.compiler import _executable_copy

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes of POSIX")

_ANOTHER = 65534


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path / "cache"))
    own_files._warn_once.cache_clear()
    own_files._process_folder.cache_clear()
    return tmp_path / "cache"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a path, not what it links to, to another user; where only root can do that, this user becomes another one."""
    if sys.platform != "win32":
        if os.geteuid() == 0:
            os.lchown(path, _ANOTHER, _ANOTHER)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: _ANOTHER)


def test_folders_are_this_users_alone_whatever_the_umask(root: Path) -> None:
    before = os.umask(0)
    try:
        folder = cache.code_folder("ort", "1234")
        own_files.write_own(root / "plans" / "entry", b"")
    finally:
        os.umask(before)
    assert folder == root / "ort" / "1234"
    assert {_mode(path) for path in (root, root / "ort", folder, root / "plans")} == {0o700}
    assert _mode(root / "plans" / "entry") == 0o600


def test_folders_that_others_may_use_become_private(root: Path) -> None:
    (root / "ort").mkdir(parents=True)
    root.chmod(0o775)
    (root / "ort").chmod(0o777)
    assert cache.cache_folder("ort", "1234") == root / "ort" / "1234"
    assert (_mode(root), _mode(root / "ort")) == (0o755, 0o700)


@pytest.mark.parametrize("which", ["", "ort", "ort/1234"])
def test_another_users_folder_is_not_used(
    root: Path, which: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "ort" / "1234").mkdir(parents=True)
    (root / "ort" / "1234" / "library.so").write_bytes(b"planted")
    _give_away(root / which, monkeypatch)
    with caplog.at_level(logging.WARNING):
        folder = cache.code_folder("ort", "1234")
        assert cache.code_folder("ort", "1234") == folder
    assert root not in folder.parents and not list(folder.iterdir())
    assert caplog.text.count("belongs to another user") == 1


def test_a_root_that_every_user_may_write_to_is_not_used(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    root.mkdir()
    root.chmod(0o777)
    options = SessionOptions(cache_dir=root)
    for folder in (cache.cache_root(), cache.code_folder("ort"), spirv_folder(options), plans_folder(options)):
        assert folder is not None and root not in (folder, *folder.parents)
    assert caplog.text.count("can be written to by other users") == 1 and _mode(root) == 0o777


def test_a_folder_whose_permissions_stay_is_not_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "ort").mkdir(parents=True)
    (root / "ort").chmod(0o777)
    monkeypatch.setattr(
        Path, "chmod", lambda path, mode: None
    )  # as on a file system without modes, or another's folder
    assert root not in cache.code_folder("ort").parents


def test_links_of_this_user_are_followed_and_others_are_not(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("there", "plans"):
        (tmp_path / name).mkdir(0o700)
    root.symlink_to(tmp_path / "there")
    (root / "plans").symlink_to(tmp_path / "plans")
    assert cache.cache_folder("plans") == root / "plans"
    _give_away(root / "plans", monkeypatch)
    assert root not in cache.cache_folder("plans").parents


def test_a_file_of_the_user_in_place_of_a_folder_stays(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    root.mkdir()
    (root / "plans").write_text("mine")
    assert root not in own_files.own_folder(root, "plans").parents
    assert (root / "plans").read_text() == "mine"
    assert "is a file: this process uses a private folder instead" in caplog.text


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["x" * 200] * 30), "a\0b", "circle"])
def test_a_path_that_the_system_does_not_take_is_replaced(
    root: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    root.mkdir()
    (root / "circle").symlink_to(root / "circle")
    folder = own_files.own_folder(root / name, "plans")
    assert root not in folder.parents and "private folder" in caplog.text and len(caplog.text) < 5000
    own_files.write_own(folder / ("0" * 64), b"content")


@pytest.mark.parametrize("what", ["fifo", "link"])
def test_what_is_no_folder_is_replaced_by_one(root: Path, what: str) -> None:
    root.mkdir()
    _put(what, root / "plans")
    things = own_files.own_folder(root, "plans")
    own_files.write_own(things / "entry", b"content")
    assert own_files.read_own(root / "plans" / "entry", 7) == b"content"


def test_without_a_temporary_folder_nothing_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(prefix: str) -> str:
        raise FileNotFoundError(prefix)

    monkeypatch.setattr(tempfile, "mkdtemp", no_room)
    with pytest.raises(OSError, match="Not a directory"):
        own_files.write_own(own_files._process_folder.__wrapped__(0) / "entry", b"")


# ---- files


def _put(what: str, path: Path) -> None:
    """Put something at a path that is not a file of a few bytes."""
    if what == "fifo" and sys.platform != "win32":
        os.mkfifo(path)
    elif what == "folder":
        (path / "inside").mkdir(parents=True)
    elif what == "link":
        path.symlink_to(path.parent / "nothing")
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40 if what == "giant" else 1)


@pytest.mark.parametrize("what", ["fifo", "folder", "link", "device", "giant"])
def test_what_is_no_file_of_this_user_is_neither_waited_for_nor_followed(root: Path, what: str) -> None:
    root.mkdir()
    path = root / "entry"
    _put(what, path)
    with pytest.raises(own_files.NotOwnFileError):
        own_files.read_own(path, 1 << 20)
    own_files.write_own(path, b"content")
    assert own_files.read_own(path, 7) == b"content"
    (root / "link").symlink_to(path)
    with pytest.raises(own_files.NotOwnFileError):
        own_files.read_own(root / "link", 7)


@pytest.mark.parametrize("size", [1000, 1001, 4000, 4321])
def test_a_long_file_is_read_in_parts(root: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(own_files, "_LONG", 1000)
    path, content = root / "entry", os.urandom(size)
    own_files.write_own(path, content)
    assert own_files.read_own(path, size) == content
    with path.open("rb") as file, pytest.raises(own_files.NotOwnFileError, match=f"at byte {size} of {size + 1}"):
        own_files._read_long(file.fileno(), size + 1)


def test_a_file_of_another_user_or_with_other_permissions_is_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root / "entry"
    own_files.write_own(path, b"content", mode=0o664)
    assert own_files.read_own(path, 7) == b"content"
    for limit, forbidden in ((6, 0), (7, 0o022)):
        with pytest.raises(own_files.NotOwnFileError):
            own_files.read_own(path, limit, forbidden)
    _give_away(path, monkeypatch)
    with pytest.raises(own_files.NotOwnFileError):
        own_files.read_own(path, 7)


# ---- code


def test_code_is_used_as_it_was_made(root: Path) -> None:
    path = cache.code_folder("ort") / "library.so"
    assert not cache.has_kept_digest(path, "sources")
    own_files.write_own(path, b"code", mode=0o755)
    assert not cache.has_kept_digest(path, "sources")
    cache.keep_digest(path, "sources")
    assert cache.has_kept_digest(path, "sources") and not cache.has_kept_digest(path, "other sources")
    path.chmod(0o775)
    assert not cache.has_kept_digest(path, "sources")
    path.chmod(0o755)
    path.write_bytes(b"c0de")
    assert not cache.has_kept_digest(path, "sources")


@pytest.mark.parametrize("damage", ["other bytes", "fifo", "folder", "link", "file"])
def test_a_tools_copy_is_checked(root: Path, tmp_path: Path, damage: str) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho good\n")
    copy = _executable_copy(tool)
    if damage == "other bytes":
        copy.write_text("#!/bin/sh\necho evil\n")
    else:
        copy.unlink()
        _put(damage, copy)
    assert _executable_copy(tool) == copy and not copy.is_symlink()
    assert copy.read_bytes() == tool.read_bytes() and _mode(copy) == 0o700
