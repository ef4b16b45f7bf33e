"""The tensors that a graph module's SPIR-V declares: drivers and emulation layers rely on what a file binds to them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vkep.vgf.records import ITEMSIZE, InvalidVgfError, Resource, Segment, Vgf

_TYPE_BOOL, _TYPE_INT, _TYPE_FLOAT, _TYPE_POINTER = 20, 21, 22, 32
_CONSTANT, _COMPOSITE, _VARIABLE, _DECORATE = 43, 44, 59, 71
_TYPE_TENSOR, _GRAPH_CONSTANT, _GRAPH_ENTRY_POINT = 4163, 4181, 4182
_BINDING, _SET = 33, 34
_HEADER = 5  #: words


@dataclass(frozen=True)
class Declared:
    """A tensor of a module: "float", "int" or "bool", bits of an element, and the shape (empty: not in the module)."""

    kind: str
    bits: int
    shape: tuple[int, ...]

    def fits(self, resource: Resource) -> bool:
        """Whether a resource has the tensor's shape and elements."""
        dtype = resource.dtype
        kind = "bool" if dtype == "bool" else "float" if "float" in dtype else "int"
        same = kind == self.kind and (kind == "bool" or 8 * ITEMSIZE[dtype] == self.bits)
        return same and (not self.shape or self.shape == (resource.shape or (1,)))

    def __str__(self) -> str:
        return f"{self.kind}{'' if self.kind == 'bool' else self.bits} {list(self.shape) if self.shape else 'of any shape'}"


@dataclass
class _Module:
    """What is collected from the instructions, by result id."""

    #: (kind, bits), `Declared`, or the type that a pointer points to
    types: dict[int, Any] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)
    variables: dict[int, int] = field(default_factory=dict)  #: types
    places: dict[int, dict[int, int]] = field(default_factory=dict)  #: decorations
    constants: dict[int, int] = field(default_factory=dict)  #: types by a constant's number
    graphs: dict[str, tuple[int, ...]] = field(default_factory=dict)  #: interfaces by name

    def add(self, op: int, words: tuple[int, ...]) -> None:
        if op == _TYPE_BOOL:
            self.types[words[0]] = ("bool", 8)
        elif op in (_TYPE_INT, _TYPE_FLOAT):
            self.types[words[0]] = ("int" if op == _TYPE_INT else "float", words[1])
        elif op == _TYPE_POINTER:
            self.types[words[0]] = self.types.get(words[2])
        elif op == _TYPE_TENSOR:
            shape = self.values.get(words[3], ()) if len(words) > 3 else ()
            kind, bits = self.types[words[1]]
            self.types[words[0]] = Declared(kind, bits, () if None in shape else shape)
        elif op == _CONSTANT:
            self.values[words[1]] = words[2]
        elif op == _COMPOSITE:
            self.values[words[1]] = tuple([self.values.get(w) for w in words[2:]])
        elif op == _VARIABLE:
            self.variables[words[1]] = words[0]
        elif op == _DECORATE and words[1] in (_BINDING, _SET):
            self.places.setdefault(words[0], {})[words[1]] = words[2]
        elif op == _GRAPH_CONSTANT:
            self.constants[words[2]] = words[0]
        elif op == _GRAPH_ENTRY_POINT:
            text = struct.pack(f"<{len(words) - 1}I", *words[1:])
            size = text.index(b"\0")
            self.graphs[text[:size].decode()] = words[2 + size // 4 :]


def _instructions(code: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    words = struct.unpack(f"<{len(code) // 4}I", code)
    at = _HEADER
    while at < len(words):
        count = words[at] >> 16
        if not count or at + count > len(words):
            raise ValueError(f"an instruction of {count} words at word {at} of {len(words)}")
        yield words[at] & 0xFFFF, words[at + 1 : at + count]
        at += count


def check_graph(where: str, vgf: Vgf, segment: Segment, code: bytes) -> None:
    """Raise `InvalidVgfError` unless a graph segment binds exactly the tensors and constants that its SPIR-V module declares,
    each with the declared shape and element type."""
    entry_point, module = vgf.modules[segment.module].entry_point, _Module()
    try:
        for op, words in _instructions(code):
            module.add(op, words)
        interface = module.graphs[entry_point]
        wanted: dict[tuple[str, int, int], Any] = {
            ("binding", module.places[i][_SET], module.places[i][_BINDING]): module.types[module.variables[i]]
            for i in interface
        }
        wanted |= {("constant", 0, number): module.types[kind] for number, kind in module.constants.items()}
    except (LookupError, ValueError, TypeError, struct.error) as error:
        raise InvalidVgfError(
            f"{where}: its SPIR-V declares no graph {entry_point!r} that can be read: {error!r}"
        ) from error
    slots = [(("binding", number, s.binding), s.resource) for number, bound in segment.sets.items() for s in bound]
    slots += [(("constant", 0, number), vgf.constants[index].resource) for number, index in segment.constants]
    given = dict(slots)
    if len(given) != len(set(slots)) or given.keys() != wanted.keys():
        raise InvalidVgfError(
            f"{where} binds {[key for key, _ in slots]}, and its module declares {list(wanted)} (kind, set, number)"
        )
    for key, index in given.items():
        resource, declared = vgf.resources[index], wanted[key]
        if not isinstance(declared, Declared) or not declared.fits(resource):
            raise InvalidVgfError(
                f"{where} {key[0]} {key[2]} is {resource.dtype} {list(resource.shape)}, and its module declares {declared}"
            )
