"""Cases through an ``onnxruntime.InferenceSession`` with vkep's provider before ONNX Runtime's CPU provider."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx

from tools.backend_suite.cases import Case, check_outputs
from tools.backend_suite.outcome import CPU, DECLINED, FAILED, VULKAN, Outcome
from vkep import dtypes
from vkep.graph.weights import pack, unpack

#: lets ONNX Runtime load opsets that are newer than the last one released with it
_NEW_OPSETS = "ALLOW_RELEASED_ONNX_OPSET_ONLY"
_IR_LIMIT = re.compile(r"Unsupported model IR version: \d+, max supported IR version: (\d+)")
_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_CPU_PROVIDER = "CPUExecutionProvider"
_WRAPPER = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
#: where in its own sources an error of ONNX Runtime's was raised
_SOURCE = re.compile(r"/\S+\.(cc|h|cpp):\d+ .*?\)( const)? (?=[A-Z])")


def run_case(case: Case, kernels: str = "compile") -> Outcome:
    """Run one case in this process on the default Vulkan device; ``kernels`` as the provider's option.

    A case that ONNX Runtime alone refuses, or whose result differs from the expected one with no node on Vulkan, counts
    as declined; any other error is a failure of the provider.
    """
    from gpu_shared.instance import validation_log
    from tools.validation_layers import complaints

    started = time.perf_counter()
    before = len(validation_log)
    dtypes_seen: tuple[str, ...] = ()

    def outcome(state: str, reasons: Sequence[str] = (), folded: bool = False) -> Outcome:
        took = round(time.perf_counter() - started, 3)
        return Outcome(case.name, case.operator(), state, tuple(dict.fromkeys(reasons)), folded, took, dtypes_seen)

    model = case.model()
    with provider_log() as log:
        try:
            session = open_session(model, {"kernels": kernels})
        except Exception as error:  # the exception's class is ONNX Runtime's own
            alone = _refusal(model)
            return outcome(DECLINED, [f"ONNX Runtime: {alone}"]) if alone else outcome(FAILED, [error_text(error)])
        on_cpu, on_vulkan = nodes_on_cpu(session), nodes_on_cpu(session, False)
        for inputs, expected in case.data(model):
            dtypes_seen = tuple(dict.fromkeys(str(getattr(v, "dtype", type(v).__name__)) for v in [*inputs, *expected]))
            try:
                got = run_session(session, inputs)
                check_outputs(case, expected, got)
            except Exception as error:
                alone = "" if on_vulkan else _wrong_alone(case, model, inputs, expected)
                if alone:
                    return outcome(DECLINED, [f"no node on Vulkan, and ONNX Runtime's CPU provider: {alone}"])
                where = f" (on the CPU: {', '.join(sorted(set(on_cpu)))})" if on_cpu else ""
                return outcome(FAILED, [f"{error_text(error)}{where}"])
        del session
    if said := complaints(since=before):
        return outcome(FAILED, [f"validation layers: {' '.join(str(said[-1]).split())[:600]}"])
    if case.is_random:
        return outcome(
            DECLINED, ["the expected values are random draws: shape and type agree, values cannot be compared"]
        )
    if on_cpu or log.inside:
        reasons = [*log.inside, *(r for r in log.declined if any(r.startswith(f"{n} ") for n in on_cpu))]
        return outcome(CPU, reasons or [f"{n}: ONNX Runtime kept it" for n in on_cpu])
    return outcome(VULKAN, folded=not on_vulkan)


class _Log(logging.Handler):
    """The provider's log messages about nodes that Vulkan does not run."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.declined: list[str] = []
        self.inside: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("not on Vulkan: "):
            self.declined.append(text.removeprefix("not on Vulkan: "))
        elif "on the CPU at these shapes: " in text:
            self.inside.append(text.partition("on the CPU at these shapes: ")[2])


@contextmanager
def provider_log() -> Iterator[_Log]:
    logger, handler = logging.getLogger("vkep.ort"), _Log()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def open_session(model: onnx.ModelProto, vulkan: dict[str, str] | None) -> Any:
    """A session, with vkep's provider and these options of it, or (None) without.

    A file format (IR version) newer than ONNX Runtime's is given as its newest: where the graph needs the newer one, ONNX
    Runtime says what it does not know.
    """
    try:
        return _open_as_it_is(model, vulkan)
    except Exception as error:
        limit = _IR_LIMIT.search(str(error))
        if limit is None:
            raise
    older = onnx.ModelProto()
    older.CopyFrom(model)
    older.ir_version = int(limit[1])
    return _open_as_it_is(older, vulkan)


