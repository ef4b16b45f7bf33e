"""One model in one form: made, run by vkep, and judged."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any

import onnx

from tools.user_forms.forms import Feeds, Form
from tools.user_forms.judge import expected_of, inputs_of

#: what happened to a model in a form
EQUAL, DIFFERS, REFUSED, NOT_MADE = "equal", "differs", "refused", "not made"


@dataclass(frozen=True)
class Result:
    """A model in a form. ``why``: how it differs, or the error; ``on_cpu``: operators that Vulkan does not run; ``fused``:
    those outside of ONNX's domain, and those of integers that stand for several nodes."""

    model: str
    form: str
    verdict: str
    why: str = ""
    on_cpu: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()


def is_for_cpu_kernels(model: onnx.ModelProto) -> bool:
    """Whether it has operators in the layouts of ONNX Runtime's CPU kernels, which its level ALL writes."""
    return any(node.domain == "com.microsoft.nchwc" for node in model.graph.node)


def compare(name: str, form: Form, plain: onnx.ModelProto, feeds: Feeds, context: Any = None) -> Result:
    """Make the form, run it by vkep and judge the results. ``context``: a `SharedGpuContext` for the session."""
    from vkep import InferenceSession, UnsupportedModelError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            made = form.make(plain, feeds)
        expected = expected_of(form, made, plain, feeds)
    except Exception as error:  # of the tool that makes the form, or ONNX Runtime
        return Result(name, form.name, NOT_MADE, line_of(error))
    finally:
        logging.disable(logging.NOTSET)
    fused = tuple(
        sorted(
            {n.op_type for n in made.graph.node if n.domain not in ("", "ai.onnx") or n.op_type.startswith("QLinear")}
        )
    )
    try:
        with InferenceSession(made, context=context, save_plans=False) as session:
            results = session.run(None, inputs_of(made, feeds))
            left = tuple(sorted({node.op_type for node in session.report().nodes if node.where == "cpu"}))
    except UnsupportedModelError as error:
        known = "of ONNX Runtime's CPU kernels" if is_for_cpu_kernels(made) else ""
        return Result(name, form.name, REFUSED if known else DIFFERS, known or line_of(error), fused=fused)
    except Exception as error:
        return Result(name, form.name, DIFFERS, line_of(error), fused=fused)
    why = expected.difference(results)
    return Result(name, form.name, DIFFERS if why else EQUAL, why, left, fused)


def line_of(error: Exception) -> str:
    """An error as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
