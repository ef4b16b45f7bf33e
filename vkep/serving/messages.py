"""The Open Inference protocol's gRPC service: its messages, built from the table of their fields, and their contents.

Field numbers and types are the protocol's (https://github.com/kserve/open-inference-protocol,
open_inference_grpc.proto). The messages are in a separate descriptor pool, so that a client library in the same process
may have its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from vkep.serving.bodies import Array
from vkep.serving.kserve import (
    CONFIG_TYPES,
    DATATYPES,
    MOST_VALUES,
    STRINGS,
    InferRequest,
    ModelSpec,
    ProtocolError,
    TensorSpec,
    check_all_there,
    check_output,
    checked_tensor,
    datatype,
    from_bytes,
    strings,
    to_bytes,
)

SERVICE = "inference.GRPCInferenceService"
#: for ``serve.start(grpc_options={"grpc_servicer_functions": [...]})``
SERVICER_FUNCTION = "vkep.serving.messages.add_to_server"
#: the methods, each with messages named after it
METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelConfig",
    "RepositoryIndex",
)
#: the method whose requests and answers are streams (an extension of Triton's); its requests are ModelInfer's
STREAM = "ModelStreamInfer"

#: the field of a request that has tensors' bytes; limits of its other fields
_RAW_CONTENTS, _MOST_PARTS, _MOST_OTHERS = 7, 4096, 8 << 20
_TENSOR = (
    "name=1 string, datatype=2 string, shape=3 int64*, parameters=4 {InferParameter}, contents=5 InferTensorContents"
)
#: fields by message: ``*`` repeats, ``{}`` maps texts to messages, ``|`` are choices of one
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live=1 bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready=1 bool",
    "ModelReadyRequest": "name=1 string, version=2 string",
    "ModelReadyResponse": "ready=1 bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name=1 string, version=2 string, extensions=3 string*",
    "ModelMetadataRequest": "name=1 string, version=2 string",
    "ModelMetadataResponse": "name=1 string, versions=2 string*, platform=3 string, inputs=4 TensorMetadata*, "
    "outputs=5 TensorMetadata*",
    "TensorMetadata": "name=1 string, datatype=2 string, shape=3 int64*",
    # the fields of Triton's configuration that vkep's models have; its enumeration of types is sent as a number
    "ModelConfigRequest": "name=1 string, version=2 string",
    "ModelConfigResponse": "config=1 ModelConfig",
    "ModelConfig": "name=1 string, platform=2 string, max_batch_size=4 int32, input=5 ModelInput*, output=6 ModelOutput*, "
    "backend=17 string",
    "ModelInput": "name=1 string, data_type=2 int32, dims=4 int64*",
    "ModelOutput": "name=1 string, data_type=2 int32, dims=3 int64*",
    "RepositoryIndexRequest": "repository_name=1 string, ready=2 bool",
    "RepositoryIndexResponse": "models=1 ModelIndex*",
    "ModelIndex": "name=1 string, version=2 string, state=3 string, reason=4 string",
    "InferParameter": "bool_param=1 bool|, int64_param=2 int64|, string_param=3 string|, double_param=4 double|, "
    "uint64_param=5 uint64|",
    "InferTensorContents": "bool_contents=1 bool*, int_contents=2 int32*, int64_contents=3 int64*, uint_contents=4 uint32*, "
    "uint64_contents=5 uint64*, fp32_contents=6 float*, fp64_contents=7 double*, bytes_contents=8 bytes*",
    "InferInputTensor": _TENSOR,
    "InferRequestedOutputTensor": "name=1 string, parameters=2 {InferParameter}",
    "InferOutputTensor": _TENSOR,
    "ModelInferRequest": "model_name=1 string, model_version=2 string, id=3 string, parameters=4 {InferParameter}, "
    "inputs=5 InferInputTensor*, outputs=6 InferRequestedOutputTensor*, raw_input_contents=7 bytes*",
    "ModelInferResponse": "model_name=1 string, model_version=2 string, id=3 string, parameters=4 {InferParameter}, "
    "outputs=5 InferOutputTensor*, raw_output_contents=6 bytes*",
    "ModelStreamInferResponse": "error_message=1 string, infer_response=2 ModelInferResponse",
}
#: the contents' field of a datatype that is not sent raw
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    STRINGS: "bytes_contents",
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="vkep_open_inference.proto", package="inference", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for part in filter(None, fields.split(", ")):
            left, kind = part.split(" ")
            field_name, number = left.split("=")
            label = kinds.LABEL_REPEATED if kind[-1] in "*}" else kinds.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=int(number), label=label)
            bare = kind.strip("*|{}")
            if kind[0] == "{":  # a map is a repeated message of keys and values
                entry = message.nested_type.add(name=f"{field_name.capitalize()}Entry")
                entry.options.map_entry = True
                one = kinds.LABEL_OPTIONAL
                entry.field.add(name="key", number=1, label=one, type=kinds.TYPE_STRING)
                entry.field.add(
                    name="value", number=2, label=one, type=kinds.TYPE_MESSAGE, type_name=f".inference.{bare}"
                )
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".inference.{name}.{entry.name}"
            elif bare in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".inference.{bare}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{bare.upper()}")
            if kind[-1] == "|":
                if not message.oneof_decl:
                    message.oneof_decl.add(name="parameter_choice")
                field.oneof_index = 0
    return file


@functools.cache
def _classes() -> Mapping[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{n}")) for n in _MESSAGES}


def message(kind: str, /, **fields: Any) -> Any:
    """A message by its name."""
    return _classes()[kind](**fields)


def read(name: str, data: bytes) -> Any:
    """A message from its bytes. Raises `ProtocolError`."""
    from google.protobuf.message import DecodeError

    _check_parts(data)
    try:
        return _classes()[name].FromString(data)
    except DecodeError as error:
        raise ProtocolError(400, f"the {name} cannot be read: {error}") from None


def _check_parts(data: bytes) -> None:
    """Raise `ProtocolError` for bytes that become very many objects: only raw tensors may be large."""
    at = others = parts = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire, parts = tag & 7, parts + 1
        size, at = _varint(data, at) if wire in (0, 2) else ({1: 8, 5: 4}.get(wire, len(data)), at)
        at += size if wire != 0 else 0
        others += size if wire == 2 and tag >> 3 != _RAW_CONTENTS else 0
        if parts > _MOST_PARTS or others > _MOST_OTHERS:
            raise ProtocolError(
                413, f"the request has more than {_MOST_PARTS} fields or {_MOST_OTHERS} bytes beside raw_input_contents"
            )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the position after it. Raises `ProtocolError`."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ProtocolError(400, "the message cannot be read: it ends within a number")


def add_to_server(servicer: Any, server: Any) -> None:
    """Add the service to a gRPC server, as generated code does. Requests stay bytes: the replica's method parses
    them."""
    import grpc

    handlers = {name: grpc.unary_unary_rpc_method_handler(getattr(servicer, name, None)) for name in METHODS}
    handlers[STREAM] = grpc.stream_stream_rpc_method_handler(getattr(servicer, STREAM, None))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def config_response(model: ModelSpec) -> Any:
    """The ModelConfigResponse."""
    config = model.config()
    for tensors in (config["input"], config["output"]):
        for tensor in tensors:
            tensor["data_type"] = CONFIG_TYPES.index(tensor["data_type"].removeprefix("TYPE_"))
    return message("ModelConfigResponse", config=message("ModelConfig", **config))


def parse_infer(request: Any, model: ModelSpec) -> InferRequest:
    """The tensors of a ModelInferRequest. Raises `ProtocolError`."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise ProtocolError(400, f"got {len(raw)} raw_input_contents for {len(request.inputs)} inputs")
    feeds: dict[str, Array] = {}
    for index, given in enumerate(request.inputs):
        spec, shape = checked_tensor(model, given.name, given.datatype, list(given.shape), feeds)
        if raw:
            feeds[spec.name] = from_bytes(spec, shape, raw[index])
        else:
            feeds[spec.name] = _from_contents(spec, shape, given.contents)
    check_all_there(model, feeds)
    if len(request.outputs) > len(model.outputs):
        raise ProtocolError(
            400, f"got {len(request.outputs)} outputs, and model {model.name!r} has {len(model.outputs)}"
        )
    for output in request.outputs:
        check_output(model, output.name, output.parameters)
    return InferRequest(feeds, dict.fromkeys([o.name for o in request.outputs] or model.outputs, True), request.id)