def _open_as_it_is(model: onnx.ModelProto, vulkan: dict[str, str] | None) -> Any:
    os.environ.setdefault(_NEW_OPSETS, "0")
    import onnxruntime

    import vkep.ort

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # sessions run in several processes at once
    options.add_session_config_entry(_ASSIGNMENT, "1")
    providers: list[Any] = [_CPU_PROVIDER]
    if vulkan is not None:
        vkep.ort.register()
        providers.insert(0, (vkep.ort.EP_NAME, vulkan))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers, enable_fallback=0)
    session.disable_fallback()
    return session


def _refusal(model: onnx.ModelProto) -> str:
    """Why ONNX Runtime's CPU provider alone does not load a model; empty where it does."""
    try:
        open_session(model, None)
    except Exception as error:
        return error_text(error)
    return ""


def _wrong_alone(case: Case, model: onnx.ModelProto, inputs: Sequence[Any], expected: list[Any]) -> str:
    """The error of ONNX Runtime's CPU provider alone; empty where it has none."""
    try:
        check_outputs(case, expected, run_session(open_session(model, None), inputs))
    except Exception as error:
        return error_text(error)
    return ""


def error_text(error: Exception) -> str:
    text = _SOURCE.sub("", " ".join(_WRAPPER.sub("", str(error)).split()))
    return ("wrong: " + text if isinstance(error, AssertionError) else text)[:600]


# ---- values in and out, also those that numpy has no type for


def nodes_on_cpu(session: Any, on_cpu: bool = True) -> list[str]:
    """The operators of the nodes that ONNX Runtime's CPU provider has, or all others."""
    parts = session.get_provider_graph_assignment_info()
    return [n.op_type for p in parts if (p.ep_name == _CPU_PROVIDER) == on_cpu for n in p.get_nodes()]


def run_session(session: Any, inputs: Sequence[Any]) -> list[Any]:
    infos = session.get_inputs()
    feeds = {info.name: value for info, value in zip(infos, inputs, strict=False)}
    plain = all(_is_plain(info.type) for info in [*infos, *session.get_outputs()])
    if plain:
        return list(session.run(None, feeds))
    values = {name: _to_ort(value) for name, value in feeds.items()}
    return [_from_ort(value) for value in session.run_with_ort_values(None, values)]


def _is_plain(kind: str) -> bool:
    return not kind.startswith("tensor(") or _element(kind) is None


def _element(kind: str) -> dtypes.DType | None:
    """The type of ml_dtypes in ONNX Runtime's ``tensor(bfloat16)`` and the like; None for numpy's own types."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    found = next((d for d in dtypes.DTYPES.values() if d.onnx_name == name), None)
    return found if found is not None and found.numpy.isbuiltin != 1 else None


def _to_ort(array: np.ndarray[Any, Any]) -> Any:
    from onnxruntime import OrtValue

    dtype = dtypes.from_numpy(array.dtype)
    if _element(f"tensor({dtype.onnx_name})") is None:
        return OrtValue.ortvalue_from_numpy(array)
    if not dtype.sub_byte_bits:
        return OrtValue.ortvalue_from_numpy_with_onnx_type(np.array(array, order="C"), dtype.onnx)
    room = np.zeros(array.shape, np.uint8)  # as many elements as the tensor has; the packed bytes come first
    packed = np.asarray(pack(array, dtype)).view(np.uint8).reshape(-1)
    room.reshape(-1)[: packed.size] = packed
    return OrtValue.ortvalue_from_numpy_with_onnx_type(room, dtype.onnx)


def _from_ort(value: Any) -> Any:
    dtype = _element(value.data_type())
    if dtype is None:
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    data = np.frombuffer(raw, np.uint8)
    if dtype.sub_byte_bits:
        return unpack(data, dtype, tuple(value.shape()))
    return data.view(dtype.numpy).reshape(value.shape())
