"""One case: the results of ONNX Runtime's CPU provider, and vkep's between guard pages."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tools.fuzz.corpus import Array
from tools.fuzz.mutate import Case, Found, draw
from tools.ort_cpu import cpu_session

#: limit of a case's private memory, in bytes
_MOST_MEMORY = 6 << 30
#: operators that write to the places that an input has, and the input's index
_PLACES = {
    "MaxUnpool": 1, "Scatter": 1, "ScatterElements": 1, "ScatterND": 1, "PackedAttention": 3, "PackedMultiHeadAttention": 4,
    "RestorePadding": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """An engine's result: ``kind`` is "result", "refused" (the input is bad), "declined" (the engine does not do it, or
    has not the memory) or "broken" (an exception that no user should see).
    """

    kind: str
    text: str = ""
    outputs: tuple[Array, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """``verdict`` is "" where both engines refuse, both give the same result, or vkep declines; otherwise the kind of
    the difference."""

    operator: str
    number: int
    verdict: str
    text: str
    ours: str
    theirs: str
    case: str
    runs: int = 0  #: of a series: those that were compared
    fitted: int = 0  #: of these runs: those of a plan with symbolic sizes, as `Guards.fitted`
    refitted: int = 0  #: as `Guards.refitted`


#: gives the outcome of a case by its number, with a context; sends the name of an engine before it is asked
Answering = Callable[[int, Any, Callable[[str], None]], Outcome]


def serve(pipe: Connection, answer: Answering) -> None:
    """Answer case numbers until None comes. Before each engine its name is sent, so that a crash tells whose it is."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # onnxruntime and drivers write there

    import gpu_shared

    with gpu_shared.SharedGpuContext.create({"gpu_shared_context_token": "fuzz"}) as context:
        while (number := pipe.recv()) is not None:
            pipe.send(answer(number, context, pipe.send))


def one_call(found: Found, seed: int, number: int, context: Any, say: Callable[[str], None]) -> Outcome:
    """The outcome of a call that `draw` made."""
    case = draw(found, seed, number)
    say("onnxruntime")
    theirs = by_onnxruntime(case)
    say("vkep")
    ours, broken = by_vkep(case, context)
    try:
        verdict, text = judge(ours, theirs, broken)
    except MemoryError:
        verdict, text = "", "no memory to compare"
    if verdict == "differs" and values_are_open(ours, theirs, case.model(), case.feeds):
        verdict, text = "", f"two writes to one place: {text}"
    return Outcome(case.operator, number, verdict, text, ours.kind, theirs.kind, str(case))


