"""The models that passes are checked with: the catalog, steps of decoders, and ONNX's node cases."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import onnx

from gpu_shared.capabilities import DeviceCapabilities
from tools.backend_suite.cases import Case, load_cases
from tools.passes.check import Inputs, Report, watched
from tools.plan_cases import PlanCase, plan_cases
from vkep import dtypes
from vkep.errors import VkepError
from vkep.graph import load_model
from vkep.graph.weights import ArrayWeight
from vkep.ir.infer import Known
from vkep.ir.program import DeferredStep, ValueSpec
from vkep.placement.partition import lower
from vkep.sizes import Trace

#: cases whose results are those of an older specification: MaxUnpool counts indices in the pooled shape
_OTHERWISE = frozenset({"node/test_maxunpool_export_with_output_shape"})


def planned(text: str = "") -> list[PlanCase]:
    """The models of `tools.plan_cases` whose names contain a text, without node cases: the catalog, also with sizes, and steps of
    decoders in place."""
    cases = plan_cases(every=1 << 20)
    return [case for case in cases if not case.name.startswith("node/") and text in case.name]


def check_planned(case: PlanCase, caps: DeviceCapabilities, seed: int = 0) -> Report:
    """Check the passes of a model's program on a device, on random inputs. Its sizes are small ones."""
    with watched(seed=seed) as report:
        if case.sized and case.case is not None:
            case.case.with_trace(Trace(), caps, {name: k + 2 for k, name in enumerate(case.case.sizes)})
        else:
            case.program(caps)
    return report


def node_cases(text: str = "") -> Iterator[tuple[str, Case]]:
    """ONNX's node cases whose names contain a text."""
    for name, case in load_cases().items():
        if case.kind == "node" and text in name:
            yield name, case


def case_values(case: Case) -> tuple[Inputs, Inputs]:
    """The tensors among the inputs, and among the outputs, of a case's first data set, by name."""
    model = case.model()
    for inputs, outputs in case.data(model):
        named = (zip(model.graph.input, inputs, strict=False), zip(model.graph.output, outputs, strict=False))
        given, expected = (
            {info.name: value for info, value in pairs if isinstance(value, np.ndarray)} for pairs in named
        )
        return given, {} if case.is_random or case.name in _OTHERWISE else expected
    return {}, {}


def check_case(case: Case, caps: DeviceCapabilities, seed: int = 0) -> Report:
    """`check_model` for a case, whose results are compared too."""
    inputs, expected = case_values(case)
    return check_model(case.model(), caps, inputs, seed, expected)


def check_model(
    model: onnx.ModelProto,
    caps: DeviceCapabilities,
    inputs: Inputs,
    seed: int = 0,
    expected: Inputs | None = None,
    allowed: Inputs | None = None,
) -> Report:
    """Lower a model for a device and check its passes. Where nodes need values, integers among ``inputs`` are known while
    planning. ``expected`` and ``allowed`` as for `watched`. A model that is refused, or whose inputs are no tensors, has no
    islands."""
    watching = functools.partial(watched, inputs, seed, expected, allowed)
    report = _checked(model, caps, inputs, watching, known_integers=False)
    return report or _checked(model, caps, inputs, watching, known_integers=True) or Report()


def _checked(
    model: onnx.ModelProto,
    caps: DeviceCapabilities,
    inputs: Inputs,
    watching: Callable[[], AbstractContextManager[Report]],
    known_integers: bool,
) -> Report | None:
    """None where a step of the program is deferred."""
    with watching() as report:
        try:
            loaded = load_model(model.SerializeToString())
            known: dict[str, Known] = dict(loaded.graph.weights)
            for info in loaded.graph.inputs:
                dtype, value = dtypes.from_onnx(info.elem_type), inputs.get(info.name)
                if dtype is None or info.name in known:
                    continue
                if known_integers and value is not None and value.dtype.kind in "iu" and value.ndim < 2:
                    known[info.name] = ArrayWeight(info.name, value)
                    continue
                shape = tuple(d if isinstance(d, int) else 2 for d in info.shape or ())
                known[info.name] = ValueSpec(dtype, shape if value is None else value.shape)
            outputs = [v.name for v in loaded.graph.outputs]
            program = lower(loaded.graph.nodes, known, outputs, loaded.opsets, caps)
        except VkepError:
            return report
    if any(isinstance(step, DeferredStep) for step in program.steps) and not known_integers:
        return None
    return report
