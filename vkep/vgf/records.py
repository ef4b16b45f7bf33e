"""The content of a VGF file as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vkep.errors import VkepError

#: VkFormat of one component: name, numpy's dtype (ml_dtypes' where numpy has none)
FORMATS: Mapping[int, tuple[str, str]] = {
    9: ("R8_UNORM", "uint8"),
    13: ("R8_UINT", "uint8"),
    14: ("R8_SINT", "int8"),
    74: ("R16_UINT", "uint16"),
    75: ("R16_SINT", "int16"),
    76: ("R16_SFLOAT", "float16"),
    98: ("R32_UINT", "uint32"),
    99: ("R32_SINT", "int32"),
    100: ("R32_SFLOAT", "float32"),
    110: ("R64_UINT", "uint64"),
    111: ("R64_SINT", "int64"),
    112: ("R64_SFLOAT", "float64"),
    1000460000: ("R8_BOOL_ARM", "bool"),
    1000460001: ("R16_SFLOAT_FPENCODING_BFLOAT16_ARM", "bfloat16"),
    1000460002: ("R8_SFLOAT_FPENCODING_FLOAT8E4M3_ARM", "float8_e4m3fn"),
    1000460003: ("R8_SFLOAT_FPENCODING_FLOAT8E5M2_ARM", "float8_e5m2"),
}
ITEMSIZE = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint16": 2, "int16": 2, "float16": 2,
    "bfloat16": 2, "uint32": 4, "int32": 4, "float32": 4, "uint64": 8, "int64": 8, "float64": 8,
}  # fmt: skip
DESCRIPTORS = {1000460000: "TENSOR", 7: "STORAGE_BUFFER", 6: "UNIFORM_BUFFER", 3: "STORAGE_IMAGE"}
TENSOR, STORAGE_BUFFER, UNIFORM_BUFFER = 1000460000, 7, 6


class InvalidVgfError(VkepError, ValueError):
    """The bytes are not a valid VGF file: the error and its place."""


@dataclass(frozen=True)
class Resource:
    """One row of the model resource table. ``category`` is "input", "output", "intermediate" or "constant"."""

    category: str
    descriptor_type: int | None  #: VkDescriptorType; None for constants
    format: int  #: VkFormat
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()  #: empty: dense
    alias_group: int | None = None  #: resources of one group share memory

    @property
    def dtype(self) -> str:
        """Numpy's (or ml_dtypes') name of the elements. Raises `InvalidVgfError` for a format of several components."""
        if self.format not in FORMATS:
            raise InvalidVgfError(f"VkFormat {self.format} is none of one component: {sorted(FORMATS)}")
        return FORMATS[self.format][1]

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


@dataclass(frozen=True)
class Module:
    """A module: ``kind`` is "graph" or "compute". ``spirv`` is None for a placeholder, and for a module whose
    ``source`` is in another language."""

    name: str
    kind: str
    entry_point: str
    spirv: bytes | None
    language: str = "SPIR-V"
    source: str | None = None


@dataclass(frozen=True)
class Constant:
    """Data of a constant: ``resource`` is its row in the resource table.

    ``sparse_dimension``: along it two of each four elements are 0, a hint to drivers (-1: none); the stored data is
    dense.
    """

    resource: int
    data: bytes
    sparse_dimension: int = -1


@dataclass(frozen=True)
class BindingSlot:
    """A resource (row of the table) at a binding."""

    binding: int
    resource: int
    name: str = ""


@dataclass(frozen=True)
class Segment:
    """One step of the model: a module with its bindings by descriptor set."""

    name: str
    kind: str
    module: int
    sets: Mapping[int, tuple[BindingSlot, ...]]
    inputs: tuple[BindingSlot, ...]
    outputs: tuple[BindingSlot, ...]
    constants: tuple[tuple[int, int], ...]  #: (the graph's number, index of the constant)
    push_constants: tuple[tuple[int, int, int], ...]  #: (stage flags, offset, size)
    dispatch: tuple[int, int, int]


@dataclass(frozen=True)
class Vgf:
    """A whole file."""

    version: tuple[int, int, int]
    resources: tuple[Resource, ...]
    modules: tuple[Module, ...]
    constants: tuple[Constant, ...]
    segments: tuple[Segment, ...]
    inputs: tuple[BindingSlot, ...]
    outputs: tuple[BindingSlot, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything except the code and the constants' bytes."""
        return {
            "version": ".".join(map(str, self.version)),
            "inputs": [vars(s) for s in self.inputs],
            "outputs": [vars(s) for s in self.outputs],
            "resources": [
                {
                    "category": r.category,
                    "descriptor_type": None
                    if r.descriptor_type is None
                    else DESCRIPTORS.get(r.descriptor_type, str(r.descriptor_type)),
                    "format": FORMATS.get(r.format, (str(r.format),))[0],
                    "shape": list(r.shape),
                    "stride": list(r.stride),
                }
                for r in self.resources
            ],
            "modules": [
                {
                    "name": m.name,
                    "kind": m.kind,
                    "entry_point": m.entry_point,
                    "language": m.language,
                    "spirv_bytes": len(m.spirv or b""),
                }
                for m in self.modules
            ],
            "constants": [
                {"resource": c.resource, "bytes": len(c.data), "sparse_dimension": c.sparse_dimension}
                for c in self.constants
            ],
            "segments": [
                {
                    "name": s.name,
                    "kind": s.kind,
                    "module": s.module,
                    "sets": {str(i): [vars(slot) for slot in slots] for i, slots in s.sets.items()},
                    "constants": [list(c) for c in s.constants],
                    "push_constants": [list(p) for p in s.push_constants],
                    "dispatch": list(s.dispatch),
                }
                for s in self.segments
            ],
        }