def values_are_open(ours: Answer, theirs: Answer, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> bool:
    """Whether only values differ, of a model for which the specification leaves them open (`is_unordered`, and Casts of numbers
    that the type does not have)."""
    same = all(map(_have_same_form, ours.outputs, theirs.outputs))
    return same and (is_unordered(model, feeds) or any(_is_beyond(node, feeds) for node in model.graph.node))


def _is_beyond(node: onnx.NodeProto, values: Mapping[str, Array]) -> bool:
    given = values.get(node.input[0]) if node.op_type == "Cast" else None
    if given is None or given.dtype.kind != "f":
        return False
    to: Any = helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
    if to.kind not in "iu":
        return False
    whole, info = np.trunc(given), np.iinfo(to)
    return not bool(((whole >= info.min) & (whole <= info.max)).all())


def is_unordered(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> bool:
    """Whether a node of the model writes twice to one place, by a known input: the specification has no order for that, and
    vkep's lanes none either."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | dict(feeds)
    return any(_writes_twice(node, values) for node in model.graph.node)


def _writes_twice(node: onnx.NodeProto, values: Mapping[str, Array]) -> bool:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    at = _PLACES.get(node.op_type)
    if at is None or at >= len(node.input) or attributes.get("reduction", b"none") != b"none":
        return False
    places, data = values.get(node.input[at]), values.get(node.input[0])
    if places is None or not places.ndim:
        return False
    rows = places.reshape(-1, 1)
    if node.op_type.startswith("Scatter"):
        if data is None or not data.ndim:
            return False
        if node.op_type == "ScatterND":
            rows, extents = places.reshape(-1, places.shape[-1]), data.shape[: places.shape[-1]]
        else:
            axis = attributes.get("axis", 0)
            where = np.indices(places.shape)
            where[axis] = places
            rows, extents = where.reshape(places.ndim, -1).T, data.shape
        rows = np.where(rows < 0, rows + np.array(extents), rows)
    return len(np.unique(rows, axis=0)) < len(rows)


def by_onnxruntime(case: Case) -> Answer:
    return OnnxRuntime(case.model()).run(case.feeds)


class OnnxRuntime:
    """A session of ONNX Runtime, for runs of any sizes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._failed: Answer | None = None
        try:
            self._session = cpu_session(model, optimized=False)
            types = [v.type for v in (*self._session.get_inputs(), *self._session.get_outputs())]
            if any(kind in text for text in types for kind in ("bfloat16", "float8", "float4", "int4", "int2")):
                self._failed = Answer("declined", "no numpy form")
        except ImportError:  # of onnxruntime: no answer to the model
            raise
        except Exception as error:
            self._failed = _refusal(error)

    def run(self, feeds: Mapping[str, Array]) -> Answer:
        if self._failed is not None:
            return self._failed
        try:
            return Answer("result", outputs=tuple(self._session.run(None, feeds)))
        except Exception as error:
            return _refusal(error)


def _refusal(error: Exception) -> Answer:
    text = str(error).strip()
    unknown = (
        "NOT_IMPLEMENTED", "bad_alloc", "Failed to allocate", "is invalid", "NoneType", "guarantees", "is not a registered",
    )  # fmt: skip
    return Answer("declined" if any(word in text for word in unknown) else "refused", text)


def by_vkep(case: Case, context: Any) -> tuple[Answer, list[str]]:
    """vkep's answer, and the tensors around which something was written."""
    from tools.fuzz.guard import guarded

    with guarded() as guards:
        return one_run(case.model(), case.feeds, context), guards.broken()


def one_run(model: onnx.ModelProto, feeds: Mapping[str, Array], context: Any) -> Answer:
    """The answer of a session of vkep that is opened for one run."""
    import vkep

    def run() -> Any:
        with vkep.InferenceSession(model, fallback="error", save_plans=False, context=context) as session:
            return session.run(None, feeds)

    return answered(run)


def answered(run: Callable[[], Any]) -> Answer:
    """vkep's answer, of a function that returns the outputs of a run."""
    import vkep
    from gpu_shared.errors import GpuError

    try:
        return Answer("result", outputs=tuple(run()))
    except (vkep.InvalidModelError, vkep.InvalidInputError) as error:
        return Answer("refused", str(error))
    except (vkep.UnsupportedModelError, MemoryError, GpuError) as error:
        return Answer("declined", str(error))
    except Exception as error:
        return Answer("broken", f"{type(error).__name__}: {error}")


def judge(ours: Answer, theirs: Answer, broken: list[str]) -> tuple[str, str]:
    """The error in vkep's result ("" where there is none), and the details."""
    if broken:
        return "written beside", "; ".join(broken)
    if ours.kind == "broken":
        return "exception", ours.text
    if ours.kind == "refused" and theirs.kind == "result":
        return "refused", ours.text
    if ours.kind != "result":
        return "", ours.text
    if theirs.kind == "refused":
        shapes = ", ".join(f"{o.dtype}{list(o.shape)}" for o in ours.outputs)
        return "accepted", f"{shapes}; onnxruntime: {theirs.text}"
    if theirs.kind == "result":
        for k, (got, expected) in enumerate(zip(ours.outputs, theirs.outputs, strict=True)):
            difference = _difference(np.asarray(got), np.asarray(expected))
            if difference:
                return "differs", f"output {k}: {difference}"
    return "", ""


def _have_same_form(got: Any, expected: Any) -> bool:
    got, expected = np.asarray(got), np.asarray(expected)
    return bool(got.shape == expected.shape and got.dtype == expected.dtype)


def _difference(got: Array, expected: Array) -> str:
    if not _have_same_form(got, expected):
        return f"{got.dtype}{list(got.shape)}, expected {expected.dtype}{list(expected.shape)}"
    if got.dtype.kind not in "fiub":
        return ""
    if got.dtype.kind == "b":
        near = got == expected
    else:
        a, b = got.astype(np.float64), expected.astype(np.float64)
        with np.errstate(all="ignore"):
            finite = np.abs(b[np.isfinite(b)])
            part = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-2}.get(got.dtype.name, 0.0)
            # quantized results may be rounded the other way
            slack = 1.0 if got.dtype.itemsize == 1 else part * (finite.max() if finite.size else 0) + part / 10
            near = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= slack + part * np.abs(b))
    if near.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~near)[0]) if got.ndim else ()
    return f"{int((~near).sum())} of {got.size} elements; at {at} {got[at]}, expected {expected[at]}"
