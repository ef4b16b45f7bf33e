"""What lies in the cache folder is used only where this user sealed it."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vkep import cache
from vkep.cache import CacheFolder, sealed, unsealed

KEY, OTHER = "ab" * 32, "cd" * 32


class Things(CacheFolder):
    what, suffix = "a thing", ".thing"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path / "cache"))


def _content(data: bytes) -> bytes:
    """What `sealed` gave for "name", which must be valid."""
    content = unsealed("name", data)
    assert content is not None
    return bytes(content)


@pytest.mark.parametrize("sizes", [[], [0], [1], [5, 0, 7], [1 << 23], [(1 << 23) - 1, 2], [3 << 23, 5]])
def test_sealed_data_is_unsealed(sizes: list[int]) -> None:
    parts = [os.urandom(size) for size in sizes]
    data = b"".join(sealed("name", parts))
    assert _content(data) == b"".join(parts)
    assert b"".join(sealed("name", b"".join(parts))) == data, "however it was cut"
    assert unsealed("another", data) is None


@pytest.mark.parametrize("at", [0, 7, -1, -32, -33])
def test_one_bit_is_enough(at: int) -> None:
    data = bytearray(b"".join(sealed("name", bytes(100))))
    data[at] ^= 4
    assert unsealed("name", bytes(data)) is None


@pytest.mark.parametrize("data", [b"", b"x", bytes(31), bytes(32), bytes(4096)])
def test_data_without_a_valid_seal_is_refused(data: bytes) -> None:
    assert unsealed("name", data) is None


def test_an_entry_under_another_name_is_dropped(tmp_path: Path) -> None:
    folder = Things(tmp_path / "things", 1 << 20)
    folder.store(KEY, b"one")
    folder.path(KEY).rename(folder.path(OTHER))
    assert folder.load(OTHER) is None and not folder.path(OTHER).exists()


def test_an_entry_under_another_secret_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Things(tmp_path / "things", 1 << 20)
    folder.store(KEY, b"mine")
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path / "another"))
    assert folder.load(KEY) is None


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.skipif(os.name == "nt", reason="modes")
def test_the_secret_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "secret"
    first = cache._secret(tmp_path / "cache")
    assert _mode(path) == 0o600 and path.read_bytes() == first
    path.chmod(0o644)  # others may have read it
    cache._secret.cache_clear()
    second = cache._secret(tmp_path / "cache")
    assert second != first and _mode(path) == 0o600 and path.read_bytes() == second
    path.write_bytes(b"short")
    cache._secret.cache_clear()
    assert len(cache._secret(tmp_path / "cache")) == 32


def _put(what: str, path: Path) -> None:
    """Put what cannot be an entry in its place."""
    path.unlink(missing_ok=True)
    if what == "fifo" and sys.platform != "win32":
        os.mkfifo(path, 0o600)
    elif what == "folder":
        (path / "inside").mkdir(parents=True)
    elif what == "link":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
        path.chmod(0o600)


_NO_ENTRIES = pytest.mark.parametrize("what", ["fifo", "folder", "link", "giant"])


@pytest.mark.skipif(os.name == "nt", reason="files of POSIX")
@_NO_ENTRIES
def test_what_is_no_secret_is_replaced(tmp_path: Path, what: str) -> None:
    _put(what, tmp_path / "secret")
    found = cache._secret.__wrapped__(tmp_path)
    assert cache._secret.__wrapped__(tmp_path) == found == (tmp_path / "secret").read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="files of POSIX")
@_NO_ENTRIES
def test_what_is_no_entry_is_dropped_and_made_again(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Things(tmp_path / "things", 1 << 20)
    folder.store(KEY, b"one")
    _put(what, folder.path(KEY))
    assert folder.load(KEY) is None and not os.path.lexists(folder.path(KEY))
    _put(what, folder.path(KEY))  # since it was looked for
    folder.store(KEY, b"one")
    assert bytes(folder.load(KEY) or b"") == b"one"
    assert caplog.text.count("damaged cache entry") == 1 and "not cached" not in caplog.text


def test_an_entry_for_which_memory_does_not_suffice_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(name: str, data: bytes) -> None:
        raise MemoryError

    folder = Things(tmp_path / "things", 1 << 20)
    folder.store(KEY, b"one")
    monkeypatch.setattr(cache, "unsealed", no_memory)
    assert folder.load(KEY) is None and not folder.path(KEY).exists()


def test_what_fits_no_folder_of_the_size_is_pruned_first(tmp_path: Path) -> None:
    folder = Things(tmp_path / "things", 1 << 20)
    folder.store(KEY, b"one")
    with folder.path(OTHER).open("wb") as file:
        file.truncate(1 << 40)
    assert folder.prune() == 1 << 40 and bytes(folder.load(KEY) or b"") == b"one"


def test_many_make_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: cache._secret.__wrapped__(tmp_path / "shared"), range(16)))
    assert len(found) == 1
    assert [p.name for p in (tmp_path / "shared").iterdir()] == ["secret"]


def test_a_file_system_without_hard_links_keeps_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, target: Path) -> None:
        raise PermissionError("no hard links")

    monkeypatch.setattr(os, "link", link)
    found = cache._secret.__wrapped__(tmp_path)
    assert cache._secret.__wrapped__(tmp_path) == found
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


def test_a_cache_folder_without_a_secret_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path / "file" / "below"))
    data = b"".join(sealed("name", b"content"))
    assert _content(data) == b"content", "within this process"
