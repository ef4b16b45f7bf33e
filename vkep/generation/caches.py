"""Keys and values of the tokens so far, on the device between steps."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper

from vkep import dtypes
from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.errors import UnsupportedModelError
from vkep.graph.model import ValueInfo
from vkep.session import InferenceSession

#: a cache's capacity grows by doubling, starts with this many tokens and is a multiple of it
CAPACITY_STEP = 64


@dataclass(frozen=True)
class CacheSpec:
    """One of a model's caches: the input ``past`` [batch, heads, length, size], and the output ``present`` that
    replaces it. With ``state`` a recurrent layer's state [batch, *state] instead, which has no length; without ``present``
    something that no run of the decoder changes, as the keys and values of a source."""

    past: str
    present: str
    heads: int
    size: int
    dtype: str
    state: tuple[int, ...] = ()

    def shape(self, rows: int, capacity: int) -> tuple[int, ...]:
        """Of a buffer for so many sequences and tokens."""
        return (rows, *self.state) if self.state else (rows, self.heads, capacity, self.size)


class RowCaches:
    """Caches in buffers with capacity for more tokens: a row for each sequence, whose lengths may differ. Runs append
    to them in place."""

    def __init__(self, session: InferenceSession, specs: Sequence[CacheSpec]) -> None:
        self._session = session
        self._specs: list[CacheSpec] = []
        self._moves: dict[tuple[str, int], Moves] = {}
        self.rows = self.capacity = 0
        self._buffers: list[DeviceTensor] = []
        self._take(specs)
        self._views: dict[tuple[int, int], tuple[dict[str, DeviceTensor], dict[str, DeviceTensor]]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(tensor.nbytes for tensor in self._buffers)

    def _take(self, specs: Sequence[CacheSpec]) -> None:
        self._specs += specs
        for spec in specs:
            kind = spec.dtype, len(spec.state) or 3
            self._moves[kind] = self._moves.get(kind) or Moves(self._session, spec.dtype, 1 + kind[1])

    def add(self, specs: Sequence[CacheSpec]) -> None:
        """Have further caches in each row, whose sizes were not known before, or longer ones in place of those of the same names,
        whose content is kept where they have four axes. Raises `ArenaOutOfMemory`."""
        made = [self._empty(spec, self.rows, self.capacity) for spec in specs]
        self._take([spec for spec in specs if all(spec.past != known.past for known in self._specs)])
        places = {spec.past: place for place, spec in enumerate(self._specs)}
        for spec, tensor in zip(specs, made, strict=True):
            place = places[spec.past]
            if place < len(self._buffers):
                old = self._buffers[place]
                if self.rows and len(old.shape) == 4:
                    self._moves_of(spec).copy(old, tensor.leading(old.shape))
                self._buffers[place], self._specs[place] = tensor, spec
                old.close()
            else:
                self._buffers.append(tensor)
        self._views = {}

    def _empty(self, spec: CacheSpec, rows: int, capacity: int) -> DeviceTensor:
        """A buffer for a cache. What no run appends to is 0: a source's states may be fewer than there is room for."""
        tensor = self._session.empty_device_tensor(spec.shape(rows, capacity), spec.dtype)
        if rows and not spec.present:
            tensor.write(np.zeros(tensor.shape, DTYPES[spec.dtype].numpy))
        return tensor

    def grow(self, rows: int, capacity: int) -> None:
        """Grow the capacity to this many sequences and tokens each; the content is kept. Raises `ArenaOutOfMemory`, and
        then nothing changes."""
        rows, capacity = max(rows, self.rows), max(capacity, self.capacity)
        if (rows, capacity) == (self.rows, self.capacity):
            return
        made: list[DeviceTensor] = []
        try:
            for place, spec in enumerate(self._specs):
                made.append(self._empty(spec, rows, capacity))
                if self.rows:
                    self._moves_of(spec).copy(self._buffers[place], made[-1].rows(0, self.rows))
        except BaseException:
            for tensor in made:
                tensor.close()
            raise
        old = self._buffers
        self._buffers, self._views, self.rows, self.capacity = made, {}, rows, capacity
        for tensor in old:
            tensor.close()

    def copy(self, row: int, into: int, *, all_of_them: bool = True) -> None:
        """Copy the content of a row into another one; unless ``all_of_them``, only of what runs change."""
        for spec, tensor in zip(self._specs, self._buffers, strict=True):
            if not all_of_them and not spec.present:
                continue
            self._moves_of(spec).copy(tensor.rows(row, 1), tensor.rows(into, 1))

    def begin(self, row: int) -> None:
        """Set the states of a row to 0: those before the first token."""
        for spec, tensor in zip(self._specs, self._buffers, strict=True):
            if spec.state:
                tensor.rows(row, 1).write(np.zeros((1, *spec.state), DTYPES[spec.dtype].numpy))

    def fill(self, row: int, name: str, tensor: DeviceTensor) -> None:
        """Copy a tensor [1, ...] of the shape of a row of the cache ``name`` into the row, or to its beginning."""
        spec, target = self._row(row, name)
        self._moves_of(spec).copy(tensor, target if tensor.shape == target.shape else target.leading(tensor.shape))

    def write(self, row: int, name: str, value: np.ndarray[Any, Any]) -> None:
        """Write an array [1, ...] into a row of the cache ``name``."""
        self._row(row, name)[1].write(value)

    def _row(self, row: int, name: str) -> tuple[CacheSpec, DeviceTensor]:
        spec, buffer = next((s, b) for s, b in zip(self._specs, self._buffers, strict=True) if s.past == name)
        return spec, buffer.rows(row, 1)

    def _moves_of(self, spec: CacheSpec) -> Moves:
        return self._moves[spec.dtype, len(spec.state) or 3]

    def bound(self, first: int, count: int) -> tuple[Mapping[str, DeviceTensor], Mapping[str, DeviceTensor]]:
        """The bindings of a run on the rows from ``first``: inputs and outputs by name, the same objects until the
        caches grow."""
        found = self._views.get((first, count))
        if found is None:
            views = [tensor.rows(first, count) for tensor in self._buffers]
            pairs = list(zip(self._specs, views, strict=True))
            changed = {spec.present: view for spec, view in pairs if spec.present}
            found = {spec.past: view for spec, view in pairs}, changed
            self._views[first, count] = found
        return found

    def leading(self, row: int, length: int) -> tuple[Mapping[str, DeviceTensor], Mapping[str, DeviceTensor]]:
        """The bindings of a run on the first ``length`` tokens of one row: inputs and outputs in the same memory."""
        inputs, _ = self.bound(row, 1)
        views = [
            tensor if spec.state else tensor.leading((*tensor.shape[:2], length, tensor.shape[3]))
            for spec, tensor in zip(self._specs, inputs.values(), strict=True)
        ]
        by_output = {spec.present: view for spec, view in zip(self._specs, views, strict=True) if spec.present}
        return dict(zip(inputs, views, strict=True)), by_output

    def close(self) -> None:
        """Free the memory."""
        for tensor in self._buffers:
            tensor.close()
        self._buffers, self._views, self.rows, self.capacity = [], {}, 0, 0
        for moves in self._moves.values():
            moves.close()


