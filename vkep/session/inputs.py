"""Checks a run's inputs against the model's declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from vkep import dtypes
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError
from vkep.graph.model import ValueInfo
from vkep.text import shown


def array_of(name: str, value: Any, info: ValueInfo) -> np.ndarray[Any, Any]:
    """What numpy makes of a list, a scalar or another object. Python's own numbers have no type of their own: they become
    the input's, as in ONNX Runtime. Raises `InvalidInputError` for what has no array, and where the type would change
    them: 1.5 for an integer."""
    kind = dtypes.from_onnx(info.elem_type)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:  # lists of different lengths
        raise InvalidInputError(f"input {name!r}: {error} ({_describe(info)})") from error
    if kind is None or array.dtype == kind.numpy or not isinstance(value, (list, tuple, bool, int, float)):
        return array
    if array.dtype.kind not in "biuf":  # an integer of more than 64 bits is an object
        raise InvalidInputError(f"input {name!r}: got dtype {array.dtype}, expected {kind} ({_describe(info)})")
    with np.errstate(all="ignore"):
        converted = array.astype(kind.numpy)
        same = kind.kind == "float" or np.array_equal(converted.astype(array.dtype), array)
    if not same:
        raise InvalidInputError(f"input {name!r}: {shown(value)} has values that {kind} lacks ({_describe(info)})")
    return converted


class Map(dict[Any, Any]):
    """A map as its input declares it: the types are those of keys and values, numbers of ``onnx.TensorProto``."""

    key_type: int
    value_type: int


def map_of(name: str, value: object, declared: onnx.TypeProto.Map) -> Map:
    """A dict with keys and numbers of the declared types. Raises `InvalidInputError` for anything else."""
    value_type = declared.value_type.tensor_type.elem_type
    kind, texts = dtypes.from_onnx(value_type), declared.key_type == onnx.TensorProto.STRING
    keys = str if texts else (int, np.integer)
    if not isinstance(value, Mapping) or not all(isinstance(key, keys) for key in value):
        got = f"keys {list(value)}" if isinstance(value, Mapping) else _kind(value)
        expected = _type_text(onnx.TypeProto(map_type=declared))
        raise InvalidInputError(f"input {name!r}: got {got}, expected a dict ({expected})")
    made = Map(value)
    if kind is not None:
        try:
            made = Map({key if texts else int(key): kind.numpy.type(v) for key, v in value.items()})
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(f"input {name!r}: {error}; expected values of {kind}") from error
        if kind.kind in ("int", "uint") and any(number != made[key] for key, number in value.items()):
            raise InvalidInputError(f"input {name!r}: got {list(value.values())}; expected values of {kind}")
    made.key_type, made.value_type = declared.key_type, value_type
    return made


def check_inputs(declared: Mapping[str, ValueInfo], values: Mapping[str, Any]) -> None:
    """Raise `InvalidInputError` for a dtype, rank or size that does not fit the model. Axes that share a symbolic name may
    differ, as in ONNX Runtime: exporters reuse names."""
    for name, info in declared.items():
        value = values[name]
        if not info.elem_type:
            if info.other is not None:
                _check_other(f"input {name!r}", value, info.other)
            continue
        expected = dtypes.from_onnx(info.elem_type)
        got = value.dtype.numpy if isinstance(value, DeviceTensor) else value.dtype
        if expected is not None and got != expected.numpy:
            raise InvalidInputError(f"input {name!r}: got dtype {got}, expected {expected} ({_describe(info)})")
        if info.shape is not None:
            _check_shape(name, tuple(value.shape), info)


def _check_other(what: str, value: Any, declared: onnx.TypeProto) -> None:
    """Check a sequence, an optional or a map."""
    if declared.HasField("optional_type"):
        if value is not None:
            _check_other(what, value, declared.optional_type.elem_type)
    elif declared.HasField("sequence_type"):
        if not isinstance(value, list):
            raise InvalidInputError(f"{what}: got {_kind(value)}, expected a list ({_type_text(declared)})")
        for k, element in enumerate(value):
            _check_other(f"{what}[{k}]", element, declared.sequence_type.elem_type)
    elif declared.HasField("map_type"):
        if not isinstance(value, Map):
            raise InvalidInputError(f"{what}: got {_kind(value)}, expected a dict ({_type_text(declared)})")
    elif declared.HasField("tensor_type"):
        expected = dtypes.from_onnx(declared.tensor_type.elem_type)
        got = value.dtype.numpy if isinstance(value, DeviceTensor) else getattr(value, "dtype", None)
        if got is None or (expected is not None and got != expected.numpy):
            raise InvalidInputError(f"{what}: got {_kind(value)}, expected {_type_text(declared)}")


def _kind(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return f"a {type(value).__name__}" if dtype is None else f"{dtype} {tuple(value.shape)}"


def type_name(info: ValueInfo) -> str:
    """A type as ONNX writes it: ``tensor(float)``, ``optional(seq(tensor(float)))``."""
    if info.other is not None:
        return _type_text(info.other)
    kind = "sparse_tensor" if info.sparse else "tensor"
    return f"{kind}({dtypes.onnx_name(info.elem_type)})" if info.elem_type else "other"


def _type_text(declared: onnx.TypeProto) -> str:
    if declared.HasField("optional_type"):
        return f"optional({_type_text(declared.optional_type.elem_type)})"
    if declared.HasField("sequence_type"):
        return f"seq({_type_text(declared.sequence_type.elem_type)})"
    if declared.HasField("tensor_type"):
        return f"tensor({dtypes.onnx_name(declared.tensor_type.elem_type)})"
    if declared.HasField("map_type"):
        key = dtypes.onnx_name(declared.map_type.key_type)
        return f"map({key},{_type_text(declared.map_type.value_type)})"
    return "other"


def _check_shape(name: str, shape: tuple[int, ...], info: ValueInfo) -> None:
    dims = info.shape or ()
    if len(shape) != len(dims):
        raise InvalidInputError(
            f"input {name!r}: got rank {len(shape)} (shape {shape}), expected rank {len(dims)} ({_describe(info)})"
        )
    for axis, (size, dim) in enumerate(zip(shape, dims, strict=True)):
        if isinstance(dim, int) and size != dim:
            raise InvalidInputError(
                f"input {name!r}: got shape {shape}, expected {dim} on axis {axis} ({_describe(info)})"
            )


def wrong_names(declared: Mapping[str, ValueInfo], feeds: Mapping[str, Any]) -> InvalidInputError:
    """The error for feeds that lack an input or have one that the model does not know."""
    missing = [n for n, info in declared.items() if feeds.get(n) is None and not (info.is_optional and n in feeds)]
    unknown = [n for n in feeds if n not in declared]
    # the words of onnxruntime, which programs look for
    parts = [f"Required inputs ({missing}) are missing from input feed ({list(feeds)})"] if missing else []
    parts += [f"unknown inputs {unknown}"] if unknown else []
    return InvalidInputError(f"{', '.join(parts)}; the model takes {list(declared)}")


def no_dict(name: str, value: object, of: str) -> TypeError:
    """The error for an argument that is not a mapping of input names."""
    return TypeError(f"{name} is a {type(value).__name__}, expected a dict from input names to {of}")


def _describe(info: ValueInfo) -> str:
    shape = "of any rank" if info.shape is None else str(list(info.shape))
    return f"the model declares {dtypes.onnx_name(info.elem_type)} {shape}"
