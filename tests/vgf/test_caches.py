"""What is made once: converted files and the driver's pipelines on disk, session memory in the arena."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_shared import data_graph
from gpu_shared.data_graph import DataGraphSession
from gpu_shared.layers import EMULATION_LAYERS
from tests.vgf.harness import Bench, need_vgf
from vkep.arena.config import ArenaConfig, ArenaMode
from vkep.device.datagraph.context import create_graph_context
from vkep.device.datagraph.delegate import VgfDelegate
from vkep.device.datagraph.runner import VgfRunner
from vkep.device.delegate import VulkanDelegate
from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.shaders.library import ShaderLibrary
from vkep.vgf import ConvertError, convert, decode, mlir_to_vgf
from vkep.vgf.convert import VgfCache

CHAIN = """
func.func @main(%x: tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32> {
  %s = tosa.sin %x : (tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32>
  %c = tosa.cos %s : (tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32>
  %r = tosa.reciprocal %c : (tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32>
  return %r : tensor<1x8x8x3xf32>
}
"""
SHAPE = (1, 8, 8, 3)


@pytest.fixture(autouse=True)
def _extra() -> None:
    need_vgf()


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources that the converter was run on."""
    made: list[str] = []
    real = convert._convert

    def counted(source: Any, options: tuple[str, ...]) -> bytes:
        made.append(source)
        return real(source, options)

    monkeypatch.setattr(convert, "_convert", counted)
    return made


# ---- converted files


def test_a_source_is_converted_once(conversions: list[str], tmp_path: Path) -> None:
    first = mlir_to_vgf(CHAIN, cache=VgfCache(tmp_path))
    assert mlir_to_vgf(CHAIN.encode(), cache=VgfCache(tmp_path)) == first
    assert conversions == [CHAIN]
    assert [p.suffix for p in tmp_path.iterdir()] == [".sealed-vgf"]


def test_another_source_version_or_damage_is_converted_again(
    conversions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = VgfCache(tmp_path)
    first = mlir_to_vgf(CHAIN, cache=cache)
    mlir_to_vgf(CHAIN.replace("tosa.sin", "tosa.tanh"), cache=cache)
    assert len(conversions) == 2
    monkeypatch.setattr(convert, "_package_version", lambda: "99.0")
    mlir_to_vgf(CHAIN, cache=cache)
    assert len(conversions) == 3
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-7])
    assert mlir_to_vgf(CHAIN, cache=cache) == first
    assert len(conversions) == 4


def test_a_refused_source_is_not_kept(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ConvertError):
            mlir_to_vgf("func.func @main() { nothing }", cache=VgfCache(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_without_the_converter_the_cache_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlir_to_vgf(CHAIN, cache=VgfCache(tmp_path))

    def missing() -> Path:
        raise ConvertError("TOSA to VGF needs the package")

    monkeypatch.setattr(convert, "converter", missing)
    with pytest.raises(ConvertError, match="needs the package"):
        mlir_to_vgf(CHAIN, cache=VgfCache(tmp_path))


# ---- the driver's pipelines


@pytest.mark.parametrize("own", [False, True])
def test_the_drivers_cache_goes_with_data_graphs_of_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """The emulation layers say that they support no cache of the caller's; drivers get vkep's, which is kept on disk."""
    fn = bench.context.device.fn
    real, given, saved = fn.vkCreateDataGraphPipelinesARM, [], []

    def create(device: Any, operation: int, cache: int, *rest: Any) -> int:
        given.append(cache)
        return real(device, operation, 0, *rest)

    monkeypatch.setattr(fn, "vkCreateDataGraphPipelinesARM", create)
    monkeypatch.setattr(bench.memory.pipelines, "save", lambda: saved.append(True))
    if own:
        monkeypatch.setattr(data_graph, "EMULATION_LAYERS", ())
    elif not set(EMULATION_LAYERS) & set(bench.context.instance.layers):
        pytest.skip("the data graphs are the driver's own here")
    vgf = decode(mlir_to_vgf(CHAIN.replace("tosa.cos", "tosa.exp" if own else "tosa.tanh")))
    VgfRunner(bench.delegate, vgf).close()
    assert [bool(cache) for cache in given] == [own]
    assert saved == [True]


# ---- recordings


def test_a_recording_is_not_used_again_once_a_buffer_of_it_is_freed(vulkan: Any) -> None:
    """Other memory may have the address. The second result is a copy of the first: its buffer is no tensor of the graph."""
    kind = "tensor<8xf32>"
    vgf = decode(
        mlir_to_vgf(
            f"func.func @main(%x: {kind}) -> ({kind}, {kind}) {{ %y = tosa.abs %x : ({kind}) -> {kind} "
            f"return %y, %y : {kind}, {kind} }}"
        )
    )
    with create_graph_context({"gpu_shared_context_token": "recordings"}, device=vulkan) as context:
        memory = VulkanDelegate(context, ShaderLibrary(), ArenaConfig(mode=ArenaMode.SEPARATE))
        delegate = VgfDelegate(memory)
        runner = VgfRunner(delegate, vgf)
        x = DeviceTensor.from_numpy(memory, np.full(8, -5, np.float32))
        first, second = (DeviceTensor(memory, DTYPES["float32"], (8,)) for _ in range(2))
        runner.submit([x], [first, second])
        (recorded,) = runner._recordings.values()
        np.testing.assert_array_equal(second.numpy(), np.full(8, 5))
        stale = [recorded.stale]
        second.close()
        context.timeline.wait()
        assert memory.arena.shrink()
        assert [*stale, recorded.stale] == [False, True]
        for thing in (x, first, runner, delegate, memory):
            thing.close()


# ---- session memory


def test_session_memory_is_the_arenas(bench: Bench) -> None:
    runner = VgfRunner(bench.delegate, decode(mlir_to_vgf(CHAIN)))
    x = np.random.default_rng(1).uniform(-1, 1, SHAPE).astype(np.float32)
    source = DeviceTensor.from_numpy(bench.memory, x)
    target = DeviceTensor(bench.memory, DTYPES["float32"], SHAPE)
    arena = bench.memory.arena
    before = arena.stats.bytes_in_use
    runner.submit([source], [target])
    (recorded,) = runner._recordings.values()
    (session,) = (thing for thing in recorded._held if isinstance(thing, DataGraphSession))
    assert session.memory == []  # no allocation of its own
    assert session.memory_bytes > 0
    assert arena.stats.bytes_in_use - before >= session.memory_bytes
    np.testing.assert_allclose(target.numpy(), 1 / np.cos(np.sin(x)), rtol=1e-5)
    runner.close()
    assert arena.stats.bytes_in_use == before
    source.close()
    target.close()


def test_a_session_that_is_given_no_memory_has_its_own(bench: Bench) -> None:
    runner = VgfRunner(bench.delegate, decode(mlir_to_vgf(CHAIN)))
    (step,) = runner._pipelines.value.steps
    assert step.graph is not None
    asked: list[tuple[int, int, int]] = []

    def nothing(size: int, alignment: int, memory_types: int) -> None:
        asked.append((size, alignment, memory_types))

    with DataGraphSession(bench.context.device, step.graph, allocate=nothing) as session:
        assert len(session.memory) == len(asked) > 0
        assert session.memory_bytes == sum(size for size, _, _ in asked)
    runner.close()


@pytest.mark.parametrize("alignment", [1, 256, 65536])
def test_memory_from_the_arena_is_aligned_as_asked(bench: Bench, alignment: int) -> None:
    runner = VgfRunner(bench.delegate, decode(mlir_to_vgf(CHAIN)))
    source = DeviceTensor(bench.memory, DTYPES["float32"], SHAPE)
    target = DeviceTensor(bench.memory, DTYPES["float32"], SHAPE)
    runner.submit([source], [target])
    (recorded,) = runner._recordings.values()
    made = recorded._session_memory(100, alignment, ~0)
    assert made is not None
    buffer, offset = made
    assert offset % alignment == 0
    assert any(
        b.buffer is buffer and b.offset <= offset and offset + 100 <= b.offset + b.size for b in blocks(recorded)
    )
    assert recorded._session_memory(100, alignment, 0) is None  # no memory type that the driver takes
    runner.close()
    source.close()
    target.close()


def blocks(recorded: Any) -> list[Any]:
    from vkep.memory.device_arena import DeviceBlock

    return [thing for thing in recorded._held if isinstance(thing, DeviceBlock)]
