"""Outputs that are bound to an input's tensor: what is written there, and what else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkep
from tests.session.test_decode import KV_HEADS, LAYERS, SIZE, decoder, steps
from tools.ort_cpu import cpu_session
from vkep.plan.records import Plan

RNG = np.random.default_rng(5)
Array = np.ndarray[Any, Any]


def model_of(
    nodes: list[onnx.NodeProto], shapes: dict[str, tuple[int, ...]], outputs: list[str], **kinds: int
) -> bytes:
    infos = [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), s) for n, s in shapes.items()]
    results = [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), None) for n in outputs]
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(
        nodes, "g", infos, results, [c for c in CONSTANTS if any(c.name in n.input for n in nodes)]
    )
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return made


def kernels(session: vkep.InferenceSession) -> list[str]:
    """The kernels of the latest plan's dispatches, without the one that clears what counts arrivals."""
    [island] = session.islands()
    return [island.plan.pipelines[d.pipeline].shader.source for d in island.plan.dispatches if d.label != "counters"]


#: what the kernels define that update a cache as a part of their work: of products, and of attention
UPDATING = {"TURNED", "UPDATES"}


def rows_alone(plan: Plan) -> list[bool]:
    """For each dispatch that updates a cache, whether it writes the new rows alone."""
    keys = [plan.pipelines[dispatch.pipeline] for dispatch in plan.dispatches]
    own = [bool(dict(key.spec)["OVER"]) for key in keys if key.shader.source == "cache_update.comp"]
    return own + [True for key in keys if UPDATING & dict(key.shader.defines).keys()]  # which update nothing else


def run_over(session: vkep.InferenceSession, feeds: dict[str, Array], over: dict[str, str]) -> dict[str, Array]:
    """The results, of which those in ``over`` are written to their input's tensor."""
    tensors = {name: session.device_tensor(feeds[name]) for name in over.values()}
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_input(name, tensors[name]) if name in tensors else binding.bind_cpu_input(name, value)
    names = [o.name for o in session.get_outputs()]
    for name in names:
        binding.bind_output(name, tensors[over[name]]) if name in over else binding.bind_output(name, device="cpu")
    session.run_with_iobinding(binding)
    results = dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))
    for name, source in over.items():
        np.testing.assert_array_equal(results[name], tensors[source].numpy())
    return results


@pytest.mark.parametrize(("batch", "ragged"), [(1, 0), (2, 2)])
def test_a_decoder_writes_its_new_rows_alone(batch: int, ragged: int) -> None:
    model, room = decoder(), 32
    theirs = cpu_session(model)
    names = [o.name for o in theirs.get_outputs()]
    past = [n.replace("n", "p") for n in names[1:]]
    # what a buffer holds beyond a sequence's end may be anything
    kept = [np.full((batch, KV_HEADS, room, SIZE), np.nan, np.float32)] * (2 * LAYERS)
    with vkep.InferenceSession(model, fallback="error") as session:
        caches = [session.device_tensor(k) for k in kept]
        kept = [np.zeros_like(k) for k in kept]
        for feed in steps(5, 9, room, batch, ragged):
            binding = session.io_binding()
            for name, value in feed.items():
                binding.bind_cpu_input(name, value)
            for source, name, tensor in zip(past, names[1:], caches, strict=True):
                binding.bind_input(source, tensor)
                binding.bind_output(name, tensor)
            binding.bind_output("y", device="cpu")
            session.run_with_iobinding(binding)
            expected = theirs.run(None, feed | dict(zip(past, kept, strict=True)))
            kept = expected[1:]
            for sequence, last in enumerate(feed["lengths"]):
                mine = binding.get_outputs()[-1][sequence, : last + 1]
                np.testing.assert_allclose(mine, expected[0][sequence, : last + 1], rtol=1e-4, atol=1e-4)
        for ours, cache in zip(caches, kept, strict=True):
            for sequence, last in enumerate(feed["lengths"]):
                end = (sequence, slice(None), slice(last + 1))
                np.testing.assert_allclose(ours.numpy()[end], cache[end], rtol=1e-4, atol=1e-4)
        [island] = session.islands()
        assert rows_alone(island.plan) == [True] * LAYERS


