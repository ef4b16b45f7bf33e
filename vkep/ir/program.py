"""The program of a model for one input signature: islands for Vulkan, nodes for the CPU, and parts that are planned
once values are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vkep import dtypes
from vkep.dtypes import DType
from vkep.graph.model import Dim, Node, ValueInfo
from vkep.graph.weights import Weight
from vkep.plan.records import Plan
from vkep.plan.sized import PlanSizes
from vkep.sizes import Formulas

if TYPE_CHECKING:  # programs without TOSA regions do not import its operators
    from vkep.tosa.lower import TosaGraph


#: (output, input) for each output that a run writes to an input's memory
Over = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ValueSpec:
    """A value known by type and shape, not by content."""

    dtype: DType
    shape: tuple[int, ...]
    #: of an input: it is the leading elements of a tensor of this shape; (): a dense tensor
    capacity: tuple[int, ...] = ()


@dataclass(frozen=True)
class HostValue:
    """A value that only the CPU can hold: texts, maps, or a sequence whose content is not known."""

    what: str


#: longest sequence whose elements are planned one by one; the CPU handles longer ones
LONGEST_LIST = 512


@dataclass(frozen=True)
class ListValue(HostValue):
    """A sequence of values that each have a name."""

    what: str = "a sequence"
    items: tuple[str, ...] = ()
    elem_type: int = 0  #: element type of its tensors, 0 where it is not known


def element_name(name: str, place: int) -> str:
    """The name of an element of a sequence that is an input or output of a run."""
    return f"{name}[{place}]"


@dataclass(frozen=True)
class NoValue(HostValue):
    """An optional without an element. An optional with an element is represented by the element."""

    what: str = "an optional without an element"


def declared_value(info: ValueInfo, size: Callable[[Dim], int] | None = None) -> ValueSpec | HostValue | None:
    """The value that a graph input's declaration describes; ``size`` chooses a dimension that it leaves open. None
    without a declared rank."""
    dtype = dtypes.from_onnx(info.elem_type)
    if dtype is None:
        return HostValue(dtypes.onnx_name(info.elem_type) if info.elem_type else "no tensor")
    if info.shape is None:
        return None
    return ValueSpec(dtype, tuple(d if isinstance(d, int) else size(d) if size else 0 for d in info.shape))


@dataclass(frozen=True)
class Placement:
    """Where one node runs and the reason, for the report."""

    node: Node
    #: "vulkan", "vgf", "kompute", "cpu", "folded", "deferred", "inlined" (replaced by its body's nodes) or "control"
    #: (executed by the session)
    where: str
    reason: str = ""
    island: int | None = None
    declined: Mapping[str, str] = field(default_factory=dict)  #: the reasons of the delegates that declined it first


@dataclass(frozen=True)
class IslandStep:
    """Run a plan. Its ports' names are the model's value names."""

    plan: Plan
    weights: Mapping[str, Weight]
    nodes: tuple[Node, ...]
    sizes: PlanSizes | None = None  #: the changes of the plan for sizes other than the current ones
    over: Over = ()  #: the outputs that it writes to an input's memory


@dataclass(frozen=True)
class VgfStep:
    """Run a TOSA graph as a data graph. Its ports' names are the model's value names."""

    graph: TosaGraph
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class CpuStep:
    """Run nodes on the CPU; ``inputs`` and ``outputs`` are value names, ``reasons`` why each node runs here. ``lists``
    are the sequences and optionals that the nodes read; ``inputs`` and ``constants`` contain their elements."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Weight]
    reasons: tuple[str, ...] = ()
    lists: Mapping[str, HostValue] = field(default_factory=dict)


def element_axis(k: int, count: int) -> int:
    """What stands for an axis where element ``k`` of a value of ``count`` elements is a size: negative; -1 of the only one."""
    return -1 if count == 1 else -2 - k


@dataclass(frozen=True)
class DeferredStep:
    """Plan the rest after the earlier steps have run: planning needs shapes, or ``values``, that those steps
    compute."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: tuple[str, ...]  #: the values whose content the plan depends on
    constants: Mapping[str, Weight | HostValue]  #: the sequences and optionals whose elements are inputs
    #: the names of the inputs' dimensions that are sizes, by input and axis, and of elements of ``values`` (`element_axis`)
    sizes: Mapping[tuple[str, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class ControlStep:
    """A Loop or Scan that the session executes: its body runs as a separate program, planned once for each signature.

    ``inputs`` are the values that the node and its body read, ``constants`` those that are known; ``sizes`` as of `DeferredStep`.
    """

    node: Node
    inputs: tuple[str, ...]
    constants: Mapping[str, Weight]
    sizes: Mapping[tuple[str, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class KpCall:
    """One dispatch of a user's kp shader: SPIR-V, or its file. Constants are 32-bit words."""

    node: Node
    shader: bytes | Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    workgroups: tuple[int, ...]
    push_constants: bytes = b""
    spec_constants: bytes = b""


@dataclass(frozen=True)
class KpStep:
    """Run kp shaders on kp's own device: ``inputs`` and ``outputs`` pass through the host. ``specs`` are (dtype, shape)."""

    calls: tuple[KpCall, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Weight]
    specs: Mapping[str, tuple[str, tuple[int, ...]]]


Step = IslandStep | VgfStep | KpStep | CpuStep | DeferredStep | ControlStep


@dataclass(frozen=True)
class SizedConstant:
    """Numbers that are computed from a run's sizes, such as a shape."""

    numbers: Formulas
    shape: tuple[int, ...]
    dtype: DType

    def array(self, sizes: Sequence[int]) -> np.ndarray:
        """The values for a run's ``sizes``, with the constant's shape and dtype."""
        return np.array(self.numbers(sizes), self.dtype.numpy).reshape(self.shape)


@dataclass(frozen=True)
class Program:
    """Steps in order, outputs that are constants, and the placement of every node."""

    steps: tuple[Step, ...]
    constants: Mapping[str, Weight]  #: outputs that folding has computed
    placements: tuple[Placement, ...]
    outputs: tuple[str, ...] = ()  #: the values that the caller requests, with the elements of ``lists`` one by one
    #: the sizes for which the program is valid, as conditions on them; None: only those that it was planned for
    conditions: Formulas | None = None
    numbers: Mapping[str, SizedConstant] = field(default_factory=dict)  #: values that a run's sizes determine
    lists: Mapping[str, HostValue] = field(default_factory=dict)  #: outputs that are sequences or optionals

    @property
    def in_place(self) -> set[str]:
        """The outputs that may be written to an input's memory. Those of a deferred step are decided by its own
        programs."""
        found: set[str] = set()
        for step in self.steps:
            found.update([output for output, _ in step.over] if isinstance(step, IslandStep) else ())
            found.update(step.outputs if isinstance(step, DeferredStep) else ())
        return found
