"""Operations of a plan with sizes as those of a run: with numbers in place of the sizes, so that they can be interpreted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from vkep import dtypes
from vkep.graph.weights import ArrayWeight, SizesWeight
from vkep.ir import expr as ex
from vkep.ir.tensor import Storage
from vkep.sizes import Real, Size, Trace, hint, is_size

_Value = TypeVar("_Value")
Number = Callable[[Any], Any]


def bound(value: _Value, at: Sequence[int] | None = None, storages: dict[Storage, Storage] | None = None) -> _Value:
    """A copy of operations, tensors and what they consist of, with the numbers of the sizes ``at`` (in the order of the trace's
    symbols), or of those that the plan was made for. What has no size is not copied. Records no condition. ``storages``: the
    copies of storages, for further calls."""
    if at is None:
        return _copied(value, hint, storages)
    found: dict[int, Size | Real] = {}

    def note(size: Any) -> Any:
        found[id(size)] = size
        return hint(size)

    _copied(value, note)
    if not found:
        return value
    [trace] = {size.trace for size in found.values()}  # sizes of one lowering
    assert isinstance(trace, Trace)
    numbers = dict(zip(found, trace.formulas(list(found.values()))(at), strict=True))
    return _copied(value, lambda size: numbers[id(size)], storages)


def _copied(value: _Value, number: Number, storages: dict[Storage, Storage] | None = None) -> _Value:
    done: dict[int, Any] = {id(storage): made for storage, made in (storages or {}).items()}
    kept: list[Any] = []  # an id is that of an object while the object exists

    def copy(part: Any) -> Any:
        made: Any
        if is_size(part):
            return number(part)
        if isinstance(part, (tuple, list)):
            parts = [copy(p) for p in part]
            return part if all(map(_same, parts, part)) else type(part)(parts)
        if isinstance(part, dict):
            mapped = {k: copy(v) for k, v in part.items()}
            return part if all(map(_same, mapped.values(), part.values())) else mapped
        if id(part) in done:
            return done[id(part)]
        if isinstance(part, SizesWeight):
            made = _constant(part, number)
        elif isinstance(part, ex.Expr):
            for node in ex.remaining(part, done):  # arguments first: expressions are deep
                done[id(node)] = fields(node)
            made = done[id(part)]
        elif dataclasses.is_dataclass(part) and not isinstance(part, type):
            made = fields(part)
        else:
            return part
        kept.append(part)
        done[id(part)] = made
        if storages is not None and isinstance(part, Storage):
            storages[part] = made
        return made

    def fields(part: Any) -> Any:
        given = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.init}
        made = {name: copy(v) for name, v in given.items()}
        changed = {name: v for name, v in made.items() if not _same(v, given[name])}
        return dataclasses.replace(part, **changed) if changed else part

    result: _Value = copy(value)
    return result


def _same(one: Any, other: Any) -> bool:
    return one is other


def _constant(weight: SizesWeight, number: Number) -> ArrayWeight:
    dtype = dtypes.from_onnx(weight.elem_type)
    assert dtype is not None
    plain = [number(v) if is_size(v) else v for v in weight.array().reshape(-1).tolist()]
    return ArrayWeight(weight.name, np.array(plain, dtype.numpy).reshape(weight.shape))