def scatter(mode: str) -> bytes:
    node = helper.make_node("TensorScatter", ["past", "new", "at"], ["present"], mode=mode, axis=2)
    shapes = {"past": (2, 3, 8, 4), "new": (2, 3, 2, 4), "at": (2,)}
    return model_of([node], shapes, ["present"], at=TensorProto.INT64)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter_copies_nothing(mode: str) -> None:
    past, new = (RNG.normal(size=s).astype(np.float32) for s in ((2, 3, 8, 4), (2, 3, 2, 4)))
    at = np.array([1, 6 if mode == "linear" else 7], np.int64)
    expected = past.copy()
    for sequence in range(2):
        for k in range(2):
            expected[sequence, :, (at[sequence] + k) % 8] = new[sequence, :, k]
    with vkep.InferenceSession(scatter(mode), fallback="error") as session:
        feeds: dict[str, Array] = {"past": past, "new": new, "at": at}
        apart = session.run(None, feeds)[0]
        copies = kernels(session)
        results = run_over(session, feeds, {"present": "past"})
        np.testing.assert_array_equal(results["present"], expected)
        np.testing.assert_array_equal(apart, expected)
        assert kernels(session) == [name for name in copies if name != "copy.comp"] != copies


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


X, W = (RNG.normal(size=(6, 6)).astype(np.float32) for _ in range(2))
SCATTERED = np.concatenate((X[:2], W[:1], X[3:]))
#: rows that a scatter puts, and where
CONSTANTS = [onnx.numpy_helper.from_array(W[:1], "w2"), onnx.numpy_helper.from_array(np.array([[2]], np.int64), "row")]
GENERAL: dict[str, tuple[list[onnx.NodeProto], Callable[[], dict[str, Array]]]] = {
    "element by element": ([node("Add", "x w", "y")], lambda: {"y": X + W}),
    "a product": ([node("MatMul", "x w", "y")], lambda: {"y": X @ W}),
    "moved": ([node("Transpose", "x", "y")], lambda: {"y": X.T}),
    "itself": ([node("Identity", "x", "y")], lambda: {"y": X}),
    "read later": ([node("Add", "x w", "y"), node("MatMul", "x y", "z")], lambda: {"y": X + W, "z": X @ (X + W)}),
    "on the host": ([node("Det", "x", "d"), node("Add", "x d", "y")], lambda: {"y": X + np.linalg.det(X)}),
    "a part, read later": (
        [node("ScatterND", "x row w2", "y"), node("MatMul", "x y", "z")],
        lambda: {"y": SCATTERED, "z": X @ SCATTERED},
    ),
    "given too": ([node("Neg", "x", "y")], lambda: {"y": -X, "x": X}),
    "of no use": ([node("Mul", "w w", "y"), node("Neg", "x", "z")], lambda: {"y": W * W, "z": -X}),
}


@pytest.mark.parametrize("what", GENERAL)
def test_every_model_takes_an_input_as_its_outputs_place(what: str) -> None:
    nodes, right = GENERAL[what]
    expected = right()
    model = model_of(nodes, {"x": (6, 6), "w": (6, 6)}, list(expected))
    with vkep.InferenceSession(model) as session:
        for _ in range(2):
            results = run_over(session, {"x": X, "w": W}, {"y": "x"})
            for name, value in expected.items():
                np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(session.run(["y"], {"x": X, "w": W})[0], expected["y"], rtol=1e-4, atol=1e-4)


