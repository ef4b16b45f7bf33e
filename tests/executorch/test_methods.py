"""Methods made by hand: what no exporter writes today but the format allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from vkep.errors import InvalidInputError, InvalidPteError, VkepError
from vkep.executorch.context_resources import ProgramResources
from vkep.executorch.core import Core
from vkep.executorch.method import Method
from vkep.executorch.options import ProgramOptions
from vkep.pte.method import DecodedMethod
from vkep.pte.schema import TensorShapeDynamism
from vkep.pte.steps import JumpStep, KernelStep, MoveStep, Step
from vkep.pte.values import Place, TensorValue, Value

STATIC, BOUND, FREE = TensorShapeDynamism


def tensor(
    index: int, offset: int, *sizes: int, dynamism: TensorShapeDynamism = STATIC, arena: int = 1, **more: Any
) -> TensorValue:
    nbytes = int(np.prod(sizes, dtype=np.int64)) * 4
    order = more.pop("order", tuple(range(len(sizes))))
    place = None if "constant" in more else Place(arena, offset, nbytes)
    return TensorValue(index, np.dtype(np.float32), sizes, order, dynamism, place, **more)


def method(values: Sequence[Value], inputs: Sequence[int], outputs: Sequence[int], steps: Sequence[Step]) -> Method:
    decoded = DecodedMethod("m", "by hand", tuple(values), tuple(inputs), tuple(outputs), tuple(steps), (), (0, 256))
    stays = ProgramResources(ProgramOptions(), None, False)
    return Method(Core({}, stays), decoded, [], stays)


def f(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def test_a_view_of_an_input_is_an_output() -> None:
    """Both lie in the input's place; nothing runs, and the caller's array is not handed back."""
    made = method([tensor(0, 0, 2, 3), tensor(1, 0, 6), tensor(2, 0, 3, 2)], [0], [1, 2, 0], [])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(2):
        outputs = made.execute([x])
        assert [o.shape for o in outputs] == [(6,), (3, 2), (2, 3)]
        for output in outputs:
            np.testing.assert_array_equal(output.reshape(-1), x.reshape(-1))
            assert not np.shares_memory(output, x)
            output[...] = 7


def test_a_kernel_reads_a_view_of_an_input() -> None:
    values: list[Value] = [tensor(0, 0, 2, 2), tensor(1, 0, 4), tensor(2, 16, 4)]
    made = method(values, [0], [2], [KernelStep("aten::neg.out", (1,), (2,))])
    np.testing.assert_array_equal(made.execute([f(1, 2, 3, 4).reshape(2, 2)])[0], f(-1, -2, -3, -4))


def test_an_input_that_is_written_is_a_copy() -> None:
    """In place, through its own number and through another that lies in the same place."""
    values: list[Value] = [tensor(0, 0, 3), tensor(1, 0, 3)]
    x = f(1, 2, 3)
    own = method(values, [0], [0], [KernelStep("aten::neg.out", (0,), (0,))])
    other = method(values, [0], [0], [KernelStep("aten::neg.out", (0,), (1,))])
    for made in (own, other):
        np.testing.assert_array_equal(made.execute([x])[0], f(-1, -2, -3))
        np.testing.assert_array_equal(x, f(1, 2, 3))


def test_inputs_of_any_strides() -> None:
    values: list[Value] = [tensor(0, 0, 2, 3), tensor(1, 0, 6), tensor(2, 32, 6)]
    made = method(values, [0], [2], [KernelStep("aten::neg.out", (1,), (2,))])
    x = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::2]
    np.testing.assert_array_equal(made.execute([x])[0], -x.reshape(-1))


def test_an_order_of_dimensions() -> None:
    """A tensor stored with its channels last is read as what it is, and its bytes lie as the program says."""
    values: list[Value] = [tensor(0, 0, 2, 3), tensor(1, 32, 2, 3, order=(1, 0)), tensor(2, 32, 6), tensor(3, 64, 2, 3)]
    copy = KernelStep("aten::clone.out", (0, 4), (1,))
    made = method([*values, None], [0], [1, 2, 3], [copy, KernelStep("aten::neg.out", (1,), (3,))])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    one, raw, negative = made.execute([x])
    np.testing.assert_array_equal(one, x)
    np.testing.assert_array_equal(raw, x.T.reshape(-1))
    np.testing.assert_array_equal(negative, -x)


def test_an_unbounded_tensor_grows() -> None:
    values: list[Value] = [tensor(0, 0, 2, arena=-1, dynamism=FREE), tensor(1, 0, 2, arena=-2, dynamism=FREE)]
    made = method(values, [0], [1], [KernelStep("aten::neg.out", (0,), (1,))])
    for count in (2, 9, 1):
        x = np.arange(count, dtype=np.float32)
        np.testing.assert_array_equal(made.execute([x])[0], -x)


def test_a_bounded_tensor_does_not() -> None:
    values: list[Value] = [tensor(0, 0, 4, arena=-1, dynamism=FREE), tensor(1, 0, 4, dynamism=BOUND)]
    made = method(values, [0], [1], [KernelStep("aten::neg.out", (0,), (1,))])
    assert made.execute([f(1, 2)])[0].tolist() == [-1, -2]
    with pytest.raises(
        VkepError, match=r"aten::neg\.out gives a tensor of shape \[5\]; the program planned float32 at most"
    ):
        made.execute([np.ones(5, np.float32)])
    assert made.execute([f(3)])[0].tolist() == [-3], "it goes on"


def test_errors_of_numpy_name_the_instruction() -> None:
    values: list[Value] = [tensor(0, 0, 2), tensor(1, 16, 3), tensor(2, 32, 3), 1]
    made = method(values, [0, 1], [2], [KernelStep("aten::add.out", (0, 1, 3), (2,))])
    with pytest.raises(VkepError, match=r"instruction 0: aten::add\.out on \[\[2\], \[3\], 1\]"):
        made.execute([f(1, 2), f(1, 2, 3)])


def test_a_move_and_a_jump() -> None:
    """if the condition: y = x, else y = -x. The jump skips what must not run."""
    values: list[Value] = [tensor(0, 0, 2), True, tensor(2, 16, 2), tensor(3, 32, 2), False]
    steps: list[Step] = [
        JumpStep(1, 3),
        MoveStep(0, 2),
        JumpStep(4, 5),
        KernelStep("aten::neg.out", (0,), (3,)),
        MoveStep(3, 2),
    ]
    made = method(values, [0, 1], [2], steps)
    for condition in (True, False, True):
        np.testing.assert_array_equal(made.execute([f(1, 2), condition])[0], f(1, 2) if condition else f(-1, -2))


def test_a_jumps_condition_in_a_tensor() -> None:
    """The first element counts, whatever the tensor's shape; an empty one, of a damaged program, is refused."""
    values: list[Value] = [tensor(0, 0, 2), tensor(1, 8, 2, 2, dynamism=FREE, arena=-1), tensor(2, 16, 2)]
    steps: list[Step] = [
        KernelStep("aten::neg.out", (0,), (2,)),
        JumpStep(1, 3),
        MoveStep(0, 2),
    ]
    made = method(values, [0, 1], [2], steps)
    for condition, expected in (((1, 0, 0, 0), f(1, 2)), ((0, 1, 1, 1), f(-1, -2))):
        np.testing.assert_array_equal(made.execute([f(1, 2), f(*condition).reshape(2, 2)])[0], expected)
    with pytest.raises(InvalidPteError, match="a jump's condition, value 1, is an empty tensor"):
        made.execute([f(1, 2), np.zeros((0, 2), np.float32)])


