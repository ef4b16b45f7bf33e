"""What is folded is what a device computes: every operator that folds, in every type that it takes, as constants and inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from ml_dtypes import finfo
from onnx import numpy_helper

from tests.ops.cases import Array, graph_of, model_of, on_vulkan
from tests.ops.special_values import BINARY, FLOATS, UNARY, differences, pairs, special
from tools.backend_suite.cases import Case, load_cases
from vkep.dtypes import DTYPES
from vkep.errors import UnsupportedModelError
from vkep.ir.meaning import converted
from vkep.placement.fold import FOLDED
from vkep.placement.fold_own import _OWN

pytestmark = pytest.mark.usefixtures("vulkan")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
KINDS = (*FLOATS, *INTEGERS, "bool")
#: operators of texts, and those whose cases have other inputs than tensors of numbers
WITHOUT_CASES = {"Constant", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "Flatten"}
#: cases of each operator, at most: those of different attributes or numbers of inputs
MOST_CASES = 2


@functools.cache
def _models() -> dict[str, list[tuple[Case, onnx.ModelProto]]]:
    """ONNX's cases of one node, by its operator."""
    found: dict[str, list[tuple[Case, onnx.ModelProto]]] = {}
    for case in load_cases().values():
        model = case.model() if case.kind == "node" else onnx.ModelProto()
        if len(model.graph.node) == 1 and not model.graph.node[0].domain:
            found.setdefault(model.graph.node[0].op_type, []).append((case, model))
    return found


def _cases(op_type: str) -> list[tuple[onnx.NodeProto, int, dict[str, Array]]]:
    """ONNX's cases of one node of the operator, of the newest version: the node, its opset, and its inputs by name."""
    found = []
    for case, model in _models().get(op_type, []):
        opset = next(o.version for o in model.opset_import if not o.domain)
        for inputs, _ in case.data(model):
            values = dict(zip([i.name for i in model.graph.input], inputs, strict=True))
            if all(isinstance(v, np.ndarray) and v.dtype.kind not in "OSU" for v in values.values()):
                found.append((model.graph.node[0], opset, values))
    newest = max((opset for _, opset, _ in found), default=0)
    different = {
        (str(node.attribute), len(values)): k for k, (node, opset, values) in enumerate(found) if opset == newest
    }
    return [found[k] for k in list(different.values())[:MOST_CASES]]


def _types(node: onnx.NodeProto, opset: int) -> tuple[set[str], list[str]]:
    """The inputs that have the first one's type, and the types that the operator's schema allows them."""
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    main = schema.inputs[0].type_str
    allowed = {t for c in schema.type_constraints if c.type_param_str == main for t in c.allowed_type_strs}
    last = len(schema.inputs) - 1
    names = {name for k, name in enumerate(node.input) if schema.inputs[min(k, last)].type_str == main}
    return names, [kind for kind in KINDS if f"tensor({DTYPES[kind].onnx_name})" in allowed]


def _as(values: Array, kind: str) -> Array:
    """The values in a type: fractions times three for integers, no 0 among divisors."""
    to = DTYPES[kind].numpy
    if to == np.float16:
        values = np.clip(values, -60000, 60000) if values.dtype.kind in "iuf" else values
    if values.dtype == to or values.dtype.kind == "b" or to.kind not in "iu":
        return values.astype(to)
    whole = np.nan_to_num(np.round(values.astype(np.float64) * (1 if values.dtype.kind in "iu" else 3)))
    return np.clip(np.abs(whole) if to.kind == "u" else whole, -100, 100).astype(to)


def _both(
    node: onnx.NodeProto, opset: int, values: Mapping[str, Array], data: set[str]
) -> tuple[list[Array], list[Array]]:
    """The results with the inputs ``data`` as inputs, and with all of them as constants."""
    results = []
    for constants in (values.keys() - data, values.keys()):
        model = graph_of([node], values, [o for o in node.output if o], list(constants), opset)
        results.append(on_vulkan(model, values))
    return results[0], results[1]


