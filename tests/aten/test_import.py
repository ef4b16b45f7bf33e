"""The import around the operators: borders, weights, states, dynamic shapes, and everything missing told at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.context import SharedGpuContext
from tests.aten.blobs import Blob, by_onnxruntime, model_proto
from tests.aten.cases_quantized import packed
from tests.aten.values import Const, Sym, wave, whole
from vkep import InferenceSession
from vkep.aten import Border, ImportedGraph, import_vk_graph, unsupported_operators
from vkep.aten.weights import DerivedWeight
from vkep.dtypes import DTYPES
from vkep.errors import InvalidPteError, UnsupportedProgramError
from vkep.graph.weights import ArrayWeight
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, ValueSpec
from vkep.placement.partition import lower
from vkep.pte.vk_graph import SymInt, ValueList, VkDataType, VkTensor


def both(
    imported: ImportedGraph, feeds: dict[str, Any], context: SharedGpuContext, tolerance: float = 1e-4
) -> list[Any]:
    """Results on Vulkan, after a look that onnxruntime gives the same."""
    proto = model_proto(imported.model)
    with InferenceSession(proto, context=context, fallback="error") as session:
        got = session.run(None, feeds)
    for a, b in zip(got, by_onnxruntime(proto, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    return got


def linear_blob() -> Blob:
    blob = Blob()
    x, w = blob.argument(wave(2, 4)), blob.argument(Const(wave(3, 4, k=1)))
    blob.outputs = [blob.call("aten.linear.default", [x, w, blob.add(None)], blob.tensor("float32", (2, 3)))]
    return blob


def test_weights_are_views_of_the_programs_bytes_and_keyed_by_content() -> None:
    blob = linear_blob()
    data = {key: memoryview(value) for key, value in blob.data.items()}
    (weight,) = import_vk_graph(blob.graph(), data).model.graph.weights.values()
    assert np.shares_memory(weight.array(), np.frombuffer(data["constant 0"], np.uint8))
    assert weight.key == ArrayWeight("another name", wave(3, 4, k=1)).key


def test_two_delegates_share_a_weight_by_its_content() -> None:
    """The compiler takes the model as it is; what it uploads is keyed alike for both."""
    keys = []
    for blob in (linear_blob(), linear_blob()):
        model = import_vk_graph(blob.graph(), blob.data).model
        spec = ValueSpec(DTYPES["float32"], (2, 4))
        known: dict[str, Known] = {**model.graph.weights, "input_0": spec}
        program = lower(model.graph.nodes, known, ["output_0"], model.opsets, DeviceCapabilities.for_tests())
        (island,) = program.steps
        assert isinstance(island, IslandStep)
        keys.append([constant.key for constant in island.plan.constants])
    assert keys[0] == keys[1]
    assert len(keys[0]) == 1


def test_named_data_may_come_from_a_function() -> None:
    blob = linear_blob()
    imported = import_vk_graph(blob.graph(), lambda key: blob.data[key])
    assert len(imported.model.graph.weights) == 1
    with pytest.raises(InvalidPteError, match="reads the named data 'constant 0'"):
        import_vk_graph(blob.graph(), {})


def test_the_border_has_the_programs_types(shared_context: SharedGpuContext) -> None:
    blob = Blob()
    index = blob.argument(np.array([2, 0, 1], np.int32))
    table = blob.argument(Const(wave(3, 2)))
    scalars = [blob.add(-1), blob.add(False), blob.add(False)]
    rows = blob.call("aten.embedding.default", [table, index, *scalars], blob.tensor("float32", (3, 2)))
    best = blob.call("aten.argmax.default", [rows, blob.add(1), blob.add(False)], blob.tensor("int32", (3,)))
    blob.outputs = [rows, best]
    wide = [Border(TensorProto.INT64)]
    imported = import_vk_graph(blob.graph(), blob.data, inputs=wide, outputs=[Border(TensorProto.DOUBLE), *wide])
    assert [v.elem_type for v in imported.model.graph.inputs] == [TensorProto.INT64]
    got = both(imported, {"input_0": np.array([2, 0, 1])}, shared_context)
    assert [a.dtype for a in got] == [np.float64, np.int64]
    np.testing.assert_array_equal(got[1], wave(3, 2)[[2, 0, 1]].argmax(1))


def test_force_fp16_keeps_float32_at_the_border(shared_context: SharedGpuContext) -> None:
    blob = Blob()
    x = blob.add(VkTensor(VkDataType.FLOAT16, (2, 4), staging_datatype=VkDataType.FLOAT32))
    blob.inputs.append(x)
    w = blob.argument(Const(wave(3, 4, k=1).astype(np.float16)))
    out = blob.add(VkTensor(VkDataType.FLOAT16, (2, 3), staging_datatype=VkDataType.FLOAT32))
    blob.outputs = [blob.call("aten.linear.default", [x, w, blob.add(None)], out)]
    imported = import_vk_graph(blob.graph(), blob.data)
    (got,) = both(imported, {"input_0": wave(2, 4)}, shared_context, 1e-2)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wave(2, 4) @ wave(3, 4, k=1).T, atol=2e-2)


def test_shapes_that_change_from_run_to_run(shared_context: SharedGpuContext) -> None:
    """x [batch, 3, 4] -> softmax over view(x, [size(x, 0), 12]), as an exporter writes it."""
    blob = Blob()
    x = blob.argument(wave(8, 3, 4))
    size = blob.call("sym_size.int", [x, blob.add(0)], blob.add(SymInt(0)))
    shape = blob.add(ValueList((size, blob.add(12))))
    flat = blob.call("aten.view_copy.default", [x, shape], blob.tensor("float32", (8, 12)))
    args = [flat, blob.add(-1), blob.add(False)]
    blob.outputs = [blob.call("aten._softmax.default", args, blob.tensor("float32", (8, 12)))]
    imported = import_vk_graph(blob.graph(), blob.data, inputs=[Border(dynamic=True)])
    assert imported.model.graph.inputs[0].shape == (None, None, None)
    with InferenceSession(model_proto(imported.model), context=shared_context, fallback="error") as session:
        for batch in (8, 1, 5):
            fed = wave(batch, 3, 4, k=batch)
            grown = np.exp(fed.reshape(batch, 12))
            (got,) = session.run(None, {"input_0": fed})
            np.testing.assert_allclose(got, grown / grown.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("name", ["et_vk.linear_q4gsw.default", "aten._weight_int8pack_mm.default"])
def test_weights_fix_features_where_the_other_sizes_change(name: str, shared_context: SharedGpuContext) -> None:
    codes = whole(6, 32, low=-8, high=8, dtype=np.int8)
    blob = Blob()
    args = [blob.argument(wave(8, 32))]
    if "q4gsw" in name:
        args += [blob.argument(Const(a)) for a in (packed(codes), np.ones((2, 6), np.float32))]
        args += [blob.add(16), blob.add(None)]
    else:
        args += [blob.argument(Const(a)) for a in (codes, np.ones(6, np.float32))]
    blob.outputs = [blob.call(name, args, blob.tensor("float32", (8, 6)))]
    imported = import_vk_graph(blob.graph(), blob.data, inputs=[Border(dynamic=True)])
    assert imported.model.graph.outputs[0].shape == (None, 6)
    for rows in (1, 8):
        (got,) = both(imported, {"input_0": wave(rows, 32)}, shared_context)
        np.testing.assert_allclose(got, wave(rows, 32) @ codes.T.astype(np.float32), rtol=1e-4, atol=1e-4)


def test_a_window_that_moves_is_one_plan_for_all_positions() -> None:
    blob = Blob()
    table, start = blob.argument(Const(wave(9, 2))), blob.argument(Sym(3))
    end = blob.call("add", [start, blob.add(4)], blob.add(SymInt(0)))
    args = [table, blob.add(0), start, end, blob.add(1)]
    blob.outputs = [blob.call("aten.slice_copy.Tensor", args, blob.tensor("float32", (9, 2)))]
    imported = import_vk_graph(blob.graph(), blob.data)
    assert imported.model.graph.outputs[0].shape == (4, 2)
    proto = model_proto(imported.model)
    for position in (3, 5):
        (got,) = by_onnxruntime(proto, {"input_0": np.array(position)})
        np.testing.assert_array_equal(got, wave(9, 2)[position : position + 4])


def test_an_integer_that_the_program_keeps_in_a_tensor() -> None:
    blob = Blob()
    start = blob.argument(Sym(3))
    blob.outputs = [blob.call("mul", [start, blob.add(2)], blob.add(SymInt(0)))]
    one = [Border(TensorProto.INT64, shape=(1,))]
    imported = import_vk_graph(blob.graph(), blob.data, inputs=one, outputs=one)
    (got,) = by_onnxruntime(model_proto(imported.model), {"input_0": np.array([21])})
    np.testing.assert_array_equal(got, [42])


def test_a_cache_is_a_state_between_runs(shared_context: SharedGpuContext) -> None:
    blob = Blob()
    cache = blob.argument(Const(np.zeros((1, 6, 2, 4), np.float32)))
    packed = blob.call("et_vk.prepack.default", [cache], blob.tensor("float32", (1, 6, 2, 4)))
    value, start = blob.argument(wave(1, 2, 2, 4)), blob.argument(Sym(0))
    blob.call("llama.update_cache.default", [value, packed, start], blob.tensor("float32", (1,)))
    args = [packed, blob.add((1,)), blob.add(False), blob.add(None)]
    blob.outputs = [blob.call("aten.sum.dim_IntList", args, blob.tensor("float32", (1, 2, 4)))]
    imported = import_vk_graph(blob.graph(), blob.data)
    (state,) = imported.states
    assert [v.name for v in imported.model.graph.inputs] == ["input_0", "input_1", state.input]
    assert imported.model.graph.inputs[2].shape == (1, 6, 2, 4)  # whatever the position is
    kept, wanted = state.initial.array(), np.zeros((1, 6, 2, 4), np.float32)
    for position in (0, 2, 4, 1):
        fed = wave(1, 2, 2, 4, k=position)
        feeds = {"input_0": fed, "input_1": np.array(position), state.input: kept}
        total, kept = both(imported, feeds, shared_context)
        wanted[:, position : position + 2] = fed
        np.testing.assert_allclose(total, wanted.sum(1), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(kept, wanted)


def test_a_result_in_the_place_of_a_constant_is_a_state() -> None:
    """What the exporter writes with alias_buffer_mutations: count = count + step, and count is also an output."""
    blob = Blob()
    count = blob.argument(Const(np.zeros(3, np.float32)))
    step = blob.argument(wave(3))
    blob.outputs = [blob.call("aten.add.Tensor", [count, step, blob.add(1)], count)]
    imported = import_vk_graph(blob.graph(), blob.data)
    (state,) = imported.states
    proto = model_proto(imported.model)
    first, kept = by_onnxruntime(proto, {"input_0": wave(3), state.input: state.initial.array()})
    np.testing.assert_array_equal(first, kept)
    second, _ = by_onnxruntime(proto, {"input_0": wave(3), state.input: kept})
    np.testing.assert_allclose(second, 2 * wave(3))


def test_an_output_that_the_program_does_not_take_is_a_states_new_value() -> None:
    """What the exporter writes without that option: the new value of the buffer stands before the outputs."""

    def counter(other: np.ndarray[Any, Any]) -> Blob:
        blob = Blob()
        count, weight = blob.argument(Const(np.zeros(3, np.float32))), blob.argument(Const(other))
        x = blob.argument(wave(3))
        y = blob.call("aten.mul.Tensor", [x, weight], blob.tensor("float32", (3,)))
        y = blob.call("aten.add.Tensor", [y, count, blob.add(1)], blob.tensor("float32", (3,)))
        new = blob.call("aten.add.Tensor", [y, weight, blob.add(1)], blob.tensor("float32", (3,)))
        blob.outputs = [new, y]
        return blob

    blob = counter(np.array([2], np.float32))
    imported = import_vk_graph(blob.graph(), blob.data, outputs=[Border()])
    assert [v.name for v in imported.model.graph.outputs] == ["output_0", "state_0_out"]
    (state,) = imported.states
    kept = state.initial.array()
    for turn in range(3):
        y, kept = by_onnxruntime(model_proto(imported.model), {"input_0": wave(3), state.input: kept})
        np.testing.assert_allclose(y, 2 * wave(3) * (turn + 1) + 2 * turn, rtol=1e-5)
    blob = counter(np.ones(3, np.float32))
    with pytest.raises(UnsupportedProgramError, match=r"2 could be it.*alias_buffer_mutations"):
        import_vk_graph(blob.graph(), blob.data, outputs=[Border()])


def test_outputs_that_are_inputs_constants_and_each_other(shared_context: SharedGpuContext) -> None:
    blob = Blob()
    x, c = blob.argument(wave(3)), blob.argument(Const(wave(2)))
    y = blob.call("aten.relu.default", [x], blob.tensor("float32", (3,)))
    blob.outputs = [y, x, c, y]
    imported = import_vk_graph(blob.graph(), blob.data)
    assert [v.name for v in imported.model.graph.outputs] == [f"output_{k}" for k in range(4)]
    got = both(imported, {"input_0": wave(3)}, shared_context)
    for a, b in zip(got, (np.maximum(wave(3), 0), wave(3), wave(2), np.maximum(wave(3), 0)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_results_that_nothing_reads_are_left_out() -> None:
    blob = Blob()
    x, norm = blob.argument(wave(2, 3, 4, 4)), blob.argument(Const(wave(2)))
    args = [x, blob.add((2, 2)), blob.add(()), blob.add((0, 0)), blob.add((1, 1)), blob.add(False)]
    pooled, places = blob.tensor("float32", (2, 3, 2, 2)), blob.tensor("int32", (2, 3, 2, 2))
    blob.call("aten.max_pool2d_with_indices.default", args, blob.add(ValueList((pooled, places))))
    parts = [blob.tensor("float32", dims) for dims in ((2, 3, 2, 2), (2, 3, 2, 1), (2, 3, 2, 1))]
    args = [pooled, blob.add((2,)), norm, norm, blob.add(1e-5)]
    blob.call("aten.native_layer_norm.default", args, blob.add(ValueList(tuple(parts))))
    blob.outputs = [parts[0]]
    nodes = import_vk_graph(blob.graph(), blob.data).model.graph.nodes
    assert [(n.op_type, len(n.outputs)) for n in nodes] == [("MaxPool", 1), ("LayerNormalization", 1)]
    blob.outputs = [parts[0], places]
    nodes = import_vk_graph(blob.graph(), blob.data).model.graph.nodes
    assert [len(n.outputs) for n in nodes if n.op_type == "MaxPool"] == [2]


def test_numbers_that_a_blob_shares_between_types_are_converted() -> None:
    """The exporter keeps 1 and 1.0 as one value: an axis may arrive as a double, a slope as an integer."""
    blob = Blob()
    x = blob.argument(wave(2, 3))
    y = blob.call("aten._softmax.default", [x, blob.add(1.0), blob.add(False)], blob.tensor("float32", (2, 3)))
    blob.outputs = [blob.call("aten.leaky_relu.default", [y, blob.add(1)], blob.tensor("float32", (2, 3)))]
    assert unsupported_operators(blob.graph()) == []


def test_all_missing_operators_are_reported_at_once() -> None:
    blob = Blob()
    x = blob.argument(wave(2, 3))
    y = blob.call("aten.erf.default", [x], blob.tensor("float32", (2, 3)))
    y = blob.call("aten.relu.default", [y], blob.tensor("float32", (2, 3)))
    y = blob.call("et_vk.unheard_of.default", [y, x], blob.tensor("float32", (2, 3)))
    y = blob.call("aten.permute_copy.default", [y, blob.add((0, 7))], blob.tensor("float32", (3, 2)))
    y = blob.call("aten.gelu.default", [y], blob.tensor("float32", (3, 2)))
    blob.outputs = [blob.call("aten.sqrt.default", [y, y, y], blob.tensor("float32", (3, 2)))]
    missing = unsupported_operators(blob.graph())
    assert missing == [
        ("aten.erf.default", "vkep does not know this operator"),
        ("et_vk.unheard_of.default", "vkep does not know this operator"),
        ("aten.permute_copy.default", "axis 7 of a tensor of rank 2"),
        ("aten.sqrt.default", "3 arguments; its schema has 1"),
    ]
    with pytest.raises(UnsupportedProgramError, match="4 operators that vkep cannot run") as caught:
        import_vk_graph(blob.graph(), blob.data)
    assert caught.value.missing == tuple(f"{name}: {reason}" for name, reason in missing)


def test_a_value_that_nothing_made_is_an_error() -> None:
    blob = Blob()
    blob.outputs = [blob.call("aten.relu.default", [blob.tensor("float32", (2,))], blob.tensor("float32", (2,)))]
    with pytest.raises(InvalidPteError, match="reads value 0, which nothing made before"):
        unsupported_operators(blob.graph())
    with pytest.raises(InvalidPteError, match="has 1 inputs, the program gives it 2"):
        import_vk_graph(linear_blob().graph(), {}, inputs=[Border(), Border()])


def test_a_weight_that_is_too_small_for_its_layout() -> None:
    base = ArrayWeight("w", np.zeros((47, 32), np.int8))
    derived = DerivedWeight(base, "codes", lambda a: a[:48, :32], (48, 1, 32), TensorProto.INT8)
    with pytest.raises(InvalidPteError, match=r"w/codes: a weight of shape \(47, 32\) has no layout \(48, 1, 32\)"):
        derived.array()