class Moves:
    """Copies between device tensors."""

    def __init__(self, session: InferenceSession, dtype: str, rank: int = 4) -> None:
        self._owner, self._dtype, self._rank = session, dtype, rank

    @functools.cached_property
    def _sessions(self) -> tuple[InferenceSession, InferenceSession]:
        return tuple(
            InferenceSession(_copy_model(self._dtype, longer, self._rank), context=self._owner.lease)
            for longer in (False, True)
        )  # type: ignore[return-value]

    def copy(self, source: DeviceTensor, target: DeviceTensor) -> None:
        """Copy ``source`` [batch, heads, capacity, size] to the beginning of ``target``, whose capacity is at least as
        large; of another rank to one of the same shape."""
        more = target.shape[2] - source.shape[2] if self._rank == 4 else 0
        session = self._sessions[more > 0]
        binding = session.io_binding()
        binding.bind_input("x", source)
        if more:
            with session.empty_device_tensor((*source.shape[:2], more, source.shape[3]), self._dtype) as rest:
                binding.bind_input("rest", rest)
                binding.bind_output("y", target)
                session.run_with_iobinding(binding)
        else:
            binding.bind_output("y", target)
            session.run_with_iobinding(binding)

    def close(self) -> None:
        """Close the sessions that copy."""
        if "_sessions" in vars(self):
            for session in self._sessions:
                session.close()


def element_of(value: ValueInfo, others: Collection[int] = ()) -> int:
    """The ONNX type of a tensor of floats, or of one of ``others``. Raises `UnsupportedModelError`."""
    allowed = (TensorProto.FLOAT, TensorProto.FLOAT16, *others)
    if value.elem_type not in allowed:
        names = ", ".join(dtypes.onnx_name(t) for t in allowed)
        raise UnsupportedModelError(f"{value.name!r} is {dtypes.onnx_name(value.elem_type)}; expected one of {names}")
    return value.elem_type


def _copy_model(dtype: str, longer: bool, rank: int) -> Any:
    """A model whose ``y`` is ``x``, followed along the third axis by ``rest`` if ``longer``."""

    def info(name: str) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, DTYPES[dtype].onnx, [f"{name}{k}" for k in range(rank)])

    if longer:
        nodes, inputs = [helper.make_node("Concat", ["x", "rest"], ["y"], axis=2)], [info("x"), info("rest")]
    else:
        nodes, inputs = [helper.make_node("Identity", ["x"], ["y"])], [info("x")]
    graph = helper.make_graph(nodes, "copy", inputs, [info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
