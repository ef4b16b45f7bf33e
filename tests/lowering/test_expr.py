"""Expressions: sharing, substitution, and the GLSL that they become."""

from __future__ import annotations

import re
import struct

import pytest

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor

FLOAT, HALF, INT64, BOOL = (DTYPES[n] for n in ("float32", "float16", "int64", "bool"))


@pytest.fixture
def b() -> Builder:
    return Builder(DeviceCapabilities.for_tests())


def _generate(expr: ex.Expr) -> ex.Code:
    names: dict[int, str] = {}
    return ex.generate(expr, lambda leaf: names.setdefault(id(leaf.tensor), f"x{len(names)}"))


def test_statements_in_order_of_need(b: Builder) -> None:
    x, y = Tensor.contiguous(FLOAT, (3,)), Tensor.contiguous(FLOAT, (3,))
    code = _generate(b.expr("exp({0})", b.expr("({0} + {1})", x, y)))
    assert code == ex.Code("float t0 = (x0 + x1); float t1 = exp(t0);", "t1", ())


def test_a_shared_part_is_computed_once(b: Builder) -> None:
    shared = b.expr("exp({0})", Tensor.contiguous(FLOAT, (3,)))
    code = _generate(b.expr("({0} * {1})", shared, b.expr("({0} + {1})", shared, shared)))
    assert code.statements.count("exp(") == 1
    assert ex.count(b.expr("({0} * {0})", shared)) == 2


def test_differences_of_doubles_are_not_reassociated(b: Builder) -> None:
    """A GPU's compiler did so in a tangent: 1e-9 off at 1e4."""
    x = Tensor.contiguous(DTYPES["float64"], (3,))
    assert _generate(b.expr("({0} - {0})", x)).statements == "precise double t0 = (x0 - x0);"


def test_numbers_are_arguments_and_select_no_shader(b: Builder) -> None:
    x = Tensor.contiguous(FLOAT, (3,))
    one, two = (_generate(b.expr("({0} * {1} + {2})", x, v, 7.0)) for v in (2.0, 3.0))
    assert one.statements == two.statements
    assert one.scalars == (("c0", "float", 2.0), ("c1", "float", 7.0))
    assert _generate(b.expr("({0} * {1} + {2})", x, 5.0, 5.0)).scalars == (("c0", "float", 5.0),)


def test_nan_is_a_number_of_its_own(b: Builder) -> None:
    x, nan = Tensor.contiguous(FLOAT, (3,)), float("nan")
    code = _generate(b.expr("({0} + {1} + {2})", x, nan, nan))
    assert len(code.scalars) == 2 and "args.c0" in code.statements and "args.c1" in code.statements


def test_types_without_argument_form_are_literals(b: Builder) -> None:
    code = _generate(b.expr("({0} + {1})", Tensor.contiguous(INT64, (3,)), 2**40))
    assert not code.scalars and ex.literal(2**40, "int64_t") in code.statements
    flag = _generate(b.expr("({0} && {1})", Tensor.contiguous(BOOL, (3,)), True))
    assert not flag.scalars and "true" in flag.statements


@pytest.mark.parametrize(
    ("value", "ctype", "code"),
    [
        (5, "int64_t", "q"),
        (-(2**63), "int64_t", "q"),
        (-1, "int64_t", "q"),
        (2**64 - 1, "uint64_t", "Q"),
        (0.1, "double", "d"),
        (float("-inf"), "double", "d"),
        (float("nan"), "double", "d"),
    ],
)
def test_literals_hold_every_bit(value: float, ctype: str, code: str) -> None:
    low, high = (int(word) for word in re.findall(r"(\d+)u\b", ex.literal(value, ctype)))
    assert struct.pack("<II", low, high) == struct.pack(f"<{code}", value)


def test_no_literal_form() -> None:
    with pytest.raises(ValueError, match="no literal form for 1 in float"):
        ex.literal(1, "float")


def test_substitution_keeps_sharing(b: Builder) -> None:
    x, y = Tensor.contiguous(FLOAT, (3,)), Tensor.contiguous(FLOAT, (3,))
    shared = b.expr("exp({0})", x)
    whole = b.expr("({0} + {1})", shared, shared)
    changed = ex.substitute(whole, lambda leaf: ex.leaf(y) if leaf.tensor is x else None)
    assert changed.args[0] is changed.args[1] and ex.leaves(changed)[0].tensor is y
    assert ex.substitute(whole, lambda leaf: None) is whole
    assert [leaf.tensor for leaf in ex.leaves(b.expr("({1} + {0} + {1})", x, y))] == [x, y]


def test_inlining_goes_on_in_what_was_inlined(b: Builder) -> None:
    x, y, z = (Tensor.contiguous(FLOAT, (3,)) for _ in range(3))
    outer, middle = b.expr("({0} + {1} * {0})", x, y), b.expr("exp({0})", z)
    [of_x, of_y], [of_z] = ex.leaves(outer), ex.leaves(middle)
    last = b.expr("({0} * {0})", y)
    whole = ex.inline(outer, {of_x: middle, of_z: last})
    assert ex.leaves(whole) == (*ex.leaves(last), of_y)
    assert _generate(whole) == ex.Code("float t0 = (x0 * x0); float t1 = exp(t0); float t2 = (t1 + x0 * t1);", "t2", ())
    assert ex.inline(outer, {of_z: last}) is outer


def test_an_expression_without_a_typed_argument(b: Builder) -> None:
    with pytest.raises(ValueError, match="has no typed argument; pass ctype"):
        b.expr("({0} + {1})", 1, 2)


@pytest.mark.parametrize(
    ("dtype", "load", "store", "rounded"),
    [
        ("float32", "v", "v", "v"),
        ("float16", "float(v)", "float16_t(v)", "float(float16_t(v))"),
        ("int8", "int(v)", "int8_t(v)", "int(int8_t(v))"),
        ("bool", "(v != uint8_t(0))", "uint8_t(v ? 1 : 0)", "v"),
        (
            "bfloat16",
            "uintBitsToFloat(uint(v) << 16)",
            "bfloat16_bits(v)",
            "uintBitsToFloat(uint(bfloat16_bits(v)) << 16)",
        ),
    ],
)
def test_storage_types(dtype: str, load: str, store: str, rounded: str) -> None:
    d = DTYPES[dtype]
    assert (ex.load_code(d, "v"), ex.store_code(d, "v"), ex.rounded(d, "v")) == (load, store, rounded)


def test_one_known_number_needs_no_load(b: Builder) -> None:
    import numpy as np

    x = Tensor.contiguous(HALF, (3,))
    code = _generate(b.expr("({0} + {1})", x, b.constant(np.array([2.5], np.float16))))
    assert code.scalars == (("c0", "float", 2.5),)


def test_an_expression_of_any_depth(b: Builder) -> None:
    """Deeper than Python recurses."""
    [x, y], depth = [Tensor.contiguous(FLOAT, (3,)) for _ in range(2)], 20_000
    deep = b.expr("same", x)
    for _ in range(depth):
        deep = b.expr("add", deep, deep)
    changed = ex.substitute(deep, lambda leaf: ex.leaf(y))
    assert ex.tensors(changed) == [y]
    twice = ex.inline(changed, {ex.leaves(changed)[0]: deep})
    assert ex.tensors(twice) == [x] and ex.count(twice) == 2 * depth + 2
    assert _generate(twice).result == f"t{2 * depth + 1}"
