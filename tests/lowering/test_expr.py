"""Expressions: sharing, substitution, and the GLSL that they become."""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import vkep
from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.errors import ExpressionError
from vkep.ir import algebra, pointwise_ops
from vkep.ir import expr as ex
from vkep.ir.algebra import equal, where
from vkep.ir.builder import Builder
from vkep.ir.code import Code, generate, literal, load_code, store_code
from vkep.ir.ops import Pointwise
from vkep.ir.tensor import Tensor
from vkep.sizes import Trace

FLOAT, HALF, INT64, BOOL = (DTYPES[n] for n in ("float32", "float16", "int64", "bool"))


@pytest.fixture
def b() -> Builder:
    return Builder(DeviceCapabilities.for_tests())


def _generate(expr: ex.Expr) -> Code:
    names: dict[int, str] = {}
    return generate(expr, lambda leaf: names.setdefault(id(leaf.tensor), f"x{len(names)}"))


def test_statements_in_order_of_need(b: Builder) -> None:
    x, y = Tensor.contiguous(FLOAT, (3,)), Tensor.contiguous(FLOAT, (3,))
    code = _generate(b.expr("exp({0})", b.expr("({0} + {1})", x, y)))
    assert code == Code("float t0 = (x0 + x1); float t1 = exp(t0);", "t1", ())


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
    assert not code.scalars and literal(2**40, "int64_t") in code.statements
    flag = _generate(b.expr("({0} && {1})", Tensor.contiguous(BOOL, (3,)), True))
    assert not flag.scalars and "true" in flag.statements


@pytest.mark.parametrize(
    ("value", "ctype", "form"),
    [
        (2**40, "int64_t", "q"),
        (-(2**63), "int64_t", "q"),
        (2**64 - 1, "uint64_t", "Q"),
        (float("-inf"), "double", "d"),
        (float("nan"), "double", "d"),
        (float("inf"), "float", "f"),
        (-(2**31), "int", "i"),
    ],
)
def test_literals_hold_every_bit(value: float, ctype: str, form: str) -> None:
    words = [int(word) for word in re.findall(r"(\d+)u\b", literal(value, ctype))]
    assert struct.pack(f"<{len(words)}I", *words) == struct.pack(f"<{form}", value)


@pytest.mark.parametrize(
    ("value", "ctype", "code"),
    [
        (0.5, "float", "0.5"),
        (-0.0, "float", "(-0.0)"),
        (0.1, "double", "0.1lf"),
        (-5, "int", "(-5)"),
        (2**32 - 1, "uint", "4294967295u"),
        (5, "int64_t", "int64_t(5)"),
        (2**31, "uint64_t", "uint64_t(2147483648u)"),
    ],
)
def test_literals_are_read_by_people_and_folded_by_compilers(value: float, ctype: str, code: str) -> None:
    assert literal(value, ctype) == code


def test_no_literal_form() -> None:
    with pytest.raises(ValueError, match="no literal form for 1 in uvec2"):
        literal(1, "uvec2")


def _leaf(dtype: str) -> ex.Leaf:
    return ex.leaf(Tensor.contiguous(DTYPES[dtype], (3,)))


def test_operators_of_python() -> None:
    x, n, flag = _leaf("float32"), _leaf("uint32"), _leaf("bool")
    for expr, op, ctype in (
        (x + 1, "add", "float"),
        (2 - x, "sub", "float"),
        (x * 0.5, "mul", "float"),
        (1 / x, "div", "float"),
        (7 % n, "mod", "uint"),
        (-x, "neg", "float"),
        (abs(x), "abs", "float"),
        (x < 0, "lt", "bool"),
        (x <= 0, "le", "bool"),
        (x >= 0, "ge", "bool"),
        (n & 15, "bit_and", "uint"),
        (1 | n, "bit_or", "uint"),
        (n ^ n, "bit_xor", "uint"),
        (~n, "bit_not", "uint"),
        (n << 2, "shift_left", "uint"),
        (n >> _leaf("int32"), "shift_right", "uint"),
        (flag & True, "and", "bool"),
        (flag | (x > 0), "or", "bool"),
        (flag ^ flag, "ne", "bool"),
        (~flag, "not", "bool"),
        (equal(x, 0), "eq", "bool"),
        (where(flag, x, 0), "where", "float"),
        (where(flag, 0, n), "where", "uint"),
        (algebra.cast(x, "int"), "cast", "int"),
        (algebra.float_bits(x), "float_bits", "uint"),
    ):
        assert (expr.op, expr.ctype) == (op, ctype)
    assert x == x and x != _leaf("float32")  # by identity: expressions are keys of dictionaries
    assert algebra.cast(x, "float") is x


def test_numbers_of_an_operator_are_literals_and_have_the_type_beside_them() -> None:
    x, n = _leaf("float32"), _leaf("int64")
    code = _generate(where(x < 0, x * 0.5, 2))
    assert code.statements == "bool t0 = (x0 < 0.0); float t1 = (x0 * 0.5); float t2 = (t0 ? t1 : 2.0);"
    assert not code.scalars
    assert _generate((n << 3) + 2**40).statements.startswith(
        "int64_t t0 = (x0 << 3); int64_t t1 = (t0 + int64_t(pack64("
    )


