"""Decode loops: what a step's length may cost, and what it must not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkep
from tools.ort_cpu import cpu_session
from vkep.device.runner import PlanRunner
from vkep.session.planning import planner

Array = np.ndarray[Any, Any]
HEADS, KV_HEADS, SIZE, LAYERS = 4, 2, 16, 2
WIDTH = HEADS * SIZE


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[PlanRunner]:
    """The plans that sessions make ready."""
    made: list[PlanRunner] = []

    class Counted(PlanRunner):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(planner, "PlanRunner", Counted)
    return made


def decoder(total: str = "input", bias: bool = False) -> onnx.ModelProto:
    """Layers of a projection and GroupQueryAttention with rotary positions. ``total``: where the length comes from, an input, a
    node's result, or the width of a mask.
    """
    rng = np.random.default_rng(1)
    info = helper.make_tensor_value_info
    angle = np.outer(np.arange(1024), 1 / 100.0 ** (np.arange(SIZE // 2) * 2 / SIZE))
    weights = {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}
    kind = TensorProto.INT32 if total == "input" else TensorProto.INT64
    inputs = [
        info("x", TensorProto.FLOAT, ["batch", "length", WIDTH]),
        info("lengths", TensorProto.INT32, ["batch"]),
        info("total", kind, [1]) if total != "mask" else info("mask", kind, ["batch", "total"]),
    ]
    if bias:
        inputs.append(info("bias", TensorProto.FLOAT, ["batch", 1, "length", "keys"]))
    outputs, nodes, x = [info("y", TensorProto.FLOAT, None)], [], "x"
    if total == "node":
        nodes.append(helper.make_node("Cast", ["total"], ["total_32"], to=TensorProto.INT32))
    if total == "mask":
        nodes.append(helper.make_node("Shape", ["mask"], ["total_64"], start=1, end=2))
        nodes.append(helper.make_node("Cast", ["total_64"], ["total_32"], to=TensorProto.INT32))
    for layer in range(LAYERS):
        kv_width = KV_HEADS * SIZE
        weights[f"w{layer}"] = rng.normal(0, 0.12, (WIDTH, WIDTH + 2 * kv_width)).astype(np.float32)
        cache = [f"{n}{layer}" for n in ("pk", "pv", "nk", "nv")]
        inputs += [info(n, TensorProto.FLOAT, ["batch", KV_HEADS, "past", SIZE]) for n in cache[:2]]
        outputs += [info(n, TensorProto.FLOAT, None) for n in cache[2:]]
        nodes.append(helper.make_node("MatMul", [x, f"w{layer}"], [f"qkv{layer}"]))
        length = "total" if total == "input" else "total_32"
        reads = [f"qkv{layer}", "", "", *cache[:2], "lengths", length, "cos", "sin", "", "bias" if bias else ""]
        x = "y" if layer == LAYERS - 1 else f"y{layer}"
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                reads,
                [x, *cache[2:]],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=KV_HEADS,
                do_rotary=1,
            )
        )
    graph = helper.make_graph(
        nodes, "decoder", inputs, outputs, [numpy_helper.from_array(w, n) for n, w in weights.items()]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def steps(
    first: int, count: int, room: int, batch: int = 1, ragged: int = 0, dtype: Any = np.int32
) -> Iterator[dict[str, Array]]:
    """Feeds without the caches: a prompt of ``first`` tokens, then one token each. Sequence 1 is ``ragged`` shorter."""
    rng = np.random.default_rng(2)
    for k in range(count + 1):
        length, total = (first, first) if k == 0 else (1, first + k)
        lengths = np.full(batch, total - 1, np.int32)
        lengths[1:] -= ragged
        x = rng.normal(0, 1, (batch, length, WIDTH)).astype(np.float32)
        yield {"x": x, "lengths": lengths, "total": np.array([total], dtype)}


def compare(
    session: vkep.InferenceSession, model: onnx.ModelProto, feeds: Iterable[dict[str, Array]], cache: Array
) -> None:
    """Run both engines step by step, each on its own caches; everything up to a sequence's end must be near."""
    theirs = cpu_session(model)
    names = [o.name for o in theirs.get_outputs()]
    caches = [[cache] * (2 * LAYERS)] * 2
    for feed in feeds:
        made = []
        for engine, kept in zip((session, theirs), caches, strict=True):
            past = {n.replace("n", "p"): c for n, c in zip(names[1:], kept, strict=True)}
            made.append(engine.run(None, feed | past))
        caches = [list(results[1:]) for results in made]
        for name, ours, expected in zip(names, *made, strict=True):
            assert ours.shape == expected.shape
            for sequence, last in enumerate(feed["lengths"]):
                end = (slice(None), slice(last + 1)) if name != "y" else slice(last + 1)
                np.testing.assert_allclose(
                    ours[sequence][end], expected[sequence][end], rtol=1e-4, atol=1e-4, err_msg=name
                )


