"""Reading VGF files: what is in them, and bytes that are none."""

from __future__ import annotations

import random
import struct

import pytest

from tests.vgf.harness import DATA, need_vgf
from vkep.vgf import ConvertError, InvalidVgfError, decode, find_vgf, mlir_to_vgf


@pytest.fixture(autouse=True)
def _extra() -> None:
    need_vgf()


@pytest.fixture
def cnn() -> bytes:
    return (DATA / "executorch_cnn.vgf").read_bytes()


def test_the_contents_of_a_file(cnn: bytes) -> None:
    vgf = decode(cnn)
    assert [s.name for s in vgf.inputs] == ["input_0"] and [s.name for s in vgf.outputs] == ["output_0"]
    assert [vgf.resources[s.resource].shape for s in (*vgf.inputs, *vgf.outputs)] == [(1, 3, 32, 32), (1, 10)]
    assert [len(c.data) for c in vgf.constants] == [1728, 576, 2048, 128, 36864, 128, 1280]
    assert [(s.kind, len(s.constants)) for s in vgf.segments] == [("graph", 7)]
    assert vgf.to_dict()["resources"][0] == {
        "category": "constant",
        "descriptor_type": None,
        "format": "R32_SFLOAT",
        "shape": [16, 3, 3, 3],
        "stride": [],
    }


def test_files_inside_another_container_are_found(cnn: bytes) -> None:
    pool = (DATA / "executorch_pool.vgf").read_bytes()
    assert find_vgf(b"head VGF1 text" + pool + b"between" + cnn + b"VGF1") == [pool, cnn]
    assert find_vgf(b"nothing here") == []


@pytest.mark.parametrize("kept", [0, 3, 4, 100, 127, 128, 1000, 20000, -1])
def test_a_truncated_file(cnn: bytes, kept: int) -> None:
    with pytest.raises(InvalidVgfError):
        decode(cnn[:kept])


def test_a_wrong_magic(cnn: bytes) -> None:
    with pytest.raises(InvalidVgfError, match="no VGF file"):
        decode(b"ELF\x7f" + cnn[4:])


def test_a_future_version(cnn: bytes) -> None:
    with pytest.raises(InvalidVgfError, match=r"VGF version 9\.5\.0"):
        decode(cnn[:8] + b"\x09" + cnn[9:])


def test_damaged_sections(cnn: bytes) -> None:
    """Every byte of the tables' first parts flipped: an error or another file, never a crash."""
    for at in range(16, 600, 7):
        damaged = bytearray(cnn)
        damaged[at] ^= 0xFF
        try:
            decode(bytes(damaged))
        except InvalidVgfError:
            continue


def test_a_missing_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from vkep.vgf import convert

    convert.converter.cache_clear()
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "model_converter" else found(n))
    with pytest.raises(ConvertError, match=r"needs the package ai-ml-sdk-model-converter: pip install 'vkep\[vgf\]'"):
        mlir_to_vgf("")
    convert.converter.cache_clear()


def test_a_source_that_the_converter_refuses() -> None:
    with pytest.raises(ConvertError, match=r"the model converter failed \(\d+\): .*custom op 'nonsense' is unknown"):
        mlir_to_vgf("nonsense")


def _mutations(data: bytes, seed: int) -> bytes:
    """The file with some bytes, words or spans changed, mostly in its tables."""
    rng = random.Random(seed)
    made = bytearray(data)
    tables = min(len(made), 6000)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(4, min(tables, len(made)) if rng.random() < 0.9 else len(made))
        what = rng.randrange(5)
        if what == 0:
            made[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            made[at : at + 4] = rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, len(data))).to_bytes(4, "little")
        elif what == 2:
            made[at : at + 8] = rng.choice((2**64 - 1, 2**63, len(data) - 1, 2**32)).to_bytes(8, "little")
        elif what == 3:
            del made[at : at + rng.choice((1, 4, 64))]
        else:
            other = rng.randrange(4, tables)
            made[at : at + 16] = made[other : other + 16]
    return bytes(made)


@pytest.mark.parametrize("name", ["executorch_pool.vgf", "executorch_trig.vgf", "executorch_cnn.vgf"])
def test_a_thousand_damaged_files_are_read_or_refused(name: str) -> None:
    """An error of vkep's own, or a file whose every index lies inside it."""
    data = (DATA / name).read_bytes()
    refused = 0
    for seed in range(1200):
        try:
            vgf = decode(_mutations(data, seed))
        except InvalidVgfError:
            refused += 1
            continue
        assert all(0 <= s.resource < len(vgf.resources) for s in (*vgf.inputs, *vgf.outputs))
        assert all(0 <= s.module < len(vgf.modules) for s in vgf.segments)
        for constant in vgf.constants:
            assert len(constant.data) == vgf.resources[constant.resource].nbytes
    assert 0 < refused < 1200


def test_constants_that_overlap(cnn: bytes) -> None:
    """Rows that name one part of the file would become any number of copies of it."""
    (start,) = struct.unpack_from("<Q", cnn, 16 + 3 * 16)
    rows, largest = start + 16, 24 * 4
    row = cnn[rows + largest : rows + largest + 24]
    with pytest.raises(InvalidVgfError, match="code and constants overlap: they are more than the file's 48192 bytes"):
        decode(cnn[:rows] + row * 7 + cnn[rows + 7 * 24 :])


def test_shapes_that_do_not_match_the_data(cnn: bytes) -> None:
    """A constant whose shape says more than its bytes hold."""
    shape = struct.pack("<4q", 16, 3, 3, 3)
    at = cnn.index(shape)
    with pytest.raises(
        InvalidVgfError, match=r"constant 0 has 1728 bytes; resource 0 \(float32 \[17, 3, 3, 3\]\) takes 1836"
    ):
        decode(cnn[:at] + struct.pack("<4q", 17, 3, 3, 3) + cnn[at + len(shape) :])
    with pytest.raises(InvalidVgfError, match="constant 0 has 1728 bytes"):
        decode(cnn[:at] + struct.pack("<4q", -16, 3, 3, 3) + cnn[at + len(shape) :])