def _assert_same(computed: Array, folded: Array, what: str) -> None:
    """Equal types, shapes and values; of floats to the type's rounding, and to the error that Vulkan allows functions."""
    assert (folded.dtype, folded.shape) == (computed.dtype, computed.shape), what
    if computed.dtype.kind in "iub":
        np.testing.assert_array_equal(folded, computed, what)
        return
    wide = computed.dtype == np.float64
    rtol = max(float(finfo(computed.dtype).eps), 1e-12 if wide else 3e-5)
    np.testing.assert_allclose(
        folded.astype(np.float64), computed.astype(np.float64), rtol, 1e-13 if wide else 1e-6, err_msg=what
    )


@pytest.mark.parametrize("op_type", sorted(FOLDED - WITHOUT_CASES))
def test_constants_and_inputs_have_one_result(op_type: str) -> None:
    cases, compared = _cases(op_type), 0
    for node, opset, values in cases:
        names, kinds = _types(node, opset) if node.input else (set[str](), [])
        for kind in kinds:
            given = {name: _as(v, kind) if name in names else v for name, v in values.items()}
            if op_type in ("Div", "Mod") and given[node.input[1]].dtype.kind in "iu":
                given[node.input[1]] = np.maximum(given[node.input[1]], 1)
            try:
                computed, folded = _both(node, opset, given, names)
            except UnsupportedModelError:
                continue  # no kernel takes the type
            compared += 1
            for k, (ours, theirs) in enumerate(zip(computed, folded, strict=True)):
                _assert_same(ours, theirs, f"{op_type}, {kind}, output {k}")
    assert compared or op_type in ("Shape", "Size"), f"{len(cases)} cases"


@pytest.mark.parametrize("op_type", sorted((UNARY.keys() | BINARY.keys()) & FOLDED))
def test_special_values(op_type: str) -> None:
    for kind, dtype in FLOATS.items():
        if (op_type, kind) == ("Celu", "float64"):  # ONNX's Celu is of float32
            continue
        case = (UNARY | BINARY)[op_type]
        inputs = [special(dtype)] if case.inputs == 1 else list(pairs(dtype))
        values = {f"x{k}": x for k, x in enumerate(inputs)}
        [got] = on_vulkan(model_of(op_type, values, opset=24, constants=list(values), **case.attributes), values)
        assert differences(case, inputs, got) == [], kind


AXIS = numpy_helper.from_array(np.array([0]), "axis")
#: sums of many elements: attributes, inputs besides x, and whether the elements are near 1
SUMS: dict[str, tuple[dict[str, Any], dict[str, Array], bool]] = {
    **{
        op: ({"keepdims": 0}, {"axes": np.array([0])}, op in ("ReduceLogSum", "ReduceProd"))
        for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum",
                   "ReduceSumSquare")
    },
    "CumSum": ({}, {"axis": np.array(0)}, False),
    "Einsum": ({"equation": "ni,nj->ij"}, {"y": np.zeros(0)}, False),
    "Gemm": ({"transA": 1}, {"y": np.zeros(0)}, False),
    "LogSoftmax": ({"axis": 0}, {}, False),
    "MatMul": ({}, {"y": np.zeros(0)}, False),
    "Softmax": ({"axis": 0}, {}, False),
}  # fmt: skip


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("op_type", SUMS)
def test_sums_of_many_elements_do_not_depend_on_the_type(op_type: str, kind: str) -> None:
    """Neither a constant's nor an input's: float16 loses a third of a sum of 40,000 elements, one after another."""
    attributes, others, near_1 = SUMS[op_type]
    rng = np.random.default_rng(3)
    shape = (40_000 if near_1 is False else 2000, 3)
    x = np.exp(rng.standard_normal(shape) * 0.01) if near_1 else rng.standard_normal(shape) * 0.02 + 0.01
    x = x.T.copy() if op_type == "MatMul" else x
    values = {"x": x.astype(FLOATS[kind])}
    values |= {
        n: (values["x"].T.copy() if op_type == "MatMul" else values["x"]) if n == "y" else v for n, v in others.items()
    }
    exact: dict[str, Array] = {n: v.astype(np.float64) if v.dtype == FLOATS[kind] else v for n, v in values.items()}
    results = [
        on_vulkan(model_of(op_type, given, outputs=("out",), constants=constants, opset=22, **attributes), given)[0]
        for given, constants in (
            (values, [n for n in values if n not in ("x", "y")]),
            (values, list(values)),
            (exact, list(exact)),
        )
    ]
    wanted = results.pop()
    for got in results:
        assert got.dtype == FLOATS[kind]
        rtol = {"float32": 2e-5, "float64": 1e-10}.get(kind, 1.01 * float(finfo(FLOATS[kind]).eps))
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol, 1e-7)


