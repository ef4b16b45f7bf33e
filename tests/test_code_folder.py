"""What vkep loads or runs as code from its cache folder was written by this user, and no other may write it."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from vkep import cache

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes of POSIX")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path / "cache"))
    cache._private_folder.cache_clear()
    return tmp_path / "cache"


def test_others_may_not_write_where_code_lies(root: Path) -> None:
    (root / "ort").mkdir(parents=True)
    for folder in (root, root / "ort"):
        folder.chmod(0o777)
    folder = cache.code_folder("ort", "1234")
    assert folder == root / "ort" / "1234" and folder.is_dir()
    assert [path.stat().st_mode & 0o022 for path in (root, root / "ort", folder)] == [0, 0, 0]


def test_a_file_is_trusted_that_only_this_user_may_write(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = cache.code_folder("ort") / "library.so"
    assert not cache.is_trusted(library)
    library.write_bytes(b"")
    library.chmod(0o755)
    assert cache.is_trusted(library)
    library.chmod(0o775)
    assert not cache.is_trusted(library)
    library.chmod(0o755)
    _as_another_user(monkeypatch)
    assert not cache.is_trusted(library)


def test_another_users_folder_is_not_used_for_code(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "ort" / "1234").mkdir(parents=True)
    (root / "ort" / "1234" / "library.so").write_bytes(b"planted")
    _as_another_user(monkeypatch)
    with caplog.at_level(logging.WARNING):
        folder = cache.code_folder("ort", "1234")
    assert root not in folder.parents and not folder.exists()  # which another user could make
    assert "belongs to another user" in caplog.text
    assert cache.code_folder("ort", "1234") == folder


def _as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of this test seem to belong to a user who is neither this one nor root."""
    stat = Path.stat

    def of_another(self: Path, **rest: bool) -> os.stat_result:
        fields = list(stat(self, **rest))
        fields[4] += 1
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "stat", of_another)