def test_values_that_are_no_tensors_are_not_moved_to_tensors() -> None:
    """As in a damaged program."""
    made = method([tensor(0, 0, 2), 3, tensor(2, 16, 2)], [0], [2], [MoveStep(1, 2)])
    with pytest.raises(InvalidPteError, match="a move to value 2, a HostTensor, from value 1, a int"):
        made.execute([f(1, 2)])
    step = KernelStep("executorch_prim::et_view.default", (0, 1), (1,))
    with pytest.raises(InvalidPteError, match=r"its values \[0, 1\] are not all tensors"):
        method([tensor(0, 0, 2), (2,), tensor(2, 16, 2)], [0], [2], [step]).execute([f(1, 2)])


def test_numbers_go_in_and_out() -> None:
    values: list[Value] = [2, 3.5, tensor(2, 0, 2), 0]
    steps = [KernelStep("executorch_prim::mul.Scalar", (0, 1), (3,)), KernelStep("aten::fill.Scalar_out", (2, 3), (2,))]
    made = method(values, [0, 1], [3, 2], steps)
    number, filled = made.execute([4, np.float64(0.5)])
    assert number == 2.0 and filled.tolist() == [2, 2]
    with pytest.raises(InvalidInputError, match="input 0: got a dict"):
        made.execute([{}, 1])
