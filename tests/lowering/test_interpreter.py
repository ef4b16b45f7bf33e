"""The interpreter of operations: what it computes, and the accesses that it refuses."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import vkep.kernels
from tools.passes.host_memory import InvalidAccess
from tools.passes.interpreter import Interpreter
from vkep.dtypes import DTYPES
from vkep.graph.weights import ArrayWeight
from vkep.ir import expr as ex
from vkep.ir.custom import CustomProblem
from vkep.ir.ops import KernelOp, Pointwise
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.indexing.scatter import ScatterElementsProblem
from vkep.kernels.matmul.grouped import GroupedProductProblem
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.kernels.problem import Need, NoReference, Problem
from vkep.kernels.reductions.cumsum import PositionsProblem

FLOAT, HALF, INT8 = DTYPES["float32"], DTYPES["float16"], DTYPES["int8"]


def _problems(base: type[Problem] = Problem) -> Iterator[type[Problem]]:
    for module in pkgutil.walk_packages(vkep.kernels.__path__, "vkep.kernels."):
        importlib.import_module(module.name)
    for one in base.__subclasses__():
        yield one
        yield from _problems(one)


def test_every_problem_has_a_reference() -> None:
    own = {p for p in _problems() if p.__module__.startswith("vkep.") and not p.__name__.startswith("_")}
    assert len(own) >= 50
    bases = {p.__name__ for p in own if p.__abstractmethods__}
    assert bases == {"ColumnProblem", "Narrowing", "Product"}  # only common to others
    with pytest.raises(NoReference, match="a kernel that a package declares"):
        CustomProblem((), (), lambda *_: []).reference()


def test_a_problem_without_a_reference_cannot_be_made() -> None:
    @dataclass(frozen=True)
    class Unexplained(Problem):
        def needs(self) -> tuple[Need, ...]:
            return ()

        def makes(self) -> tuple[Need, ...]:
            return ()

    with pytest.raises(TypeError, match="reference"):
        Unexplained()  # type: ignore[abstract]


def _input(host: Interpreter, values: np.ndarray, label: str = "x") -> Tensor:
    t = Tensor.contiguous(FLOAT, values.shape, label=label)
    host.put(t, values)
    return t


def test_floats_are_exact_between_operations_and_rounded_where_bytes_are_read() -> None:
    host = Interpreter()
    x = _input(host, np.array([1.0, 3.0]))
    third = Tensor.contiguous(HALF, (2,))
    host.run([Pointwise(third, ex.Expr("float", "div", (ex.leaf(x), ex.Const("float", value=3.0))))])
    assert host.read(third)[0] == 1.0 / 3.0
    bits = Tensor.contiguous(DTYPES["uint16"], (2,), third.storage)
    assert host.read(bits).view(np.float16)[0] == np.float16(1 / 3)


def test_integers_wrap_as_their_type() -> None:
    host, x, y = Interpreter(), Tensor.contiguous(INT8, (1,)), Tensor.contiguous(INT8, (1,))
    host.put(x, np.array([100]))
    host.run([Pointwise(y, ex.Expr("int", "add", (ex.leaf(x), ex.leaf(x))))])
    assert host.read(y) == [-56]


def test_a_kernel_with_strides_and_an_epilogue() -> None:
    host = Interpreter()
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(4, 3)
    y = Tensor.contiguous(FLOAT, (1, 1, 2, 4))
    problem = MatMulProblem(2, 4, 3, (0, 3, 1), (0, 1, 3), alpha=2.0)
    epilogue = ex.Expr("float", "add", (ex.leaf(y), ex.Const("float", value=1.0)))
    out = Tensor.contiguous(FLOAT, (1, 1, 2, 8)).slice(3, 0, 4)
    stored = problem.stored_in(out)
    assert stored is not None
    op = KernelOp(stored, [_input(host, a), _input(host, b)], [out], epilogue=epilogue, epilogue_of=(y,))
    host.run([op])
    np.testing.assert_array_equal(host.read(out)[0, 0], 2 * a @ b.T + 1)


def test_checks_are_reported() -> None:
    host = Interpreter()
    x, y = _input(host, np.array([1.0, -1.0])), Tensor.contiguous(FLOAT, (2,))
    holds = ex.Expr("bool", "gt", (ex.leaf(x), ex.Const("float", value=0.0)))
    host.run([Pointwise(y, ex.Checked("float", "", (ex.leaf(x), holds), "not positive", "node"))])
    assert host.faults == {("node", "not positive")}


@pytest.mark.parametrize("labels", [["Add_0"], []])
def test_a_read_of_bytes_that_nothing_wrote(labels: list[str]) -> None:
    host, half = Interpreter(), Tensor.contiguous(FLOAT, (2,), label="sum")
    host.put(half.slice(0, 0, 1), np.ones(1))
    op = Pointwise(Tensor.contiguous(FLOAT, (2,)), ex.leaf(half), labels)
    name = labels[0] if labels else "a copy"
    with pytest.raises(InvalidAccess, match=rf"{name}: reads sum .* at \(1,\), which nothing has written"):
        host.run([op])


def test_a_view_outside_of_its_storage() -> None:
    host = Interpreter()
    x = _input(host, np.ones(4))
    beyond = Tensor(FLOAT, (4,), x.storage, (1,), 1)
    with pytest.raises(InvalidAccess, match=r"bytes 4 to 20 of x .*which has 16"):
        host.run([Pointwise(Tensor.contiguous(FLOAT, (4,)), ex.leaf(beyond))])


@dataclass(frozen=True)
class _Stray(Problem):
    """A problem that takes any strides for those of its result."""

    strides: tuple[int, ...] = (2, 1)

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", "float32", (2, 2)),)

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", "float32", (2, 2), self.strides),)

    def restrided(self, name: str, strides: tuple[int, ...]) -> _Stray:
        return self

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x


def test_a_write_outside_of_the_output_s_view() -> None:
    host = Interpreter()
    x = _input(host, np.ones((2, 2)))
    op = KernelOp(_Stray(), [x], [Tensor.contiguous(FLOAT, (2, 2))])
    op.outputs = [Tensor.contiguous(FLOAT, (2, 4)).slice(1, 0, 2)]
    with pytest.raises(InvalidAccess, match="y has elements outside of the output's view"):
        host.run([op])


def test_an_output_that_is_not_dense_where_the_problem_needs_it() -> None:
    host = Interpreter()
    x = _input(host, np.ones((1, 2, 2)))
    owners = Tensor.contiguous(DTYPES["int32"], (1,))
    host.put(owners, np.zeros(1))
    op = KernelOp(
        GroupedProductProblem(1, 2, 2, 2, 1, "float32"), [x, x, owners], [Tensor.contiguous(FLOAT, (1, 2, 2))]
    )
    op.outputs = [Tensor.contiguous(FLOAT, (1, 2, 4)).slice(2, 0, 2)]
    with pytest.raises(InvalidAccess, match="the elements of y do not lie densely"):
        host.run([op])


def test_several_elements_in_one_place() -> None:
    host = Interpreter()
    x, y = _input(host, np.ones(4)), Tensor.contiguous(FLOAT, (1,)).expand((4,))
    with pytest.raises(InvalidAccess, match="several elements in one place"):
        host.run([Pointwise(y, ex.leaf(x))])
    apart = Tensor(FLOAT, (2, 2), Tensor.contiguous(FLOAT, (5,)).storage, (2, 2))
    with pytest.raises(InvalidAccess, match="several elements in one place"):
        host.run([Pointwise(apart, ex.leaf(x.reshape((2, 2)) or x))])


def test_an_operation_that_reads_what_it_writes() -> None:
    host = Interpreter()
    x = _input(host, np.arange(4.0))
    host.run([Pointwise(x, ex.Expr("float", "add", (ex.leaf(x), ex.leaf(x))))])  # element by element
    np.testing.assert_array_equal(host.read(x), [0, 2, 4, 6])
    with pytest.raises(InvalidAccess, match="in memory that it accesses"):
        host.run([Pointwise(x, ex.leaf(x.slice(0, 3, 4, -1)))])
    host.run([Pointwise(x.slice(0, 0, 2), ex.leaf(x.slice(0, 2, 2)))])  # neighbours
    np.testing.assert_array_equal(host.read(x), [4, 6, 4, 6])


def test_an_output_in_the_memory_of_an_input() -> None:
    host = Interpreter({1: 0})
    past = Tensor.contiguous(FLOAT, (3,), Storage(12, port=0, label="past"))
    present = Tensor.contiguous(FLOAT, (3,), Storage(12, port=1, label="present"))
    host.put(past, np.arange(3.0))
    at, new = Tensor.contiguous(DTYPES["int64"], (1,)), _input(host, np.array([9.0]))
    host.put(at, np.array([1]))
    problem = ScatterElementsProblem((3,), (1,), "float32", "int64", over=True, axis=0)
    host.run([KernelOp(problem, [at, new], [present])])
    np.testing.assert_array_equal(host.read(present), [0, 9, 2])
    np.testing.assert_array_equal(host.read(past), [0, 9, 2])


def test_elements_that_an_operation_leaves_undefined_stay_so() -> None:
    host, x = Interpreter(), Tensor.contiguous(DTYPES["int32"], (4,))
    host.put(x, np.array([0, 1, 0, -1]))
    found, count = Tensor.contiguous(DTYPES["int64"], (4,)), Tensor.contiguous(DTYPES["int64"], (1,))
    copied = Tensor.contiguous(DTYPES["int64"], (4,))
    host.run([KernelOp(PositionsProblem(4, "int32"), [x], [found, count]), Pointwise(copied, ex.leaf(found))])
    values = host.read(copied)
    assert isinstance(values, np.ma.MaskedArray)
    assert values.mask.tolist() == [False, False, True, True] and values[:2].tolist() == [1, 3]


def test_a_constant_is_never_written() -> None:
    host = Interpreter()
    weight = Tensor.contiguous(FLOAT, (2,), Storage(8, weight=ArrayWeight("w", np.ones(2, np.float32))))
    with pytest.raises(InvalidAccess, match="writes to the constant"):
        host.run([Pointwise(weight, ex.Const("float", value=1.0))])


def test_text_without_a_meaning_is_named() -> None:
    host = Interpreter()
    x, y = _input(host, np.ones(1)), Tensor.contiguous(FLOAT, (1,))
    with pytest.raises(NoReference, match=r"fancy\(\{0\}\)"):
        host.run([Pointwise(y, ex.Expr("float", "fancy({0})", (ex.leaf(x),)))])
