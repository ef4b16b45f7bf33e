"""The Open Inference protocol (KServe v2) as data: tensors of a request, read and checked against a model, and of an answer.

Sources: the protocol's page (https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol) and its binary
tensor extension. Neither Ray nor Vulkan.
"""

from __future__ import annotations

import functools
import json
import math
import struct
import zlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from gpu_shared.errors import PicklableError
from vkep.serving.bodies import Array, BinaryFeeds, Layout
from vkep.serving.jsontext import JsonCount, array_of, loads, text_of, unicode_of
from vkep.text import shortened, shown

#: the protocol's name of strings: arrays of Python's, sent in UTF-8
STRINGS = "BYTES"
#: numpy's types by the protocol's names; elements are little-endian
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    STRINGS: np.dtype(object),
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
#: kinds of JSON numbers, as numpy reads them, that are valid for a kind of type
_JSON_KINDS = {"b": "b", "i": "iu", "u": "iu"}
PLATFORM = "onnx_vkep"
#: types by their numbers in a model's configuration
CONFIG_TYPES = (
    *("INVALID", "BOOL"),
    *(f"{sign}INT{bits}" for sign in ("U", "") for bits in (8, 16, 32, 64)),
    *("FP16", "FP32", "FP64", "STRING", "BF16"),
)
#: types that a configuration names otherwise
CONFIG_NAMES = {STRINGS: "STRING"}
HEADER_LENGTH = "inference-header-content-length"
#: of a size in a header; Python raises ``ValueError`` for numbers of thousands of digits
MOST_DIGITS = 19
_MOST_ELEMENTS = 1 << 40  # more than a body has; numpy's sizes hold those of 2**19 requests
#: how many JSON texts of requests a model remembers, each of up to so many bytes: a client sends the same one again and again
_MOST_READ_BEFORE, _LONGEST_READ_BEFORE = 64, 4096
#: limits of a request's JSON: reading it keeps all other requests of a replica waiting. Binary data has none of them
MOST_VALUES, _MOST_LISTS, _LONGEST_ID = 1 << 20, 1 << 16, 1024
#: parts of a gzip body (RFC 1952, 2.2), bytes of it that are decompressed at once, and bytes that become of them at once
_MOST_MEMBERS, _WINDOW, _PIECE = 256, 1 << 16, 1 << 20


class ProtocolError(PicklableError):
    """A request that is answered with ``status`` (HTTP's) and a text; ``param``: the field of it that is wrong."""

    def __init__(self, status: int, text: str, param: str | None = None) -> None:
        super().__init__(text)
        self.status, self.param = status, param


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model: the protocol's datatype; sizes, None where they may vary."""

    name: str
    datatype: str
    shape: tuple[int | None, ...]

    def metadata(self) -> dict[str, Any]:
        """The tensor in the form of model metadata."""
        shape = [-1 if size is None else size for size in self.shape]
        return {"name": self.name, "datatype": self.datatype, "shape": shape}


