"""Reading the delegate's bytes: the RFC's program, and two thousand damaged copies of the two delegates."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.aten.blobs import by_onnxruntime, model_proto
from vkep.aten import import_vk_graph, unsupported_operators
from vkep.errors import InvalidPteError, UnsupportedProgramError
from vkep.pte.vk_graph import VkDataType, VkTensor, decode_vk_graph

DATA = Path(__file__).parent / "data"
FIRST, SECOND = ((DATA / f"rfc_{k}.vkblob").read_bytes() for k in range(2))


@pytest.fixture(scope="module")
def named() -> dict[str, bytes]:
    with np.load(DATA / "rfc_named.npz") as file:
        return {key: file[key].tobytes() for key in file.files}


def test_the_rfcs_graph() -> None:
    graph = decode_vk_graph(FIRST)
    names = ["permute_copy", "avg_pool2d", "index_select", "gather", "index_select", "cos"]
    assert [c.name for c in graph.chain] == ["et_vk.prepack.default"] * 3 + [f"aten.{n}.default" for n in names]
    assert graph.version == "0"
    (x,) = (graph.values[i] for i in graph.input_ids)
    assert isinstance(x, VkTensor)
    assert (x.datatype, x.dims, x.constant_id) == (VkDataType.FLOAT32, (1, 3, 8, 8), -1)
    assert [len(entry.named_key) for entry in graph.constants] == [64] * 3


def test_the_rfcs_program_up_to_its_division(named: dict[str, bytes]) -> None:
    """The first delegate gives the indexed picture and its cosine; the second takes the reciprocal of that."""
    x = np.linspace(-0.8, 0.8, 192, dtype=np.float32).reshape(1, 3, 8, 8)
    picture, cosine = by_onnxruntime(model_proto(import_vk_graph(decode_vk_graph(FIRST), named).model), {"input_0": x})
    pooled = x.swapaxes(2, 3).reshape(1, 3, 4, 2, 4, 2).mean((3, 5))[:, [2, 0, 1]]
    wanted = pooled[:, :, :, [3, 1, 2, 0]][:, :, [3, 1, 2, 0]]
    np.testing.assert_allclose(picture, wanted, atol=1e-6)
    np.testing.assert_allclose(cosine, np.cos(wanted), atol=1e-6)
    second = model_proto(import_vk_graph(decode_vk_graph(SECOND), named).model)
    (out,) = by_onnxruntime(second, {"input_0": picture, "input_1": 1 / cosine})
    np.testing.assert_allclose(out, np.tan(wanted).swapaxes(2, 3), atol=1e-5)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "got 0 bytes, expected a header of 30"),
        (FIRST[:29], "got 29 bytes"),
        (b"\0\0\0\0VH99" + FIRST[8:], "got the magic b'VH99'"),
        (FIRST[:200], "the file is damaged"),
        (FIRST[:10] + struct.pack("<I", 2**31) + FIRST[14:], "puts the graph at 2147483648"),
        (FIRST[:36] + b"XX99" + FIRST[40:], "got b'XX99' as its file identifier"),
    ],
)
def test_bytes_that_are_no_delegate_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidPteError, match=problem):
        decode_vk_graph(data)


def test_damaged_bytes_are_an_error_or_another_graph(named: dict[str, bytes]) -> None:
    rng = np.random.default_rng(7)
    outcomes = {"error": 0, "missing": 0, "graph": 0}
    for turn in range(2000):
        damaged = np.frombuffer(FIRST if turn % 2 else SECOND, np.uint8).copy()
        places = rng.integers(30, len(damaged), rng.integers(1, 6))
        damaged[places] = rng.integers(0, 256, len(places))
        try:
            graph = decode_vk_graph(damaged.tobytes())
            unsupported_operators(graph)
            import_vk_graph(graph, named)
            outcomes["graph"] += 1
        except UnsupportedProgramError:
            outcomes["missing"] += 1
        except InvalidPteError:
            outcomes["error"] += 1
    assert sum(outcomes.values()) == 2000
    assert min(outcomes.values()) > 0, outcomes
