"""A method's instructions bound to its tensors, in the form that a run executes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkep.errors import InvalidInputError, InvalidPteError, VkepError
from vkep.executorch.portable import PortableKernel
from vkep.executorch.tensors import HostTensor
from vkep.pte.flow import Writer
from vkep.pte.steps import COPY_INDEX, VIEW_NAMES, JumpStep, KernelStep, MoveStep
from vkep.pte.values import ListValue, TensorValue, Value

#: runs one instruction; returns the number of the next one, None for the one that follows
Bound = Callable[[], int | None]
#: bytes of an element in the arrays of kernels, as they are counted
_ITEM_BYTES = 8


class State:
    """The state of a running method: a value for each number (`HostTensor` for tensors), and the results of
    delegates. ``most_bytes``: of an array that a kernel creates."""

    def __init__(self, values: list[Any], most_bytes: int) -> None:
        self.values = values
        self.most_bytes = most_bytes
        self.given: list[Any] = []  #: the caller's arrays
        self.results: dict[Writer, Any] = {}  #: delegates' results that are read elsewhere than in an arena


def reader(state: State, specs: Sequence[Value], index: int, what: str) -> Callable[[], Any]:
    """Return a function that reads a kernel's argument: arrays for tensors, lists of them or of numbers, numbers. Raises
    `InvalidPteError` for a list of tensors that contains another value."""
    values, spec = state.values, specs[index]
    if isinstance(spec, TensorValue):
        return lambda: values[index].array
    if isinstance(spec, ListValue):
        items = spec.items
        there = [i for i in items if i >= 0 and specs[i] is not None]
        other = [i for i in there if isinstance(specs[i], TensorValue) != spec.tensors]
        if other:
            kind = "tensors" if spec.tensors else "numbers"
            raise InvalidPteError(f"{what}: value {index} lists {kind}, and its values {other} are none")
        if spec.tensors:
            return lambda: [None if i < 0 else _held(values[i]) for i in items]
        return lambda: [values[i] for i in items]
    return lambda: _held(values[index])


def _held(value: Any) -> Any:
    """A value as a kernel takes it. A slot without a tensor of its own may hold one that a move or a kernel put there."""
    return value.array if isinstance(value, HostTensor) else value


def bind_kernel(state: State, specs: Sequence[Value], step: KernelStep, kernel: PortableKernel, where: str) -> Bound:
    """Bind a kernel call. Raises `InvalidPteError` where the arguments do not match the kernel's."""
    what = f"{where}: {step.name}"
    if len(step.arguments) != kernel.arguments:
        raise InvalidPteError(f"{what} is called with {len(step.arguments)} arguments, expected {kernel.arguments}")
    readers = [reader(state, specs, index, what) for index in step.arguments]
    values, function, writes = state.values, kernel.function, step.writes
    elements, most = kernel.elements, state.most_bytes // _ITEM_BYTES
    tensors = [isinstance(specs[index], TensorValue) for index in writes]
    if step.name in VIEW_NAMES or step.name == COPY_INDEX:
        used = (step.arguments[0], step.writes[0]) if step.name in VIEW_NAMES else step.arguments[:2]
        if not all(isinstance(specs[index], TensorValue) for index in used):
            raise InvalidPteError(f"{what} takes tensors, and its values {list(used)} are not all tensors")
    if step.name in VIEW_NAMES:
        return _view(state, step, readers[1], what)
    if step.name == COPY_INDEX:
        return _copy_index(state, step, readers[2], what)

    def run() -> None:
        try:
            arguments = [read() for read in readers]
            if elements(*arguments) > most:
                raise VkepError(
                    f"{what} creates an array of {elements(*arguments)} elements; max_host_bytes allows {most}"
                )
            with np.errstate(all="ignore"):
                result = function(*arguments)
        except VkepError:
            raise
        except Exception as error:  # numpy raises any type for shapes that do not fit
            shapes = [list(a.shape) if isinstance(a := read(), np.ndarray) else a for read in readers]
            raise InvalidInputError(f"{what} on {shapes}: {error}") from error
        if result is None:
            return
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(writes):
            raise VkepError(f"{what} gives {len(results)} results, the program takes {len(writes)}")
        for index, is_tensor, one in zip(writes, tensors, results, strict=True):
            if is_tensor:
                values[index].assign(one, what)
            else:
                values[index] = one

    return run


def _view(state: State, step: KernelStep, size: Callable[[], Any], what: str) -> Bound:
    """Another shape of the same memory: writes of the caller or a move are visible."""
    values, base, out = state.values, step.arguments[0], step.writes[0]

    def run() -> None:
        array = values[base].array
        try:
            view = array.reshape([int(s) for s in size()])
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(f"{what}: {error}") from error
        values[out].array = view

    return run


def _copy_index(state: State, step: KernelStep, index: Callable[[], Any], what: str) -> Bound:
    """One more row of the result that a loop stacks: the output grows with the index."""
    values, (out, element) = state.values, step.arguments[:2]

    def run() -> None:
        stacked, row = values[out], values[element].array
        try:
            number = operator.index(index())
        except TypeError as error:
            raise InvalidInputError(f"{what}: {error}") from error
        if number < 0:
            raise InvalidInputError(f"{what} writes row {number}, expected a number from 0")
        shape = (number + 1, *row.shape)
        if stacked.array.shape != shape:
            stacked.resize(shape, what)
        stacked.array[number] = row

    return run


def bind_move(state: State, step: MoveStep) -> Bound:
    """The step that copies one value to another. It raises `InvalidPteError` where one of them alone is a tensor."""
    values = state.values

    def run() -> None:
        source = values[step.source]
        target = values[step.target]
        if target is not None and isinstance(target, HostTensor) != isinstance(source, HostTensor):
            raise InvalidPteError(
                f"a move to value {step.target}, a {type(target).__name__}, from value {step.source}, a"
                f" {type(source).__name__}"
            )
        values[step.target] = source

    return run


def bind_jump(state: State, step: JumpStep) -> Bound:
    """The step that returns the next instruction's number where its condition is false, else None."""
    values = state.values

    def run() -> int | None:
        value = values[step.condition]
        if isinstance(value, HostTensor):
            value = value.array
        if isinstance(value, np.ndarray):
            if not value.size:
                raise InvalidPteError(f"a jump's condition, value {step.condition}, is an empty tensor")
            value = value.reshape(-1)[0]
        return None if value else step.target

    return run
