"""Expressions evaluated on the host, and the types of operations."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.ir import expr as ex
from vkep.ir import float8
from vkep.ir.builder import Builder
from vkep.ir.evaluate import evaluate
from vkep.ir.meaning import NUMPY
from vkep.ir.ops import Pointwise
from vkep.ir.pointwise_ops import KINDS, OPERATIONS
from vkep.ir.tensor import Tensor
from vkep.ops.quantized.linear import dequantized

_TYPES = {"float": "float32", "double": "float64", "int": "int32", "uint": "uint32", "int64_t": "int64",
          "uint64_t": "uint64", "bool": "bool"}  # fmt: skip


@pytest.fixture
def b() -> Builder:
    return Builder(DeviceCapabilities.for_tests())


def _leaf(array: NDArray[Any], name: str = "") -> ex.Leaf:
    return ex.leaf(Tensor.contiguous(DTYPES[name or array.dtype.name], array.shape))


def _evaluated(ctype: str, op: str, *arrays: NDArray[Any]) -> NDArray[Any]:
    leaves = [_leaf(a) for a in arrays]
    values = dict(zip(leaves, arrays, strict=True))
    return evaluate(ex.Expr(ctype, op, tuple(leaves)), values.__getitem__)


def _every_typing() -> list[tuple[str, tuple[str, ...]]]:
    """Each operation with each of the types that it takes."""
    typings = []
    for name, operation in OPERATIONS.items():
        for kind in KINDS["any"]:
            types = tuple(kind if taken in KINDS else taken for taken in operation.takes)
            if all(t in KINDS.get(taken, (taken,)) for t, taken in zip(types, operation.takes, strict=True)):
                typings.append((name, types))
    return list(dict.fromkeys(typings))


@pytest.mark.parametrize(("name", "types"), _every_typing())
def test_each_operation_has_a_meaning_for_the_types_that_it_takes(name: str, types: tuple[str, ...]) -> None:
    arrays = [np.array([0, 1, 2, 3]).astype(NUMPY[t]) for t in types]
    stated = OPERATIONS[name].signature.endswith("*")
    for ctype in KINDS["any"] if stated else (OPERATIONS[name].resolved(types)[1],):
        found = _evaluated(ctype, name, *arrays)
        assert found.dtype == NUMPY[ctype] and found.shape == (4,)


def test_types_that_an_operation_does_not_take() -> None:
    for types in (("float", "int"), ("float",), ("bool", "bool")):
        with pytest.raises(TypeError, match=r"takes \(number, number\), not"):
            OPERATIONS["add"].resolved(types)
    assert OPERATIONS["where"].resolved(("bool", None, "uint")) == (["bool", "uint", "uint"], "uint")
    assert OPERATIONS["cast"].resolved(("float",), "int") == (["float"], "int")
    with pytest.raises(TypeError, match=r"of \(float\) has type bool, not float"):
        OPERATIONS["isnan"].resolved(("float",), "float")


@pytest.mark.parametrize(
    ("op", "arguments", "expected"),
    [
        ("div", [np.array([7, -7, 7, -7, 5]), np.array([2, 2, -2, -2, 0])], [3, -3, -3, 3, 0]),
        ("mod", [np.array([7, -7, 7, 5]), np.array([2, 2, -2, 0])], [1, 1, -1, 0]),
        ("round", [np.array([0.5, 1.5, -2.5])], [0, 2, -2]),
        ("limited", [np.array([math.nan, -math.inf, 5]), np.array(-1.0), np.array(1.0)], [math.nan, -1, 1]),
        ("relu", [np.array([math.nan, -math.inf, 5])], [math.nan, 0, 5]),
        ("sigmoid", [np.array([-math.inf, -800, 0, math.inf])], [0, 0, 0.5, 1]),
        ("exact_remainder", [np.array([-5.5, 1e30]), np.array([2, 3.0])], [1.5, math.fmod(1e30, 3)]),
        ("shift_right", [np.array([-8, 8], np.int32), np.array([1, 1], np.int32)], [-4, 4]),
        ("as_int8", [np.array([200, -129], np.int32)], [-56, 127]),
        ("as_int4", [np.array([8, -9, 7], np.int32)], [-8, 7, 7]),
        ("as_uint4", [np.array([16, 255], np.uint32)], [0, 15]),
        ("as_float16", [np.array([65520, 1 + 2**-12], np.float32)], [math.inf, 1]),
        ("as_bfloat16", [np.array([1 + 2**-9], np.float32)], [1]),
        ("half_bits", [np.array([1.0], np.float32)], [0x3C00]),
        ("from_bfloat16_bits", [np.array([0x3F80], np.uint32)], [1]),
        ("gelu", [np.array([-20.0])], [-20 * 0.5 * math.erfc(20 * math.sqrt(0.5))]),
    ],
)  # fmt: skip
def test_values(op: str, arguments: list[NDArray[Any]], expected: list[float]) -> None:
    operation = OPERATIONS[op]
    glsl = {v: k for k, v in NUMPY.items()}
    kinds = [
        "float" if taken == "float" else glsl[a.dtype] for a, taken in zip(arguments, operation.takes, strict=True)
    ]
    leaves = [_leaf(a, _TYPES[kind]) for a, kind in zip(arguments, kinds, strict=True)]
    values = dict(zip(leaves, arguments, strict=True))
    found = evaluate(ex.Expr(operation.resolved(kinds)[1], op, tuple(leaves)), values.__getitem__)
    np.testing.assert_array_equal(found, np.array(expected, found.dtype))


def test_floats_are_converted_to_integers_as_kernels_do() -> None:
    x = np.array([-1.9, 1.9, -0.5], np.float32)
    assert _evaluated("int", "cast", x).tolist() == [-1, 1, 0]
    assert _evaluated("uint", "cast", x).tolist() == [2**32 - 1, 1, 0]
    assert _evaluated("bool", "cast", x).tolist() == [True, True, True]


def test_float_is_computed_in_float64_for_arrays_of_float64(b: Builder) -> None:
    x = Tensor.contiguous(DTYPES["float32"], (1,))
    expr = b.expr("mul", b.expr("exp", x), 0.1)
    narrow = evaluate(expr, lambda leaf: np.array([1], np.float32))
    wide = evaluate(expr, lambda leaf: np.array([1], np.float64))
    assert narrow.dtype == np.float32 and wide.dtype == np.float64
    assert wide[0] == math.e * float(np.float32(0.1))  # constants are what a kernel gets


def test_a_shared_part_is_evaluated_once_and_a_deep_expression_at_all(b: Builder) -> None:
    deep: ex.Expr = b.expr("same", Tensor.contiguous(DTYPES["uint32"], (1,)))
    for _ in range(20_000):
        deep = b.expr("add", deep, deep)
    assert evaluate(deep, lambda leaf: np.array([1], np.uint32)) == [0]  # 2**20000 wraps


def test_checks_are_reported_and_constants_need_no_value(b: Builder) -> None:
    x, reports = Tensor.contiguous(DTYPES["int32"], (3,)), []
    checked = b.require(x, "ge", "x is negative", 0)
    assert isinstance(checked, ex.Expr)
    values = np.array([1, -1, 0], np.int32)
    found = evaluate(checked, lambda leaf: values, lambda node, holds: reports.append((node.reason, holds.tolist())))
    assert found.tolist() == [1, -1, 0] and reports == [("x is negative", [True, False, True])]


def test_narrow_elements_are_widened_as_kernels_load_them(b: Builder) -> None:
    for name in ("float16", "bfloat16", "int8", "uint4", "float8_e4m3fn"):
        dtype = DTYPES[name]
        expr = b.expr("same", Tensor.contiguous(dtype, (1,)))
        found = evaluate(expr, lambda leaf, dtype=dtype: np.array([3]).astype(dtype.numpy))  # type: ignore[misc]
        assert found.tolist() == [0x44 if dtype.kind == "bits" else 3]


@pytest.mark.parametrize("name", [*float8.FORMATS, "float8_e8m0fnu"])
def test_narrow_floats_are_decoded_and_encoded_as_ml_dtypes_does(b: Builder, name: str) -> None:
    narrow, kind = DTYPES[name], np.dtype(getattr(ml_dtypes, name))
    codes = np.arange(16 if name == "float4_e2m1fn" else 256, dtype=np.uint8)
    bits, value = _leaf(codes, name), _leaf(np.empty(len(codes), np.float32))
    numbers = codes.view(kind).astype(np.float32)
    np.testing.assert_array_equal(evaluate(float8.decode(bits, narrow), {bits: codes}.__getitem__), numbers)
    finite = np.sort(numbers[np.isfinite(numbers)])
    between = (finite[1:] + finite[:-1]) / 2  # ties, which are rounded to even
    for drawn in (finite, np.nextafter(finite, np.float32(0)), between, np.nextafter(between, np.float32(np.inf))):
        mode = "nearest" if name == "float8_e8m0fnu" else "up"
        found = evaluate(float8.encode(value, narrow, round_mode=mode), {value: drawn}.__getitem__)
        expected = drawn.astype(kind)
        np.testing.assert_array_equal(found.astype(np.uint8).view(kind).astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("name", [d.name for d in DTYPES.values() if d.kind != "bits"])
def test_casts_from_each_type_to_each_other_have_a_meaning_on_the_host(b: Builder, name: str) -> None:
    values = np.array([0, 1, 1, 0]).astype(DTYPES[name].numpy)
    leaf = _leaf(values, name)
    for to in (d for d in DTYPES.values() if d.kind != "bits"):
        found = evaluate(b.cast_expr(leaf, DTYPES[name], to), {leaf: values}.__getitem__)
        assert found.dtype == NUMPY[to.glsl_compute] and found.tolist() == [0, 1, 1, 0]


def test_integers_are_rounded_to_float_before_they_are_scaled(b: Builder) -> None:
    inputs = {name: Tensor.contiguous(DTYPES[name], (2,)) for name in ("int32", "float32")}
    dequantized(b, inputs["int32"], inputs["float32"], None, DTYPES["float32"], 0, 0)
    [op] = b.ops
    assert isinstance(op, Pointwise)
    arrays = {"int32": np.array([2**24 + 1, -5], np.int32), "float32": np.array([3, 0.5], np.float32)}
    leaves = {leaf: arrays[leaf.tensor.dtype.name] for leaf in ex.leaves(op.expr) if leaf.tensor is not None}
    found = evaluate(op.expr, lambda leaf: leaves[leaf].reshape(leaf.tensor.shape if leaf.tensor else ()))
    assert found.reshape(-1).tolist() == [2.0**24 * 3, -2.5]


def test_text_has_no_meaning_on_the_host(b: Builder) -> None:
    x = Tensor.contiguous(DTYPES["float32"], (1,))
    with pytest.raises(ValueError, match=r"'fract\(\{0\}\)' is GLSL text, which has no meaning on the host"):
        evaluate(b.expr("fract({0})", x), lambda leaf: np.zeros(1, np.float32))
