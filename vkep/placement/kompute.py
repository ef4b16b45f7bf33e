"""Operators that users run with Kompute (kp): how they are declared, and their regions while nodes are being placed.

Plain data: only `vkep.session.execution.kompute` imports kp, when a session has such a region.
"""

from __future__ import annotations

import importlib.util
import math
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkep.dtypes import DTYPES, from_onnx
from vkep.errors import Decline
from vkep.graph.model import Node
from vkep.graph.weights import Weight
from vkep.ir.program import HostValue, KpCall, KpStep, ValueSpec

KOMPUTE = "kompute"
#: element types that both kp tensors and GLSL storage buffers support
TYPES = ("float32", "int32", "uint32", "float64")
MISSING = "the package kp is not installed: pip install 'vkep[kompute]', or build it with tools/build_kp.sh"


@dataclass(frozen=True)
class KpTensor:
    """Type and shape of a value that a kp shader reads or writes."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class KpDispatch:
    """How a shader is run: the number of workgroups, push constants and specialization constants (ids from 0 on).

    Constants have 32 bits each, as in kp: int (int32, or uint32 from 2**31 on), float (float32) and bool (0 or 1).
    """

    workgroups: tuple[int, int, int]
    push_constants: tuple[int | float, ...] = ()
    spec_constants: tuple[int | float, ...] = ()


Tensors = Sequence[KpTensor]
#: (inputs, attributes) to the outputs' types and shapes
Outputs = Callable[[Tensors, Mapping[str, Any]], Tensors]
#: (inputs, outputs, attributes) to a `KpDispatch`
Dispatch = Callable[[Tensors, Tensors, Mapping[str, Any]], KpDispatch]


def one_group_an_element(inputs: Tensors, outputs: Tensors, attributes: Mapping[str, Any]) -> KpDispatch:
    """kp's default for shaders of local size 1: a workgroup for each element, here of the first output."""
    return KpDispatch((outputs[0].size, 1, 1))


@dataclass(frozen=True)
class KpOperator:
    """An operator of a user's domain. ``shader`` is SPIR-V, or a file with GLSL or (``.spv``) SPIR-V."""

    domain: str
    op_type: str
    shader: bytes | Path
    outputs: Outputs
    dispatch: Dispatch = one_group_an_element


_OPERATORS: dict[tuple[str, str], KpOperator] = {}


def declare(operator: KpOperator) -> None:
    """Make an operator known to later sessions. Raises ``ValueError`` for a name that is taken."""
    key = (operator.domain, operator.op_type)
    if operator.domain in ("", "ai.onnx"):
        raise ValueError(f"{operator.op_type}: a kp operator has a domain of its own; ONNX's operators are vkep's")
    if not re.fullmatch(r"[A-Za-z_]\w*", operator.op_type):
        raise ValueError(f"op_type is {operator.op_type!r}, expected an identifier")
    if key in _OPERATORS:
        raise ValueError(f"{operator.domain}.{operator.op_type} is registered already")
    _OPERATORS[key] = operator


def forget(domain: str, op_type: str) -> None:
    """Remove an operator. Raises ``KeyError`` where there is none."""
    del _OPERATORS[domain, op_type]


def find(node: Node) -> KpOperator | None:
    """The operator of a node, or None."""
    return _OPERATORS.get((node.domain, node.op_type))


def available() -> bool:
    """Whether the package kp is installed (it is not imported)."""
    try:
        return importlib.util.find_spec("kp") is not None
    except (ImportError, ValueError):
        return False


def constant_words(values: Sequence[int | float], what: str) -> bytes:
    """32-bit words of push or specialization constants. Raises `Decline` for a number that 32 bits cannot hold."""
    data = bytearray()
    for value in values:
        try:
            if isinstance(value, float):
                data += struct.pack("<f", value)
            else:
                number = int(value)
                data += struct.pack("<i" if number < 2**31 else "<I", number)
        except (struct.error, OverflowError, TypeError, ValueError) as error:
            raise Decline(f"{what}: {value!r} is no 32-bit number") from error
    return bytes(data)