def test_caches_that_others_read_too() -> None:
    """Two layers share a past: each makes a cache of its own from it, one of them in the past's place."""
    batch, heads, room, size = 1, 2, 6, 8
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "k", "v"), (batch, 1, heads * size))
    shapes |= {"pk": (batch, heads, room, size), "pv": (batch, heads, room, size), "s": (1,), "t": (1,)}
    settings: dict[str, Any] = {"domain": "com.microsoft", "num_heads": heads, "kv_num_heads": heads}
    nodes = [
        helper.make_node("GroupQueryAttention", [*"qkv", "pk", "pv", "s", "t"], [f"y{k}", f"k{k}", f"v{k}"], **settings)
        for k in range(2)
    ]
    model = model_of(
        nodes, shapes, [f"{n}{k}" for k in range(2) for n in "ykv"], s=TensorProto.INT32, t=TensorProto.INT32
    )
    feeds: dict[str, Array] = {n: RNG.normal(size=s).astype(np.float32) for n, s in shapes.items() if n not in "st"}
    feeds |= {"s": np.array([3], np.int32), "t": np.array([4], np.int32)}
    with vkep.InferenceSession(model, fallback="error") as session:
        apart = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
        for name, found in run_over(session, feeds, {"k0": "pk", "v0": "pv"}).items():
            np.testing.assert_allclose(found, apart[name], rtol=1e-5, atol=1e-5)


def test_more_new_tokens_than_a_cache_has_room_for() -> None:
    """What a hostile caller says of lengths moves no row out of its buffer."""
    batch, heads, length, room, size = 1, 2, 6, 4, 8
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "k", "v"), (batch, length, heads * size))
    shapes |= {"pk": (batch, heads, room, size), "pv": (batch, heads, room, size), "s": (1,), "t": (1,)}
    attention = helper.make_node(
        "GroupQueryAttention",
        [*"qkv", "pk", "pv", "s", "t"],
        ["y", "key", "value"],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=heads,
    )
    model = model_of([attention], shapes, ["y", "key", "value"], s=TensorProto.INT32, t=TensorProto.INT32)
    feeds: dict[str, Array] = {n: RNG.normal(size=s).astype(np.float32) for n, s in shapes.items() if n not in "st"}
    feeds |= {"s": np.array([3], np.int32), "t": np.array([4], np.int32)}
    with vkep.InferenceSession(model, fallback="error", check_data=False) as session:
        run_over(session, feeds, {"key": "pk", "value": "pv"})
        [island] = session.islands()
        specs = [dict(key.spec) for key in island.plan.pipelines if key.shader.source == "cache_update.comp"]
        assert [spec["OVER"] for spec in specs] == [0]


def test_two_that_change_places() -> None:
    model = model_of([node("Neg", "x", "y"), node("Abs", "w", "z")], {"x": (6, 6), "w": (6, 6)}, ["y", "z"])
    with vkep.InferenceSession(model, fallback="error") as session:
        results = run_over(session, {"x": X, "w": W}, {"y": "w", "z": "x"})
        np.testing.assert_array_equal(results["y"], -X)
        np.testing.assert_array_equal(results["z"], abs(W))