def test_a_size_in_an_expression_stays_an_argument() -> None:
    size = Trace().symbol(5)
    code = _generate(_leaf("int32") + size)
    [(name, kind, value)] = code.scalars
    assert (name, kind) == ("c0", "int") and value is size


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda x, n: x + n, r"'add' takes \(number, number\), not \(float, int\)"),
        (lambda x, n: n * 0.5, r"0.5 is no number of the type int"),
        (lambda x, n: n + 2**31, r"2147483648 is no number of the type int"),
        (lambda x, n: x & 1, r"'bit_and' takes \(integer, integer\), not \(float, a number\)"),
        (lambda x, n: algebra.exp(n), r"'exp' takes \(real\), not \(int\)"),
        (lambda x, n: where(x, x, 0), r"'where' takes \(bool, any, any\), not \(float, float, a number\)"),
        (lambda x, n: where(x > 0, 1, 0), r"'where' has no typed argument in \(bool, a number, a number\)"),
        (lambda x, n: where(x > 0, x, True), r"not \(bool, float, bool\)"),
        (lambda x, n: x + x if x > n else x, r"'gt' takes"),
        (lambda x, n: x + x if x > 0 else x, r"where\(\) selects"),
        (lambda x, n: x * Tensor.contiguous(FLOAT, (3,)), r"takes expressions and numbers, not Tensor; Builder.reads"),
    ],
)
def test_types_that_do_not_fit_are_an_error_at_the_line(write: Callable[..., ex.Expr], says: str) -> None:
    with pytest.raises(ExpressionError, match=says) as raised:
        write(_leaf("float32"), _leaf("int32"))
    assert any(entry.frame.code.name == "<lambda>" for entry in raised.traceback)


def test_numbers_take_the_type_that_an_operation_says(b: Builder) -> None:
    x, flag = Tensor.contiguous(FLOAT, (3,)), Tensor.contiguous(BOOL, (3,))
    chosen = b.expr("where", flag, x, 0)
    assert chosen.ctype == "float" and _generate(chosen).scalars == (("c0", "float", 0),)
    assert b.expr("gt", x, 0).ctype == "bool"
    assert b.expr("shift_left", Tensor.contiguous(INT64, (3,)), 2).args[1].ctype == "int"
    with pytest.raises(ExpressionError, match=r"'mul' takes \(number, number\), not \(float, int64_t\)"):
        b.expr("mul", x, Tensor.contiguous(INT64, (3,)))
    with pytest.raises(ExpressionError, match=r"'add' of \(float, a number\) has type float, not int"):
        b.expr("add", x, 1, ctype="int")


def test_a_function_of_expressions_in_place_of_text(b: Builder) -> None:
    x = Tensor.contiguous(FLOAT, (3,))
    made = b.pointwise(lambda v, slope: where(v < 0, v * slope, v), x, 0.01)
    op = b.ops[-1]
    assert isinstance(op, Pointwise) and op.out is made
    assert _generate(op.expr).scalars == (("c0", "float", 0.01),)  # an attribute selects no shader
    checked = b.require(x, lambda v: v >= 1, "too low")
    assert isinstance(checked, ex.Checked) and checked.args[1].op == "ge"
    with pytest.raises(ExpressionError, match="an expression of type bool, where float is expected"):
        b.pointwise(lambda v: v > 0, x)
    with pytest.raises(ExpressionError, match=r"the numbers \(1, 2\) are read without a tensor"):
        b.reads(1, 2)


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
    assert _generate(whole) == Code("float t0 = (x0 * x0); float t1 = exp(t0); float t2 = (t1 + x0 * t1);", "t2", ())
    assert ex.inline(outer, {of_z: last}) is outer


def test_an_expression_without_a_typed_argument(b: Builder) -> None:
    with pytest.raises(ValueError, match="has no typed argument; pass ctype"):
        b.expr("({0} + {1})", 1, 2)


@pytest.mark.parametrize(
    ("dtype", "load", "store", "rounded"),
    [
        ("float32", "v", "v", "v"),
        ("float16", "float(v)", "float16_t(v)", "rounded_to_half(v)"),
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
    assert (load_code(d, "v"), store_code(d, "v"), pointwise_ops.rounded(d, "v")) == (load, store, rounded)


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


#: the table of operations, the code that is made of it, and the docstring about GLSL of a user's operator
_WITH_TEMPLATES = {"pointwise_ops.py", "code.py", "expr.py"}


def test_no_expression_of_vkep_is_glsl_text() -> None:
    """Passes, the interpreter and the evaluation on the host know operations by name."""
    sources = [path for path in Path(vkep.__file__).parent.rglob("*.py") if path.name not in _WITH_TEMPLATES]
    texts = [
        f"{path}:{node.lineno}: {node.value}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\{\d\}", node.value)
    ]
    assert len(sources) > 300 and not texts, "\n".join(texts)