@dataclass
class _Region:
    calls: list[KpCall] = field(default_factory=list)
    specs: dict[str, KpTensor] = field(default_factory=dict)
    constants: dict[str, Weight] = field(default_factory=dict)

    @property
    def made(self) -> list[str]:
        return [name for call in self.calls for name in call.outputs if name]

    @property
    def taken(self) -> list[str]:
        """Values that come from outside, without constants."""
        made = set(self.made) | set(self.constants)
        return list(dict.fromkeys(n for call in self.calls for n in call.inputs if n not in made))


class KpRegions:
    """Regions of kp operators by stage: one kp sequence each."""

    def __init__(self) -> None:
        self.by_stage: dict[int, _Region] = {}

    def add(
        self, node: Node, stage: int, known: Mapping[str, Weight | ValueSpec | HostValue]
    ) -> list[tuple[str, ValueSpec]]:
        """Add a node to the region of a stage; returns its outputs. Raises `Decline`."""
        operator = find(node)
        if operator is None:
            raise Decline(f"no kp operator {node.domain}.{node.op_type} is registered")
        if not available():
            raise Decline(MISSING)
        if not all(node.inputs) or not node.inputs:
            raise Decline("a kp operator takes one input or more, and none of them left out")
        inputs = [_tensor(name, known[name]) for name in node.inputs]
        try:
            outputs = [
                KpTensor(str(t.dtype), tuple(int(d) for d in t.shape))
                for t in operator.outputs(inputs, node.attributes)
            ]
            if len(outputs) != len(node.outputs):
                raise Decline(f"its output function tells of {len(outputs)} outputs; the node has {len(node.outputs)}")
            for index, tensor in enumerate(outputs):
                _check(f"output {index}", tensor.dtype, tensor.shape)
            dispatch = operator.dispatch(inputs, outputs, node.attributes)
        except (ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
            raise Decline(f"its registration does not fit the node: {type(error).__name__}: {error}") from error
        groups = tuple(int(g) for g in dispatch.workgroups)
        if len(groups) != 3 or min(groups) < 1:
            raise Decline(f"workgroups are {dispatch.workgroups}, expected three numbers of at least 1")
        names = [name or f"{node.name}.output{index}" for index, name in enumerate(node.outputs)]
        call = KpCall(
            node,
            operator.shader,
            tuple(node.inputs),
            tuple(names),
            groups,
            constant_words(dispatch.push_constants, "push constants"),
            constant_words(dispatch.spec_constants, "specialization constants"),
        )
        region = self.by_stage.setdefault(stage, _Region())
        region.calls.append(call)
        for name, tensor in zip((*node.inputs, *names), (*inputs, *outputs), strict=True):
            region.specs[name] = tensor
        region.constants.update({n: w for n in node.inputs if isinstance(w := known[n], Weight)})
        return [
            (name, ValueSpec(DTYPES[tensor.dtype], tensor.shape))
            for name, tensor in zip(node.outputs, outputs, strict=True)
            if name
        ]

    def reads(self) -> set[str]:
        """The values that the regions read from outside."""
        return {name for region in self.by_stage.values() for name in region.taken}

    def steps(self, wanted: Collection[str]) -> Iterator[tuple[int, KpStep]]:
        """(stage, step) of each region that computes something ``wanted`` (or read by another region)."""
        asked = self.reads().union(wanted)
        for stage, region in self.by_stage.items():
            outputs = tuple(n for n in dict.fromkeys(region.made) if n in asked)
            if outputs:
                specs = {name: (t.dtype, t.shape) for name, t in region.specs.items()}
                nodes = tuple(call.node for call in region.calls)
                yield stage, KpStep(tuple(region.calls), nodes, tuple(region.taken), outputs, region.constants, specs)


def _tensor(name: str, value: Weight | ValueSpec | HostValue) -> KpTensor:
    if isinstance(value, HostValue):
        raise Decline(f"input {name!r} is {value.what}, which kp has no tensors of")
    dtype = value.dtype if isinstance(value, ValueSpec) else from_onnx(value.elem_type)
    text = "of an unknown type" if dtype is None else dtype.name
    _check(f"input {name!r}", text, value.shape)
    return KpTensor(text, tuple(value.shape))


def _check(what: str, dtype: str, shape: Sequence[int]) -> None:
    if dtype not in TYPES:
        raise Decline(f"{what} is {dtype}; kp has tensors of {', '.join(TYPES)}")
    if 0 in shape:
        raise Decline(f"{what} is empty {tuple(shape)}; kp has no empty tensors")
