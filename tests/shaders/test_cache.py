"""The disk cache: damaged entries, several processes, its bound; prebuilt folders."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vkep.cache import cache_root
from vkep.shaders.cache import MANIFEST, PrebuiltEntry, PrebuiltSpirv, SpirvCache, write_prebuilt

KEY = "ab" * 32
OTHER = "cd" * 32


def entry(key: str, data: bytes) -> tuple[PrebuiltEntry, bytes]:
    return PrebuiltEntry(key, "k.comp", {"T": "float"}, False, hashlib.sha256(data).hexdigest()), data


def test_the_environment_variable_names_the_folder(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root() == own_cache
    assert SpirvCache().folder == own_cache / "spirv"
    monkeypatch.delenv("VKEP_CACHE_DIR")
    assert "vkep" in cache_root().parts


def test_stored_modules_are_loaded(tmp_path: Path) -> None:
    cache = SpirvCache(tmp_path / "c")
    assert cache.load(KEY) is None
    cache.store(KEY, b"module")
    assert bytes(SpirvCache(tmp_path / "c").load(KEY) or b"") == b"module"
    assert cache.load(OTHER) is None


@pytest.mark.parametrize("key", ["", "../" + "a" * 61, "AB" * 32, KEY + "\n"])
def test_only_digests_are_keys(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="no cache key"):
        SpirvCache(tmp_path).store(key, b"")


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "longer", "header"])
def test_a_damaged_entry_is_dropped_and_reported(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    cache = SpirvCache(tmp_path / "c")
    cache.store(KEY, b"module" * 10)
    path = cache.path(KEY)
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-3] ^= 1
    elif damage == "header":
        data[3] ^= 1
    path.write_bytes({"empty": b"", "short": bytes(data[:-4]), "longer": bytes(data) + b"x"}.get(damage, bytes(data)))
    assert cache.load(KEY) is None
    assert not path.exists()
    assert "damaged cache entry" in caplog.text
    cache.store(KEY, b"again")
    assert bytes(cache.load(KEY) or b"") == b"again"


def test_prune_drops_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = SpirvCache(tmp_path / "c")
    keys = [f"{i:064x}" for i in range(4)]
    for age, key in enumerate(keys):
        cache.store(key, bytes(1000))
        os.utime(cache.path(key), (1000 + age, 1000 + age))
    assert cache.load(keys[0]) is not None  # used now: the others are older
    size = cache.path(keys[0]).stat().st_size
    assert cache.prune(2 * size) == 2 * size
    assert [cache.path(key).exists() for key in keys] == [True, False, False, True]


def test_a_cache_keeps_to_its_limit_by_itself(tmp_path: Path) -> None:
    first = SpirvCache(tmp_path / "c", limit=5000)
    for i in range(10):
        first.store(f"{i:064x}", bytes(1000))
    SpirvCache(tmp_path / "c", limit=5000).store(KEY, bytes(1000))  # a process looks at the size as it begins to store
    assert sum(p.stat().st_size for p in (tmp_path / "c").iterdir()) <= 5000


def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = SpirvCache(tmp_path / "file" / "below")
    cache.store(KEY, b"module")
    cache.store(OTHER, b"module")
    assert cache.load(KEY) is None
    SpirvCache(tmp_path / "file" / "below").store(KEY, b"module")  # another session's
    assert caplog.text.count("not cached on disk") == 1


def test_a_limit_is_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="positive"):
        SpirvCache(tmp_path, limit=0)


def test_a_prebuilt_folder_serves_what_it_lists(tmp_path: Path) -> None:
    write_prebuilt(tmp_path / "p", [entry(KEY, b"one"), entry(OTHER, b"two")])
    prebuilt = PrebuiltSpirv(tmp_path / "p")
    assert (len(prebuilt), prebuilt.load(KEY), prebuilt.load(OTHER)) == (2, b"one", b"two")
    assert prebuilt.load("ee" * 32) is None


def test_writing_a_prebuilt_folder_again_removes_stale_modules(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "mine.spv").write_bytes(b"a user's own")
    write_prebuilt(tmp_path / "p", [entry(KEY, b"one"), entry(OTHER, b"two")])
    write_prebuilt(tmp_path / "p", [entry(OTHER, b"two")])
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == sorted([f"{OTHER}.spv", "mine.spv", MANIFEST])


def test_damage_to_a_prebuilt_folder_is_reported_not_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_prebuilt(tmp_path / "p", [entry(KEY, b"one"), entry(OTHER, b"two")])
    (tmp_path / "p" / f"{KEY}.spv").write_bytes(b"0ne")
    (tmp_path / "p" / f"{OTHER}.spv").unlink()
    prebuilt = PrebuiltSpirv(tmp_path / "p")
    assert prebuilt.load(KEY) is None
    assert prebuilt.load(OTHER) is None
    assert "damaged" in caplog.text
    assert "missing" in caplog.text
    (tmp_path / "p" / MANIFEST).write_text("{")
    assert len(PrebuiltSpirv(tmp_path / "p")) == 0


WORKER = """
import sys
from pathlib import Path
from vkep.plan.records import ShaderVariant
from vkep.shaders import ShaderLibrary
folder, cache = map(Path, sys.argv[1:])
print("ready", flush=True)
sys.stdin.readline()
library = ShaderLibrary([folder], cache)
for alpha in range(4):
    shader = library.spirv(ShaderVariant("scale.comp", (("UNUSED", str(alpha)),)))
    print(shader.key, len(shader.words), flush=True)
"""


def test_two_processes_share_a_cache(tmp_path: Path, template: str) -> None:
    (tmp_path / "glsl").mkdir()
    (tmp_path / "glsl" / "scale.comp").write_text(template)
    command = [sys.executable, "-c", WORKER, str(tmp_path / "glsl"), str(tmp_path / "shared")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    outputs = []
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        outputs.append(worker.communicate(timeout=600)[0])
        assert worker.returncode == 0
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 4
    files = list((tmp_path / "shared").iterdir())
    assert len(files) == 4
    assert all(SpirvCache(tmp_path / "shared").load(file.stem) for file in files)


def test_files_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    cache = SpirvCache(tmp_path)
    old, new = tmp_path / ".writing-old", tmp_path / ".writing-new"
    old.write_bytes(b"part")
    new.write_bytes(b"part")
    os.utime(old, (1, 1))
    cache.store(KEY, b"module")
    assert not old.exists() and new.exists() and bytes(cache.load(KEY) or b"") == b"module"