@dataclass(frozen=True)
class ModelSpec:
    """The inputs and outputs of one model version, against which requests and answers are checked."""

    name: str
    version: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    #: what requests were that have binary tensors alone, by their JSON and their bytes; the oldest one comes first
    read_before: dict[tuple[bytes, int], tuple[Layout, Mapping[str, bool], str]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """The model metadata response."""
        return {
            "name": self.name,
            "versions": list(versions),
            "platform": PLATFORM,
            "inputs": [spec.metadata() for spec in self.inputs.values()],
            "outputs": [spec.metadata() for spec in self.outputs.values()],
        }

    def config(self) -> dict[str, Any]:
        """The model's configuration, an extension of Triton's: the first axis counts as any other (``max_batch_size`` 0)."""

        def described(specs: Iterable[TensorSpec]) -> list[dict[str, Any]]:
            return [
                {
                    "name": spec.name,
                    "data_type": f"TYPE_{CONFIG_NAMES.get(spec.datatype, spec.datatype)}",
                    "dims": spec.metadata()["shape"],
                }
                for spec in specs
            ]

        return {
            "name": self.name,
            "platform": PLATFORM,
            "backend": "vkep",
            "max_batch_size": 0,
            "input": described(self.inputs.values()),
            "output": described(self.outputs.values()),
        }


@dataclass(frozen=True)
class InferRequest:
    """A request's tensors by name, and for each requested output whether it is returned as binary data."""

    feeds: Mapping[str, Array]
    outputs: Mapping[str, bool]
    id: str = ""


@dataclass(frozen=True)
class InferResponse:
    """An answer's body: ``json_size`` bytes of JSON and binary data after it; 0: JSON alone."""

    pieces: Sequence[bytes | memoryview]
    json_size: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


def datatype(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a type. Raises ``ValueError`` for a type without one."""
    try:
        return STRINGS if dtype.kind in "US" else _NAMES[np.dtype(dtype)]
    except KeyError:
        raise ValueError(f"the Open Inference protocol has no datatype for {dtype}; it has {list(DATATYPES)}") from None


def parse_infer(body: bytes | Sequence[bytes], header_length: str | None, model: ModelSpec) -> InferRequest:
    """The tensors of an inference request, whose body may be in pieces; ``header_length`` is the value of the HTTP header where
    binary data follows the JSON. Numbers in binary form stay in the pieces until they are read.

    Raises `ProtocolError` (400) for anything that the protocol or the model does not allow.
    """
    pieces = [body] if isinstance(body, bytes) else body
    total = size = sum(map(len, pieces))
    if header_length is not None:
        size = int(header_length) if header_length.isdecimal() and len(header_length) <= MOST_DIGITS else 0
        if not 0 < size <= total:
            raise ProtocolError(
                400, f"Inference-Header-Content-Length is {header_length[:99]!r}, the body has {total} bytes"
            )
    text = pieces[0][:size] if pieces and len(pieces[0]) >= size else b"".join(pieces)[:size]
    if size <= _LONGEST_READ_BEFORE and (before := model.read_before.get((text, total))) is not None:
        layout, outputs, identity = before
        return InferRequest(BinaryFeeds(layout, pieces), outputs, identity)
    request = _loads(text)
    inputs = _items(_object(request, "the request"), "inputs")
    at, feeds = size, dict[str, Array]()
    parts: dict[str, tuple[TensorSpec, tuple[int, ...], int, int]] = {}  # in binary form: also the first and last byte
    for given in inputs:
        spec, shape = checked_tensor(
            model, given.get("name"), given.get("datatype"), given.get("shape"), feeds.keys() | parts.keys()
        )
        nbytes = _parameters(given).get("binary_data_size")
        if nbytes is None:
            feeds[spec.name] = _from_json(spec, shape, given.get("data"))
            continue
        if not _is_size(nbytes) or at + nbytes > total:
            raise ProtocolError(
                400,
                f"input {spec.name!r}: binary_data_size is {shown(nbytes)}, and {total - at} bytes are left in the body",
            )
        _check_bytes(spec, shape, nbytes)
        parts[spec.name] = spec, shape, at, at + nbytes
        at += nbytes
    if at != total:
        raise ProtocolError(400, f"the body has {total - at} bytes after the last input")
    check_all_there(model, feeds.keys() | parts.keys())
    every = _parameters(request).get("binary_data_output", False)
    asked = _items(request, "outputs") if request.get("outputs") else [{"name": name} for name in model.outputs]
    outputs = {}
    for output in asked:
        check_output(model, output.get("name"), _parameters(output))
        outputs[output["name"]] = bool(_parameters(output).get("binary_data", every))
    identity = request.get("id") or ""
    if not isinstance(identity, str) or len(identity) > _LONGEST_ID:
        raise ProtocolError(400, f"id is {shown(identity)}, expected a text of up to {_LONGEST_ID} characters")
    in_place = all(
        spec.datatype not in (STRINGS, "BOOL") and not (start - size) % DATATYPES[spec.datatype].itemsize
        for spec, _, start, _ in parts.values()
    )
    if feeds or not in_place:
        whole = memoryview(b"".join(pieces))
        feeds |= {name: from_bytes(spec, shape, whole[a:b]) for name, (spec, shape, a, b) in parts.items()}
        return InferRequest(feeds, outputs, identity)
    layout = Layout(total, size, tuple((n, DATATYPES[spec.datatype], s, a) for n, (spec, s, a, _) in parts.items()))
    if size <= _LONGEST_READ_BEFORE and not identity:  # which is another one in each request
        if len(model.read_before) >= _MOST_READ_BEFORE:
            del model.read_before[next(iter(model.read_before))]
        model.read_before[text, total] = layout, outputs, identity
    return InferRequest(BinaryFeeds(layout, pieces), outputs, identity)


def infer_response(model: ModelSpec, request: InferRequest, results: Mapping[str, Array]) -> InferResponse:
    """The answer to ``request``."""
    pieces: list[bytes | memoryview] = []
    outputs: list[tuple[str, str, tuple[int, ...], int | str]] = []
    for name, as_bytes in request.outputs.items():
        array = results[name]
        kind = datatype(array.dtype)
        if as_bytes:
            pieces.append(to_bytes(array))
            outputs.append((name, kind, np.shape(array), len(pieces[-1])))
        else:
            exact = array.astype(np.float32) if array.dtype.kind == "V" else array  # Python has no bfloat16 numbers
            outputs.append((name, kind, np.shape(array), text_of(exact.reshape(-1))))
    make = _same_answer_json if all(request.outputs.values()) and not request.id else _answer_json
    text = make(model.name, model.version, request.id, tuple(outputs))
    return InferResponse([text, *pieces], len(text) if pieces else 0)


def _answer_json(
    name: str, version: str, identity: str, outputs: Iterable[tuple[str, str, tuple[int, ...], int | str]]
) -> bytes:
    """The JSON of an answer, whose outputs are a name, a datatype, a shape, and either a number of bytes or a list in JSON."""
    described = []
    for output, kind, shape, data in outputs:
        head = json.dumps({"name": output, "datatype": kind, "shape": shape})[:-1]
        tail = f'"data": {data}' if isinstance(data, str) else f'"parameters": {{"binary_data_size": {data}}}'
        described.append(f"{head}, {tail}}}")
    head = json.dumps({"model_name": name, "model_version": version} | ({"id": identity} if identity else {}))[:-1]
    return f'{head}, "outputs": [{", ".join(described)}]}}'.encode()


#: for answers in binary form without an id, which differ from one another in their data alone
_same_answer_json = functools.lru_cache(_MOST_READ_BEFORE)(_answer_json)


def inflated(body: bytes, encoding: str, most: int, text: int = 0) -> bytes:
    """Decompress a body, of which the first ``text`` bytes are JSON. Raises `ProtocolError`: 413 above ``most`` bytes, 400 and
    415 for data that cannot be read, and as `_count`: a small body may become very many values."""
    coding = encoding.strip().lower()  # RFC 9110, 8.4.1: codings are case-insensitive
    if coding in ("", "identity"):
        return body
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise ProtocolError(415, f"Content-Encoding is {shown(encoding)}, expected gzip or deflate")
    count = JsonCount()
    is_gzip, pieces, rest, at = coding != "deflate", list[bytes](), memoryview(body), 0
    for _ in range(_MOST_MEMBERS):
        stream = zlib.decompressobj(zlib.MAX_WBITS | (16 if is_gzip else 0))
        is_full = False  # zlib holds more of what it read
        while not stream.eof:
            window = rest[at : at + _WINDOW]
            if not window and not is_full:
                raise ProtocolError(400, f"the {coding} body ends before its end")
            try:
                pieces.append(stream.decompress(window, min(most + 1, _PIECE)))
                is_full = len(pieces[-1]) == min(most + 1, _PIECE)
            except zlib.error as error:
                raise ProtocolError(400, f"the body is no {coding}: {error}") from None
            _count(count, pieces[-1][:text])
            text -= min(text, len(pieces[-1]))
            at += len(window) - len(stream.unconsumed_tail) - len(stream.unused_data)
            most -= len(pieces[-1])
            if most < 0:
                raise ProtocolError(413, "the body has more bytes than are allowed once it is decompressed")
        if at == len(body) or (is_gzip and not any(rest[at : at + _WINDOW]) and not bytes(rest[at:]).strip(b"\0")):
            return b"".join(pieces)
        if not is_gzip:
            raise ProtocolError(400, "the body has further bytes after its end")
    raise ProtocolError(400, f"the {coding} body has more than {_MOST_MEMBERS} members")


def _count(count: JsonCount, piece: bytes) -> None:
    """Count a piece of a request's JSON. Raises `ProtocolError`: 413 for too many values, 400 for many lists."""
    count.add(piece)
    if count.values > MOST_VALUES:
        raise ProtocolError(413, f"the JSON has more than the {MOST_VALUES} values that are allowed: send binary data")
    if count.lists > _MOST_LISTS:
        raise ProtocolError(
            400,
            f"the JSON has more than the {_MOST_LISTS} lists and objects that are allowed: send flat or binary data",
        )


def _loads(text: bytes) -> Any:
    """The value of a JSON text. Raises `ProtocolError` as `_count`, and 400 for no JSON."""
    _count(JsonCount(), text)
    try:
        return loads(text, _refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(400, f"the request's JSON cannot be read: {shortened(str(error))}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON (RFC 8259); send binary data")


# ---- checks that HTTP and gRPC share


def checked_tensor(
    model: ModelSpec, name: Any, given: Any, shape: Any, known: Container[str]
) -> tuple[TensorSpec, tuple[int, ...]]:
    """The input for a request's tensor, and its shape. Raises `ProtocolError`."""
    spec = model.inputs.get(name) if isinstance(name, str) else None
    if spec is None:
        raise ProtocolError(400, f"model {model.name!r} has no input {shown(name)}; it has {list(model.inputs)}")
    if name in known:
        raise ProtocolError(400, f"input {name!r} is given twice")
    if given != spec.datatype:
        raise ProtocolError(400, f"input {name!r}: got datatype {shown(given)}, expected {spec.datatype!r}")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise ProtocolError(400, f"input {name!r}: shape is {shown(shape)}, expected a list of sizes")
    fits = len(shape) == len(spec.shape) and all(
        want in (None, got) for got, want in zip(shape, spec.shape, strict=True)
    )
    if not fits:
        raise ProtocolError(
            400, f"input {name!r}: got shape {shown(shape)}, expected {spec.metadata()['shape']} (-1: any size)"
        )
    if math.prod(size or 1 for size in shape) >= _MOST_ELEMENTS:  # numpy counts them so where an axis has none
        raise ProtocolError(400, f"input {name!r}: no array has shape {shown(shape)}")
    return spec, tuple(shape)


def from_bytes(spec: TensorSpec, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    """A tensor of binary data, in place (strings are read). Raises `ProtocolError`."""
    if spec.datatype == STRINGS:
        return strings(spec, shape, _split(spec, data))
    dtype = DATATYPES[spec.datatype]
    _check_bytes(spec, shape, len(data))
    array = np.frombuffer(data, np.uint8)
    # a byte other than 0 and 1 is not a valid bool; unaligned bytes are copied
    whole = (
        array != 0 if dtype.kind == "b" else np.frombuffer(array.tobytes() if _odd(array, dtype) else array.data, dtype)
    )
    return whole.reshape(shape)


def _check_bytes(spec: TensorSpec, shape: tuple[int, ...], nbytes: int) -> None:
    """Raise `ProtocolError` where a tensor of the shape has another number of bytes; strings may have any."""
    expected = math.prod(shape) * DATATYPES[spec.datatype].itemsize
    if spec.datatype != STRINGS and nbytes != expected:
        raise ProtocolError(
            400,
            f"input {spec.name!r}: got {nbytes} bytes, expected {expected} for {spec.datatype} of shape {list(shape)}",
        )


def to_bytes(array: Array) -> bytes | memoryview:
    """A tensor's elements in the protocol's binary form, the inverse of `from_bytes`."""
    if datatype(array.dtype) != STRINGS:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    texts = [unicode_of(value).encode() for value in array.reshape(-1).tolist()]
    return b"".join(piece for text in texts for piece in (struct.pack("<I", len(text)), text))


def _split(spec: TensorSpec, data: bytes | memoryview) -> list[bytes]:
    """The strings of binary data: each is its size in bytes (4 bytes, little-endian) and as many bytes."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        if len(found) > MOST_VALUES:
            raise ProtocolError(413, f"input {spec.name!r}: more than {MOST_VALUES} strings")
        start = at + 4
        size = int.from_bytes(data[at:start], "little")
        at = start + size
        if at > len(data):
            raise ProtocolError(400, f"input {spec.name!r}: string {len(found)} ends after the {len(data)} bytes given")
        found.append(bytes(data[start:at]))
    return found


def strings(spec: TensorSpec, shape: tuple[int, ...], texts: Sequence[bytes]) -> Array:
    """A tensor of strings. Raises `ProtocolError` for another number of them than the shape has, or other than UTF-8."""
    if len(texts) != math.prod(shape):
        raise ProtocolError(400, f"input {spec.name!r}: got {len(texts)} strings for shape {list(shape)}")
    array = np.empty(len(texts), object)
    try:
        array[:] = [text.decode() for text in texts]
    except UnicodeDecodeError as error:
        raise ProtocolError(400, f"input {spec.name!r}: its strings are not UTF-8: {error}") from None
    return array.reshape(shape)


def check_all_there(model: ModelSpec, feeds: Container[str]) -> None:
    """Raise `ProtocolError` where an input is missing."""
    missing = [name for name in model.inputs if name not in feeds]
    if missing:
        raise ProtocolError(400, f"model {model.name!r}: inputs {missing} are missing")


def check_output(model: ModelSpec, name: Any, parameters: Mapping[str, Any]) -> None:
    """Raise `ProtocolError` for an output that the model does not have, or a form of it that is not offered."""
    if not isinstance(name, str) or name not in model.outputs:
        raise ProtocolError(400, f"model {model.name!r} has no output {shown(name)}; it has {list(model.outputs)}")
    if "classification" in parameters:
        raise ProtocolError(400, f"output {name!r}: classes are asked for, and only values are offered")


def _odd(array: Array, dtype: np.dtype[Any]) -> bool:
    return bool(array.ctypes.data % dtype.itemsize)


def _from_json(spec: TensorSpec, shape: tuple[int, ...], data: Any) -> Array:
    dtype = DATATYPES[spec.datatype]
    if not isinstance(data, list):
        raise ProtocolError(400, f"input {spec.name!r} has neither data (a list) nor binary_data_size")
    try:
        if spec.datatype == STRINGS:
            given = np.array(data, object).reshape(-1).tolist()
            if not all(isinstance(value, str) for value in given):
                raise ValueError("got values that are no strings")
            return strings(spec, shape, [value.encode() for value in given])
        array = array_of(data)
        if array.size and array.dtype.kind not in _JSON_KINDS.get(dtype.kind, "iuf"):
            raise ValueError(f"got values of {array.dtype}")
        if array.size != math.prod(shape):
            raise ValueError(f"got {array.size} values for shape {list(shape)}")
        if dtype.kind in "iu" and array.size:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            if int(array.min()) < low or int(array.max()) > high:
                raise ValueError(f"got values beyond {low} to {high}")
        with np.errstate(over="ignore"):
            found = array.astype(dtype)
        if dtype.kind in "fV" and not np.isfinite(found.astype(np.float32 if dtype.kind == "V" else dtype)).all():
            raise ValueError("got numbers that it does not hold")
        return found.reshape(shape)
    except (ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise ProtocolError(
            400, f"input {spec.name!r}: its data are no {spec.datatype}: {shortened(str(error), 500)}"
        ) from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(400, f"{what} is no JSON object")
    return value


def _items(request: Mapping[str, Any], name: str) -> Iterable[dict[str, Any]]:
    values = request.get(name)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ProtocolError(400, f"{name} is expected to be a list of JSON objects")
    return values


def _parameters(value: Mapping[str, Any]) -> dict[str, Any]:
    return _object(value.get("parameters", {}), "parameters")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