@pytest.mark.parametrize("constant", [True, False])
def test_a_convolution_with_weight_norm_in_float16(constant: bool) -> None:
    """As torch exports ``weight_norm(Conv1d, dim=2)`` (wav2vec2's positions): an error of at most 1.5 times that of torch's
    float16, which rounds the norm, the quotient, the weight and the result."""
    rng = np.random.default_rng(4)
    half = np.float16
    values: dict[str, Array] = {
        "x": rng.standard_normal((1, 32, 200)).astype(half),
        "v": (rng.standard_normal((1536, 32, 16)) * 0.02).astype(half),
        "g": (1 + rng.random((1, 1, 16))).astype(half),
        "axes": np.array([0, 1]),
    }
    nodes = [
        onnx.helper.make_node("ReduceL2", ["v", "axes"], ["norm"]),
        onnx.helper.make_node("Div", ["v", "norm"], ["unit"]),
        onnx.helper.make_node("Mul", ["unit", "g"], ["w"]),
        onnx.helper.make_node("Conv", ["x", "w"], ["out"], pads=[8, 8]),
    ]
    constants = ("v", "g", "axes") if constant else ("axes",)
    [got] = on_vulkan(graph_of(nodes, values, ["out"], constants, 22), values)

    def convolved(weight: Array) -> Array:
        padded = np.pad(values["x"].astype(np.float64)[0], [(0, 0), (8, 8)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, 16, 1)
        return np.einsum("clk,ock->ol", windows, weight.astype(np.float64), optimize=True)[None]

    v, g = (values[n].astype(np.float64) for n in "vg")
    exact = convolved(v / np.sqrt((v * v).sum((0, 1))) * g)
    norm = np.sqrt((v * v).sum((0, 1))).astype(half)
    torch = convolved((values["v"] / norm).astype(half) * values["g"]).astype(half)
    error, allowed = (np.abs(r.astype(np.float64) - exact) for r in (got, torch))
    assert error.max() <= 1.5 * allowed.max()
    assert error.mean() <= 1.5 * allowed.mean()


@pytest.mark.parametrize("op_type", ["ReduceLogSumExp", "Softmax", "LogSoftmax"])
@pytest.mark.parametrize("kind", FLOATS)
def test_exponentials_do_not_overflow(op_type: str, kind: str) -> None:
    x = np.array([[2000.0, 2000.0], [-3000.0, -3001.0]]).astype(FLOATS[kind])
    attributes: dict[str, Any] = {} if op_type == "ReduceLogSumExp" else {"axis": 1}
    node = onnx.helper.make_node(op_type, ["x"], ["out"], **attributes)
    computed, folded = _both(node, 18, {"x": x}, {"x"})
    assert np.isfinite(computed[0].astype(np.float64)).all()
    _assert_same(computed[0], folded[0], op_type)


@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("kind", FLOATS)
def test_conversions_to_integers(kind: str, to: str) -> None:
    """Beyond the type too, which ONNX leaves open: as constants, as inputs, and on every driver the same."""
    sizes = [
        0.0,
        0.5,
        1.5,
        127.5,
        128.0,
        255.0,
        300.7,
        40000.0,
        2.0**31,
        3e9,
        2.0**32,
        5e9,
        2.0**63,
        1e19,
        2.0**64,
        1e30,
        np.inf,
    ]
    with np.errstate(over="ignore"):
        x = np.array([*sizes, *(-s for s in sizes), np.nan]).astype(FLOATS[kind])
    node = onnx.helper.make_node("Cast", ["x"], ["out"], to=DTYPES[to].onnx)
    computed, folded = _both(node, 21, {"x": x}, {"x"})
    wanted = converted(x, np.dtype(to))
    np.testing.assert_array_equal(computed[0], wanted)
    np.testing.assert_array_equal(folded[0], wanted)
    inside = (x.astype(np.float64) > np.iinfo(to).min - 1.0) & (x.astype(np.float64) < np.iinfo(to).max)
    np.testing.assert_array_equal(wanted[inside], np.array([int(float(v)) for v in x[inside]], to))


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_conversions_between_all_types(kind: str, to: str) -> None:
    rng = np.random.default_rng(9)
    if kind in FLOATS:
        drawn = rng.standard_normal(500) * 10.0 ** rng.integers(-8, 5, 500)
        x = np.concatenate([special(FLOATS[kind]), drawn.astype(FLOATS[kind])])
    elif kind == "bool":
        x = np.array([True, False])
    else:
        info = np.iinfo(kind)
        wide = rng.integers(info.min, info.max, 500, kind, endpoint=True)
        x = np.concatenate([np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], kind), wide, wide // 100])
    node = onnx.helper.make_node("Cast", ["x"], ["out"], to=DTYPES[to].onnx)
    [computed], [folded] = _both(node, 21, {"x": x}, {"x"})
    assert computed.dtype == folded.dtype == DTYPES[to].numpy
    np.testing.assert_array_equal(computed.astype(np.float64), folded.astype(np.float64))
    if computed.dtype.kind in "iub":
        np.testing.assert_array_equal(computed, folded)


@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "BitShift", "Less", "Equal", "ReduceMean",
                                     "ReduceSum", "ReduceL1", "ReduceMax", "CumSum", "Abs", "Neg", "Sign"])  # fmt: skip
