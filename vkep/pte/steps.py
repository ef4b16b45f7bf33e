"""A method's instructions, checked, with the values that each reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkep.errors import InvalidPteError, UnsupportedProgramError
from vkep.pte import schema
from vkep.pte.values import ListValue, TensorValue, Value

COPY_INDEX = "executorch_prim::et_copy_index.tensor"
VIEW = "executorch_prim::et_view.default"
VIEW_NAMES = (VIEW, "executorch_prim::et_view")


@dataclass(frozen=True)
class KernelStep:
    """Call the kernel of an operator. ``arguments`` are its schema's, without outputs; ``writes`` are its results."""

    name: str
    arguments: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: bool = False  #: the first argument is written in place: its old content matters


@dataclass(frozen=True)
class DelegateStep:
    """Run a delegate."""

    delegate: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class MoveStep:
    """Copy one value into another."""

    source: int
    target: int


@dataclass(frozen=True)
class JumpStep:
    """Continue at ``target`` where the value is false."""

    condition: int
    target: int


@dataclass(frozen=True)
class FreeStep:
    """Free a value."""

    value: int


Step = KernelStep | DelegateStep | MoveStep | JumpStep | FreeStep


def decode_steps(
    plan: schema.ExecutionPlan, values: Sequence[Value], arity: Sequence[tuple[int, int]], where: str
) -> list[Step]:
    """The instructions of a method. ``arity`` has (inputs, outputs) of each delegate.

    Raises `InvalidPteError` for indices that do not exist, and a wrong number of arguments.

    Raises `UnsupportedProgramError` for several chains.
    """
    if len(plan.chains) != 1:
        raise UnsupportedProgramError(f"{where} has {len(plan.chains)} chains of instructions; vkep runs one")
    instructions = plan.chains[0].instructions
    steps: list[Step] = []
    for number, instruction in enumerate(instructions):
        at = f"{where}, instruction {number}"
        work = instruction.instr_args
        if isinstance(work, schema.KernelCall):
            steps.append(_kernel(plan, work, values, at))
        elif isinstance(work, schema.DelegateCall):
            steps.append(_delegate(plan, work, values, arity, at))
        elif isinstance(work, schema.MoveCall):
            steps.append(MoveStep(_index(work.move_from, values, at), _index(work.move_to, values, at)))
        elif isinstance(work, schema.JumpFalseCall):
            if not 0 <= work.destination_instruction <= len(instructions):
                raise InvalidPteError(f"{at} jumps to {work.destination_instruction} of {len(instructions)}")
            steps.append(JumpStep(_index(work.cond_value_index, values, at), work.destination_instruction))
        elif isinstance(work, schema.FreeCall):
            steps.append(FreeStep(_index(work.value_index, values, at)))
        else:
            raise InvalidPteError(f"{at} is empty")
    return steps


def check_ports(plan: schema.ExecutionPlan, values: Sequence[Value], where: str) -> None:
    """Raise `InvalidPteError` for inputs and outputs that refer to no value."""
    for what, indices in (("input", plan.inputs), ("output", plan.outputs)):
        for number, index in enumerate(indices):
            value = values[_index(index, values, f"{where}, {what} {number}")]
            if isinstance(value, (ListValue, tuple)):
                raise InvalidPteError(f"{where}, {what} {number} is a list")
            if what == "input" and isinstance(value, TensorValue) and value.constant is not None:
                raise InvalidPteError(f"{where}, input {number} is a constant")


def _index(index: int, values: Sequence[Value], where: str) -> int:
    if not 0 <= index < len(values):
        raise InvalidPteError(f"{where} names value {index}; the method has {len(values)}")
    return index


def _kernel(plan: schema.ExecutionPlan, call: schema.KernelCall, values: Sequence[Value], where: str) -> KernelStep:
    if not 0 <= call.op_index < len(plan.operators):
        raise InvalidPteError(f"{where} calls operator {call.op_index} of {len(plan.operators)}")
    operator = plan.operators[call.op_index]
    name = operator.full_name
    args = tuple(_index(a, values, where) for a in call.args)
    if not args:
        raise InvalidPteError(f"{where}: {name} has no arguments")
    if name == COPY_INDEX:  # its output comes first and is not listed again
        return KernelStep(name, args, (args[0],), in_place=True)
    *arguments, last = args
    held = values[last]
    outputs = held.items if isinstance(held, ListValue) else (last,)
    if (isinstance(held, ListValue) and not held.tensors) or any(o < 0 for o in outputs):
        raise InvalidPteError(f"{where}: {name} is to write value {last}, a list that holds no tensors")
    in_place = operator.name.endswith("_") and bool(arguments) and arguments[0] == last
    if not in_place:
        # an out variant also lists its outputs as arguments, one by one or as a list
        if len(arguments) >= len(outputs) and tuple(arguments[len(arguments) - len(outputs) :]) == tuple(outputs):
            arguments = arguments[: len(arguments) - len(outputs)]
        elif arguments and _same_list(values[arguments[-1]], outputs):
            arguments = arguments[:-1]
    return KernelStep(name, tuple(arguments), tuple(outputs), in_place)


def _same_list(value: Value, outputs: Sequence[int]) -> bool:
    return isinstance(value, ListValue) and value.tensors and tuple(value.items) == tuple(outputs)


def _delegate(
    plan: schema.ExecutionPlan,
    call: schema.DelegateCall,
    values: Sequence[Value],
    arity: Sequence[tuple[int, int]],
    where: str,
) -> DelegateStep:
    if not 0 <= call.delegate_index < len(plan.delegates):
        raise InvalidPteError(f"{where} calls delegate {call.delegate_index} of {len(plan.delegates)}")
    inputs, outputs = arity[call.delegate_index]
    args = tuple(_index(a, values, where) for a in call.args)
    if inputs < len(args) < inputs + outputs:
        raise UnsupportedProgramError(
            f"{where}: delegate {call.delegate_index} ({plan.delegates[call.delegate_index].id}) gives {outputs} tensors, the "
            f"program takes {len(args) - inputs}: the others are buffers that it was to keep, and it does not say which. "
            "Export with the Vulkan compile option alias_buffer_mutations"
        )
    if len(args) != inputs + outputs:
        raise InvalidPteError(
            f"{where}: {len(args)} arguments for delegate {call.delegate_index} "
            f"({plan.delegates[call.delegate_index].id}), which takes {inputs} and gives {outputs}"
        )
    for index in args[inputs:]:
        if not isinstance(values[index], TensorValue):
            raise InvalidPteError(f"{where}: the delegate is to write value {index}, which is no tensor")
    return DelegateStep(call.delegate_index, args[:inputs], args[inputs:])