@pytest.mark.parametrize(("batch", "ragged"), [(1, 0), (2, 2)])
@pytest.mark.parametrize("total", ["input", "node"])
def test_a_loop_in_a_fixed_buffer_has_few_plans(plans: list[PlanRunner], total: str, batch: int, ragged: int) -> None:
    model = decoder(total)
    dtype = np.int32 if total == "input" else np.int64
    with vkep.InferenceSession(model, fallback="error") as session:
        cache = np.zeros((batch, KV_HEADS, 64, SIZE), np.float32)
        every = list(steps(6, 51, 64, batch, ragged, dtype))
        compare(session, model, iter(every[:4]), cache)
        before = len(plans)
        compare(session, model, iter(every), cache)
        assert len(plans) == before
        # the prompt, a step, steps of lengths that four divides (not where attention reads them as any other), and of
        # any length; where a node gives the length, what computes it is a plan of its own
        assert before <= (4 if total == "input" else 6)
        assert session.report().all_on_vulkan


def test_a_long_buffer_is_planned_for_all_lengths(plans: list[PlanRunner]) -> None:
    model = decoder()
    with vkep.InferenceSession(model, fallback="error") as session:
        compare(session, model, steps(230, 50, 600), np.zeros((1, KV_HEADS, 600, SIZE), np.float32))
    assert len(plans) <= 4  # the prompt, a step, steps of lengths that four divides, and of any length


def test_bytes_beyond_a_buffers_end_do_not_matter(plans: list[PlanRunner]) -> None:
    model = decoder()
    cache = np.full((1, KV_HEADS, 16, SIZE), np.nan, np.float32)
    cache[:, :, :5] = np.random.default_rng(3).normal(0, 1, (1, KV_HEADS, 5, SIZE))
    with vkep.InferenceSession(model, fallback="error") as session:
        compare(session, model, list(steps(5, 4, 16))[1:], cache)
        assert len(plans) <= 3


def test_a_cache_that_grows_is_planned_for_its_shapes(plans: list[PlanRunner]) -> None:
    model = decoder()
    with vkep.InferenceSession(model, fallback="error") as session:
        compare(session, model, steps(3, 12, 0), np.zeros((1, KV_HEADS, 0, SIZE), np.float32))
        assert len(plans) <= 3  # the prompt, a step, and all further steps


def test_a_bias_has_its_own_width() -> None:
    model = decoder(bias=True)
    rng = np.random.default_rng(4)
    cache = np.zeros((1, KV_HEADS, 16, SIZE), np.float32)

    def with_bias(keys: int | None) -> Iterator[dict[str, Array]]:
        for feed in steps(4, 4, 16):
            shape = (1, 1, feed["x"].shape[1], keys or int(feed["total"][0]))
            yield feed | {"bias": rng.normal(0, 1, shape).astype(np.float32)}

    with vkep.InferenceSession(model, fallback="error") as session:
        compare(session, model, with_bias(None), cache)


def test_device_caches_change_places(plans: list[PlanRunner]) -> None:
    """What a generation loop does: caches stay on the device, and a step's output is the next one's input."""
    model, room = decoder(), 32
    theirs = cpu_session(model)
    names = [o.name for o in theirs.get_outputs()]
    kept = [np.zeros((1, KV_HEADS, room, SIZE), np.float32)] * (2 * LAYERS)
    with vkep.InferenceSession(model, fallback="error") as session:
        old = [session.device_tensor(k) for k in kept]
        new = [session.device_tensor(k) for k in kept]
        for feed in steps(3, 8, room):
            binding = session.io_binding()
            for name, value in feed.items():
                binding.bind_cpu_input(name, value)
            for name, past, present in zip(names[1:], old, new, strict=True):
                binding.bind_input(name.replace("n", "p"), past)
                binding.bind_output(name, present)
            binding.bind_output("y", device="cpu")
            session.run_with_iobinding(binding)
            expected = theirs.run(None, feed | {n.replace("n", "p"): k for n, k in zip(names[1:], kept, strict=True)})
            kept = expected[1:]
            np.testing.assert_allclose(binding.get_outputs()[-1], expected[0], rtol=1e-4, atol=1e-4)
            old, new = new, old
        assert len(plans) <= 4


def test_a_total_that_is_no_scalar_is_refused() -> None:
    model = decoder()
    [total] = [i for i in model.graph.input if i.name == "total"]
    total.type.tensor_type.shape.dim[0].dim_value = 2
    with vkep.InferenceSession(model, fallback="error") as session:
        feed = next(steps(3, 1, 16)) | {"total": np.array([3, 3], np.int32)}
        feed |= {f"p{n}{k}": np.zeros((1, KV_HEADS, 16, SIZE), np.float32) for n in "kv" for k in range(LAYERS)}
        with pytest.raises(vkep.InvalidInputError, match="expected one element"):
            session.run(None, feed)