def test_integers_at_the_ends_of_their_ranges(op_type: str, to: str) -> None:
    info = np.iinfo(to)
    numbers = np.array([info.min, info.min + 1, 0, 1, 2, 3, 5, 31, info.max - 1, info.max, 7 - 14 * (info.min < 0)], to)
    x, y = (g.reshape(-1).copy() for g in np.meshgrid(numbers, numbers))
    values = {"x": x, "y": y}
    if op_type in ("Div", "Mod"):
        values = {"x": x[y != 0], "y": y[y != 0]}
    elif op_type.startswith("Reduce") or op_type == "CumSum":
        values = {"x": x, "y": np.array([0] if op_type != "CumSum" else 0)}
    elif op_type in ("Abs", "Neg", "Sign"):
        values = {"x": x}
    attributes = {"direction": "RIGHT"} if op_type == "BitShift" else {}
    node = onnx.helper.make_node(op_type, list(values), ["out"], **attributes)
    try:
        computed, folded = _both(node, 26, values, {n for n, v in values.items() if v.size > 1})
    except UnsupportedModelError:
        assert op_type in ("BitShift", "Neg", "ReduceMean", "ReduceMax", "ReduceSum", "ReduceL1", "CumSum")
        return
    _assert_same(computed[0], folded[0], op_type)


def test_every_own_evaluation_is_compared() -> None:
    assert _OWN.keys() <= FOLDED
