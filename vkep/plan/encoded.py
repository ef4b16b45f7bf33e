"""Plans and arrays as bytes: a header (JSON) followed by the arrays, each aligned for any element type.

Reading runs no code: the bytes may come from a file of unknown origin.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from enum import Enum
from typing import Any

import numpy as np

from vkep import dtypes
from vkep.graph.weights import Weight
from vkep.plan.records import (
    ConstantRef,
    Dispatch,
    PipelineKey,
    Plan,
    Port,
    Range,
    Relocation,
    ShaderVariant,
    Slot,
    Space,
)
from vkep.plan.sized import Buffer, PlanSizes
from vkep.sizes import Formulas
from vkep.threads import made_ahead

_ALIGNMENT = 64
_START = struct.Struct("<Q16s")  # length and digest of the header
#: exceptions of reading bytes that were not written here, or are not complete
DAMAGED = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
)


def chunks(magic: bytes, header: Mapping[str, Any], weights: Mapping[str, Weight]) -> Iterator[bytes | memoryview]:
    """The bytes of ``header`` and of the weights' arrays, in chunks: a few arrays at a time are in memory. Raises
    ``ValueError`` for an element type that cannot be written."""
    entries = {}
    offset = 0
    for key, weight in weights.items():
        dtype = dtypes.from_onnx(weight.elem_type)
        if dtype is None:
            raise ValueError(f"weight {weight.name!r} has no element type that can be written")
        entries[key] = {"offset": offset, "dtype": dtype.name, "shape": weight.shape}
        offset += _aligned(weight.nbytes)
    text = json.dumps({**header, "weights": entries}).encode()
    head = magic + _START.pack(len(text), _digest(text)) + text
    yield head.ljust(_aligned(len(head)), b"\0")
    with closing(made_ahead((weight.array, weight.nbytes) for weight in weights.values())) as made:
        for array in made:
            assert array is not None
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            yield content.data
            yield bytes(_aligned(content.nbytes) - content.nbytes)


def read(magic: bytes, data: bytes | memoryview) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """The header and the arrays, which are views of ``data``. Raises one of `DAMAGED`: ``ValueError`` for
    data that do not begin with ``magic`` or were altered."""
    if bytes(data[: len(magic)]) != magic:
        raise ValueError(f"the data does not begin with {magic!r}")
    length, digest = _START.unpack_from(data, len(magic))
    begin = len(magic) + _START.size
    text = bytes(data[begin : begin + length])
    if _digest(text) != digest:
        raise ValueError("the header is cut short or altered")
    header = json.loads(text)
    start = _aligned(begin + length)
    arrays = {key: _array(entry, data, start) for key, entry in header["weights"].items()}
    return header, arrays


def _array(entry: Mapping[str, Any], data: bytes | memoryview, start: int) -> np.ndarray[Any, Any]:
    dtype = dtypes.DTYPES[entry["dtype"]].numpy
    shape = tuple(int(d) for d in entry["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, dtype)
    flat = np.frombuffer(data, np.uint8, count * dtype.itemsize, start + int(entry["offset"]))
    return flat.view(dtype).reshape(shape)


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


# ---- records


def plan_fields(plan: Plan) -> Any:
    """A plan as JSON: records become lists of their fields, bytes base64."""
    return _plain(plan)


def read_plan(fields: Any) -> Plan:
    """The inverse of `plan_fields`. Raises `ValueError` (also for shaders other than vkep's own), `TypeError`."""
    ports, constants, activation, slots, pipelines, dispatches, peak, notes, faults = fields
    return Plan(
        ports=tuple(Port(n, t, tuple(shape), size, into) for n, t, shape, size, into in ports),
        constants=tuple(ConstantRef(*c) for c in constants),
        activation_bytes=activation,
        slots=tuple(Slot(*s) for s in slots),
        pipelines=tuple(_pipeline(*p) for p in pipelines),
        dispatches=tuple(_dispatch(*d) for d in dispatches),
        live_peak_bytes=peak,
        notes=tuple(notes),
        faults=tuple((int(code), str(text)) for code, text in faults),
    )


def sizes_fields(thing: PlanSizes | Formulas | None) -> Any:
    """The numbers of a plan that depend on sizes, or the conditions on sizes, as JSON."""
    return _plain(thing)


def read_sizes(fields: Any) -> PlanSizes | None:
    """The inverse of `sizes_fields`. Raises `ValueError`, `TypeError`."""
    if fields is None:
        return None
    values, arguments, grids, addends, slots, shapes, faults, buffers, places = fields
    return PlanSizes(
        values=read_formulas(values),
        arguments=tuple((int(k), int(at), _code(code), int(v)) for k, at, code, v in arguments),
        grids=tuple((int(k), int(axis), int(v)) for k, axis, v in grids),
        addends=tuple((int(k), int(at), int(v)) for k, at, v in addends),
        slots=tuple((int(k), int(v)) for k, v in slots),
        shapes=tuple((int(k), int(axis), int(v)) for k, axis, v in shapes),
        faults=tuple((int(k), tuple(p if isinstance(p, str) else int(p) for p in parts)) for k, parts in faults),
        buffers=tuple(Buffer(int(nbytes), int(first), int(last)) for nbytes, first, last in buffers),
        places=tuple((int(k), int(at), int(b), int(byte)) for k, at, b, byte in places),
    )


def read_formulas(fields: Any) -> Formulas:
    """The inverse of `sizes_fields` for formulas. Checks that numbers are numbers and names are known, since formulas
    are compiled."""
    symbols, nodes, results, relations = fields
    made = Formulas(
        int(symbols),
        tuple((str(op), tuple(map(_operand, operands))) for op, operands in nodes),
        tuple(map(_operand, results)),
        None if relations is None else tuple(map(str, relations)),
    )
    made.check()
    return made


def _operand(fields: Any) -> Any:
    if not isinstance(fields, list):
        return float(fields) if isinstance(fields, float) else int(fields)
    if fields[0] == "node":
        return ("node", int(fields[1]))
    kind, terms, const = fields
    if kind != "sum":
        raise ValueError(f"an operand of a formula is {kind!r}, expected 'sum' or 'node'")
    return ("sum", tuple((tuple(map(int, product)), int(count)) for product, count in terms), int(const))


def _code(code: str) -> str:
    if code not in ("I", "i", "f"):
        raise ValueError(f"an argument's code is {code!r}")
    return code


def _plain(thing: Any) -> Any:
    if dataclasses.is_dataclass(thing):
        return [_plain(getattr(thing, f.name)) for f in dataclasses.fields(thing)]
    if isinstance(thing, Enum):
        return thing.value
    if isinstance(thing, bytes):
        return base64.b64encode(thing).decode()
    if isinstance(thing, (tuple, list)):
        return [_plain(t) for t in thing]
    return thing


def _pipeline(shader: Any, spec: Any, argument_bytes: int, in_memory: bool, subgroup_size: int | None) -> PipelineKey:
    source, defines = shader
    if not is_own(source):
        raise ValueError(f"the data names a shader outside vkep's own: {source!r}")
    variant = ShaderVariant(source, tuple((k, v) for k, v in defines))
    return PipelineKey(variant, tuple((k, v) for k, v in spec), argument_bytes, in_memory, subgroup_size)


def is_own(source: str) -> bool:
    """Whether a shader's source is one of vkep's own files, not a user's."""
    return "/" not in source and "\\" not in source


def _dispatch(
    pipeline: int,
    arguments: str,
    relocations: Any,
    grid: Any,
    barrier: bool,
    label: str,
    reads: Any,
    writes: Any,
    flops: int,
    nbytes: int,
    candidate: str,
    rejected: Any,
) -> Dispatch:
    x, y, z = grid
    return Dispatch(
        pipeline,
        base64.b64decode(arguments),
        tuple(Relocation(offset, Space(space), index, addend) for offset, space, index, addend in relocations),
        (x, y, z),
        barrier,
        label,
        tuple(Range(Space(space), index, start, end) for space, index, start, end in reads),
        tuple(Range(Space(space), index, start, end) for space, index, start, end in writes),
        flops,
        nbytes,
        candidate,
        tuple((name, reason) for name, reason in rejected),
    )
