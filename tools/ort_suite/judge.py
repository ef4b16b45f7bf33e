"""The results of a case on ONNX Runtime's CPU provider and on vkep."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.backend_suite.through_ort import error_text, open_session, run_session
from tools.backend_suite.worker import shared_context
from tools.ort_suite.cases import Case

#: verdicts on ONNX Runtime's CPU provider, which say whether a case was understood
RIGHT, FAILS, NO_KERNEL, MISREAD = "right", "fails", "no kernel", "misread"
#: verdicts on vkep, from best to worst: right with every node on Vulkan; right with a node on the CPU; no answer, with a
#: reason; a case that must fail was refused; was run; the session raises what is no reason; a wrong answer; a crash or a hang
VULKAN, CPU, DECLINED, REFUSED, RAN, ERROR, WRONG, LOST = (
    "vulkan",
    "cpu",
    "declined",
    "refused",
    "ran",
    "error",
    "wrong",
    "lost",
)
VERDICTS = (VULKAN, CPU, DECLINED, REFUSED, RAN, ERROR, WRONG, LOST)
_NO_KERNEL = ("NOT_IMPLEMENTED", "Could not find an implementation", "is not a registered function", "No Op registered")


@dataclass(frozen=True)
class Verdict:
    """Of one case on one engine."""

    name: str
    operator: str
    verdict: str
    reason: str = ""
    text: str = ""  #: the case's inputs and attributes
    must_fail: bool = False
    seconds: float = 0.0


def on_cpu_provider(case: Case) -> Verdict:
    """Whether ONNX Runtime's CPU provider returns the expected result: only then is the case valid for other
    providers."""

    def verdict(kind: str, reason: str = "") -> Verdict:
        return Verdict(case.name, case.operator, kind, reason, case.text, case.must_fail)

    try:
        model, feeds = case.model(), case.feeds()
    except (ValueError, TypeError) as error:
        return verdict(MISREAD, f"no model: {one_line(error)}")
    try:
        got = _run_cpu_provider(model, feeds)
    except Exception as error:  # its classes are internal to ONNX Runtime
        if any(text in str(error) for text in _NO_KERNEL):
            return verdict(NO_KERNEL, error_text(error))
        return verdict(FAILS if case.must_fail else MISREAD, error_text(error))
    if case.must_fail:
        return verdict(MISREAD, "it must fail and runs")
    try:
        difference = case.difference(got) if case.record["verify"] else ""
    except ValueError as error:
        return verdict(MISREAD, f"no expected values: {error}")
    return verdict(MISREAD, difference) if difference else verdict(RIGHT)


def on_vkep(case: Case) -> Verdict:
    """The case in a plain session on the default Vulkan device."""
    from gpu_shared.errors import OutOfDeviceMemoryError
    from vkep import InferenceSession
    from vkep.errors import InvalidInputError, InvalidModelError, UnsupportedModelError, VkepError

    started = time.perf_counter()

    def verdict(kind: str, reason: object = "") -> Verdict:
        took = round(time.perf_counter() - started, 3)
        return Verdict(case.name, case.operator, kind, one_line(reason), case.text, case.must_fail, took)

    session: Any = None
    try:
        model, feeds = case.model(), case.feeds()
        session = InferenceSession(model, context=shared_context(), save_plans=False)
        names = list(case.expected())
        got = dict(zip(names, session.run(None, feeds), strict=True))
        placed = [(n.where, f"{n.op_type}: {n.reason}") for n in session.report().nodes]
    except (InvalidModelError, InvalidInputError) as error:
        return verdict(REFUSED if case.must_fail else ERROR, f"{type(error).__name__}: {error}")
    except UnsupportedModelError as error:
        return verdict(REFUSED if case.must_fail else DECLINED, error)
    except VkepError as error:
        return verdict(REFUSED if case.must_fail else DECLINED if str(error).startswith("on the CPU") else ERROR, error)
    except OutOfDeviceMemoryError as error:  # a tensor that no buffer of the device holds
        return verdict(REFUSED if case.must_fail else ERROR, f"OutOfDeviceMemoryError: {error}")
    except Exception as error:  # any exception of a broken session is its result
        return verdict(ERROR, f"{type(error).__name__}: {error}")
    finally:
        if session is not None:
            session.close()
    if case.must_fail:
        return verdict(RAN, "it must fail: " + case.record["message"])
    try:
        expected = None if case.record["verify"] else _run_cpu_provider(model, feeds)
        difference = case.difference(got, expected)
    except Exception as error:
        return verdict(ERROR, f"{type(error).__name__}: {error}")
    on_cpu = [reason for where, reason in placed if where in ("cpu", "deferred")]
    if difference:
        return verdict(WRONG, difference + (f" (with a node on the CPU: {on_cpu[0]})" if on_cpu else ""))
    return verdict(CPU, on_cpu[0]) if on_cpu else verdict(VULKAN)


def _run_cpu_provider(model: Any, feeds: dict[str, np.ndarray]) -> dict[str, Any]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = open_session(model, None)
    outputs = [o.name for o in session.get_outputs()]
    values = run_session(session, [feeds[i.name] for i in session.get_inputs()])
    return dict(zip(outputs, values, strict=True))


def one_line(value: object) -> str:
    return " ".join(str(value).split())[:600]