def test_multi_head_attention_takes_a_past_with_room() -> None:
    batch, heads, length, room, size, before = 2, 2, 3, 12, 8, 5
    width = heads * size
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "k", "v"), (batch, length, width))
    shapes |= {"pk": (batch, heads, room, size), "pv": (batch, heads, room, size), "n": (1,)}
    inputs = ["q", "k", "v", "", "", "", "pk", "pv", "n"]
    attention = helper.make_node(
        "MultiHeadAttention", inputs, ["y", "key", "value"], domain="com.microsoft", num_heads=heads, unidirectional=1
    )
    model = model_of([attention], shapes, ["y", "key", "value"], n=TensorProto.INT32)
    feeds: dict[str, Array] = {n: RNG.normal(size=s).astype(np.float32) for n, s in shapes.items() if n != "n"}
    feeds["n"] = np.array([before], np.int32)
    parts = {n: feeds[n].reshape(batch, length, heads, size).transpose(0, 2, 1, 3) for n in "qkv"}
    key, value = (np.concatenate((feeds[f"p{n}"][:, :, :before], parts[n]), 2) for n in "kv")
    scores = parts["q"] @ key.transpose(0, 1, 3, 2) / np.sqrt(size)
    scores += np.where(np.arange(before + length) <= before + np.arange(length)[:, None], 0, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (p / p.sum(-1, keepdims=True) @ value).transpose(0, 2, 1, 3).reshape(batch, length, width)
    with vkep.InferenceSession(model, fallback="error") as session:
        results = run_over(session, feeds, {"key": "pk", "value": "pv"})
        np.testing.assert_allclose(results["y"], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(results["key"][:, :, : before + length], key)
        with pytest.raises(
            vkep.InvalidInputError, match="past_sequence_length is 10: 3 new keys do not fit a past of 12"
        ):
            session.run(None, feeds | {"n": np.array([10], np.int32)})


def test_memory_that_two_would_write_or_read_differently_is_refused() -> None:
    model = model_of([node("Add", "x w", "y"), node("Sub", "x w", "z")], {"x": (6, 6), "w": (6, 6)}, ["y", "z"])
    with vkep.InferenceSession(model) as session:
        one, two = session.device_tensor(X), session.device_tensor(W)
        for inputs, outputs, told in (
            ((one, two), (one, one), "output 'z': its device tensor is also bound to output 'y'"),
            ((one, one), (one, two), "output 'y': its memory is bound to 'x' and 'w'"),
            ((one.reshaped((6, 6)), two), (one, session.device_tensor(X)), "or by two device tensors"),
        ):
            binding = session.io_binding()
            for name, tensor in zip("xw", inputs, strict=True):
                binding.bind_input(name, tensor)
            for name, tensor in zip("yz", outputs, strict=True):
                binding.bind_output(name, tensor)
            with pytest.raises(vkep.InvalidInputError, match=told):
                session.run_with_iobinding(binding)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_cache_is_written_in_place(bits: int) -> None:
    """Bound to its own past, a cache of codes gets the new rows alone."""
    room, size, held = 24, 16, np.int8 if bits == 8 else np.uint8
    width = size * bits // 8
    scales = RNG.uniform(0.02, 0.03, (1, 1, 1, size)).astype(np.float32) * (1 if bits == 8 else 12)
    names = ["q", "k", "v", "past_k", "past_v", "last", "total", "", "", "", "", "", "k_scale", "v_scale"]
    given = {"q": (2, 1, 2 * size), "k": (2, 1, size), "v": (2, 1, size)}
    caches = dict.fromkeys(("past_k", "past_v"), (2, 1, room, width))
    attributes: dict[str, Any] = {
        "kv_cache_bit_width": bits,
        "k_quant_type": "PER_CHANNEL",
        "v_quant_type": "PER_CHANNEL",
    }
    node = helper.make_node(
        *("GroupQueryAttention", names, ["y", "new_k", "new_v"]),
        domain="com.microsoft",
        num_heads=2,
        kv_num_heads=1,
        **attributes,
    )
    shapes = given | caches | {"last": (2,), "total": (), "k_scale": scales.shape, "v_scale": scales.shape}
    kinds = {"last": TensorProto.INT32, "total": TensorProto.INT32}
    kinds |= dict.fromkeys((*caches, "new_k", "new_v"), helper.np_dtype_to_tensor_dtype(np.dtype(held)))
    model = model_of([node], shapes, ["y", "new_k", "new_v"], **kinds)
    past = {n: RNG.integers(0, 100, s).astype(held) for n, s in caches.items()}
    theirs = cpu_session(model)
    with vkep.InferenceSession(model, fallback="error") as session:
        for last in (np.array([9, 4], np.int32), np.array([10, 5], np.int32)):
            feeds: dict[str, Array] = {n: RNG.normal(0, 1, s).astype(np.float32) for n, s in given.items()}
            feeds |= past | {"last": last, "total": np.array(last.max() + 1, np.int32)}
            feeds |= {"k_scale": scales, "v_scale": scales}
            made = run_over(session, feeds, {"new_k": "past_k", "new_v": "past_v"})
            expected = dict(zip(("y", "new_k", "new_v"), theirs.run(None, feeds), strict=True))
            np.testing.assert_allclose(made["y"], expected["y"], atol=1e-4)
            for new, old in (("new_k", "past_k"), ("new_v", "past_v")):
                for b, at in enumerate(last):
                    np.testing.assert_array_equal(made[new][b, :, at], expected[new][b, :, at])
                    kept = np.arange(room) != at
                    np.testing.assert_array_equal(made[new][b][:, kept], past[old][b][:, kept])
                past[old] = made[new]
            assert any(source == "cache_update.comp" for source in kernels(session))
