"""A plan: what a device runs for one island at one input signature, as plain data.

Nothing here imports Vulkan. A plan can be printed, compared, saved and loaded without a GPU; the device
side (``vkep.device``) turns it into pipelines, memory and a recorded command buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Space(Enum):
    """The kinds of memory that an address in a plan points to."""

    CONSTANT = "constant"  #: index into ``Plan.constants``
    ACTIVATION = "activation"  #: byte offset into the plan's activation slab (index unused)
    PORT = "port"  #: an input or output of the run (ranges: index into ``Plan.ports``; relocations: ``Plan.slots``)
    FAULT = "fault"  #: the run's fault word (index and addend unused): see ``Plan.faults``


@dataclass(frozen=True, slots=True)
class ShaderVariant:
    """One compilation of one GLSL file, identified by the file and its definitions."""

    source: str  #: file name below ``shaders/`` (or an absolute path, for a user's own shader)
    defines: tuple[tuple[str, str], ...] = ()  #: sorted preprocessor definitions


@dataclass(frozen=True, slots=True)
class PipelineKey:
    """One compute pipeline: a variant and its specialisation, spec constants by name."""

    shader: ShaderVariant
    spec: tuple[tuple[str, int], ...] = ()  #: sorted; INDIRECT and LOCAL_X/Y/Z included
    argument_bytes: int = 0  #: size of the argument block (in push constants, or in memory when too large)
    arguments_in_memory: bool = False
    subgroup_size: int | None = None  #: required subgroup size, where a kernel depends on it


@dataclass(frozen=True, slots=True)
class Relocation:
    """Patch the 8 bytes at ``offset`` of a dispatch's argument block with an address.

    The address is base(space, index) + ``addend``. For ``Space.PORT`` the index names a `Slot`, and the address is
    that of the slot in the argument table.
    """

    offset: int
    space: Space
    index: int
    addend: int = 0


#: instead of a port: a slot that holds no address but 64 random bits, drawn for each run
FRESH = -1
#: instead of a port: the run's fault word
FAULT = -2


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of the argument table: the address of a port's tensor plus ``addend``, written for each run."""

    port: int  #: index into ``Plan.ports``, or `FRESH`
    addend: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """A byte range that a dispatch reads or writes."""

    space: Space
    index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One dispatch of a plan: a pipeline with its arguments, and the byte ranges that it reads and writes."""

    pipeline: int  #: index into ``Plan.pipelines``
    arguments: bytes  #: the argument block before relocation
    relocations: tuple[Relocation, ...]
    grid: tuple[int, int, int]  #: workgroups
    barrier: bool  #: wait for the dispatches before it (a hazard was found)
    label: str  #: the ONNX nodes that it computes
    reads: tuple[Range, ...] = ()
    writes: tuple[Range, ...] = ()
    flops: int = 0  #: arithmetic operations
    bytes: int = 0  #: bytes that must move at least once
    #: how the kernel was chosen, for `vkep explain`: the candidate, and the ones before it with the reasons against
    #: them
    candidate: str = field(default="", repr=False, compare=False)
    rejected: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)


class Port(NamedTuple):
    """An input or output of the plan."""

    name: str
    dtype: str  #: numpy's name of the element type
    shape: tuple[int, ...]
    nbytes: int
    is_input: bool


@dataclass(frozen=True, slots=True)
class ConstantRef:
    """A constant's identity and size; its bytes come from the ``Constants`` store that planned it."""

    key: str  #: content digest: equal keys are equal bytes, so that a device holds them once
    nbytes: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The commands of one island for a device: see docs/architecture.md. Frozen, and comparable."""

    ports: tuple[Port, ...]  #: the inputs, then the outputs
    constants: tuple[ConstantRef, ...]
    activation_bytes: int
    slots: tuple[Slot, ...]
    pipelines: tuple[PipelineKey, ...]
    dispatches: tuple[Dispatch, ...]
    live_peak_bytes: int = 0  #: largest sum of live activations at one dispatch: the bound for activation_bytes
    notes: tuple[str, ...] = field(default=())
    #: errors that a kernel may find at run time, where data break an operator's specification: (code, text with the
    #: node). The kernel that finds one writes the code to the run's fault word, which is 0 otherwise.
    faults: tuple[tuple[int, str], ...] = ()

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The input ports in order."""
        return tuple(p for p in self.ports if p.is_input)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The output ports in order."""
        return tuple(p for p in self.ports if not p.is_input)
