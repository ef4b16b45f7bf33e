"""Requests over gRPC for `tools.fuzz.services`: those of attackers, a seeded sequence, and how they are sent. Needs grpcio."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.serving import messages

_METHOD = "/inference.GRPCInferenceService/{}"
INFER, STREAM = _METHOD.format("ModelInfer"), _METHOD.format(messages.STREAM)
_OTHERS = tuple(map(_METHOD.format, messages.METHODS))
#: requests of a stream, and how many of its answers are read
_MANY, _READ = 200, 3


def infer(model: str = "square", **tensors: Any) -> Any:
    """A ModelInferRequest with raw contents."""
    request = messages.message("ModelInferRequest", model_name=model)
    for name, array in tensors.items():
        kind = "INT64" if array.dtype == np.int64 else "FP32"
        request.inputs.add(name=name, datatype=kind, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def fields(rng: random.Random) -> tuple[str, bytes]:
    """A request with another value in some fields."""
    request = infer(x=np.ones((rng.choice((0, 1, 2, 33)), 3), np.float32))
    one = request.inputs[0]
    for _ in range(rng.randint(1, 3)):
        change = rng.randrange(10)
        if change == 0:
            setattr(
                request,
                rng.choice(("model_name", "model_version", "id")),
                rng.choice(("", "x" * 9000, "\0", "pick", "2")),
            )
        elif change == 1:
            one.shape[:] = rng.choice(([], [-1, 3], [2**62, 3], [1, 3, 1], [0, 3], [1] * 3000))
        elif change == 2:
            one.datatype = rng.choice(("FP64", "BYTES", "", "BF16", "x" * 9000))
        elif change == 3:
            request.raw_input_contents[:] = rng.choice(([], [b""], [b"\xff" * 12], [b"x"] * 4000, [bytes(1 << 20)]))
        elif change == 4:
            one.contents.fp32_contents.extend([0.5] * rng.choice((3, 100, 200_000)))
        elif change == 5:
            one.contents.bytes_contents.extend([b"x"] * rng.choice((1, 3000)))
        elif change == 6:
            request.inputs.add(name=rng.choice(("x", "i", "")), datatype="INT64", shape=[1, 1])
        elif change == 7:
            for _ in range(rng.choice((1, 3000))):
                request.outputs.add(name=rng.choice(("y", "z", "")))
        elif change == 8:
            request.parameters["a" * rng.choice((1, 9000))].int64_param = 1
        else:
            one.name = rng.choice(("i", "", "y", "\u202e"))
    return INFER, request.SerializeToString()


def damaged(rng: random.Random) -> tuple[str, bytes]:
    """A valid request with some of its bytes changed, to any method."""
    index = np.array([[rng.choice((0, 2, 3, 2**40))]])
    body = bytearray(infer("pick", x=np.ones((1, 3), np.float32), i=index).SerializeToString())
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(body) + 1)
        body[at : at + rng.randint(0, 3)] = rng.choice((b"", b"\xff", b"\0", bytes([rng.randrange(256)]), b"\x80" * 11))
    return rng.choice((INFER, INFER, *_OTHERS)), bytes(body)


def stream(rng: random.Random) -> tuple[str, bytes]:
    """A stream of many requests, of which few answers are read."""
    return STREAM, infer(x=np.ones((rng.choice((1, 2, 31)), 3), np.float32)).SerializeToString()


class Channel:
    """A channel to a server, for one thread."""

    def __init__(self, address: str) -> None:
        import grpc

        self._grpc, self._channel = grpc, grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])

    def send(self, method: str, body: bytes) -> str:
        """What came: the status."""
        try:
            if method != STREAM:
                self.ask(body, method)
                return "OK"
            answers = self._channel.stream_stream(method)(iter([body] * _MANY), timeout=60)
            for _ in range(_READ):
                next(answers)
            answers.cancel()
            return "left"
        except self._grpc.RpcError as error:
            return str(error.code().name)

    def ask(self, body: bytes, method: str = INFER, metadata: Sequence[tuple[str, str]] = ()) -> bytes:
        """The answer's bytes. Raises ``grpc.RpcError``."""
        return bytes(self._channel.unary_unary(method)(body, timeout=60, metadata=metadata))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