def infer_response(model: ModelSpec, request: InferRequest, results: Mapping[str, Array]) -> Any:
    """The ModelInferResponse, with raw contents."""
    response = message("ModelInferResponse", model_name=model.name, model_version=model.version, id=request.id)
    for name in request.outputs:
        array = results[name]
        response.outputs.add(name=name, datatype=datatype(array.dtype), shape=array.shape)
        response.raw_output_contents.append(bytes(to_bytes(array)))
    return response


def _from_contents(spec: TensorSpec, shape: tuple[int, ...], contents: Any) -> Array:
    name = _CONTENTS.get(spec.datatype)
    if name is None:
        raise ProtocolError(400, f"input {spec.name!r}: {spec.datatype} is sent in raw_input_contents")
    values = getattr(contents, name)
    if len(values) > MOST_VALUES:
        raise ProtocolError(413, f"input {spec.name!r}: {len(values)} values in {name}; send raw_input_contents")
    if len(values) != math.prod(shape):
        raise ProtocolError(400, f"input {spec.name!r}: got {len(values)} values in {name} for shape {list(shape)}")
    if spec.datatype == STRINGS:
        return strings(spec, shape, values)
    dtype = DATATYPES[spec.datatype]
    wide = np.asarray(values, np.int64 if dtype.kind == "i" else np.uint64 if dtype.kind == "u" else dtype)
    narrow = wide.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(wide, narrow):
        raise ProtocolError(400, f"input {spec.name!r}: values beyond {spec.datatype} in {name}")
    return narrow.reshape(shape)
