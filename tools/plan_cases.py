"""The models whose plans `tools.plan_digests` compares: the catalog, for fixed inputs and with sizes; steps of the decoder
architectures in place; ONNX's node cases.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from tools.backend_suite.cases import load_cases
from tools.models.catalog import CATALOG, CONVNETS, Options, build_model
from tools.plan_devices import DEVICES
from tools.size_conditions import Case, declared, of_values
from vkep.errors import VkepError
from vkep.generation.rewrite import for_generation
from vkep.graph import load_model
from vkep.ir.program import Program, ValueSpec
from vkep.models.language import ARCHITECTURES, OPTIMUM, write_language
from vkep.sizes import Trace

#: models whose weights take longest to hash, and whose layers another model of the catalog has
_LEFT_OUT = frozenset({"resnet50", "bert"})
#: of the node cases, one in so many is compared unless all are
EVERY = 8
#: tokens that a decoder's caches contain before a step, and their capacity
_PAST, _CAPACITY = 37, 64


@dataclass(frozen=True)
class PlanCase:
    """A model with inputs. ``sized``: its plan has sizes. ``weights``: the content of its weights is the same everywhere."""

    name: str
    make: Callable[[], Case | None]  #: None where the model takes no plain tensors, or is refused
    sized: bool = False
    weights: bool = True

    @functools.cached_property
    def case(self) -> Case | None:
        """The model, loaded."""
        return self.make()

    def program(self, caps: DeviceCapabilities) -> Program | None:
        """The model's program on a device; None where there is none."""
        if self.case is None:
            return None
        return self.case.with_trace(Trace(), caps) if self.sized else self.case.lowered(self.case.sizes, caps)


def catalog() -> Iterator[tuple[str, str, Options]]:
    """Name, model and options of the catalog's models with fixed inputs."""
    for name in CATALOG:
        if name not in _LEFT_OUT:
            yield name, name, Options()
            yield f"{name} float16", name, Options(float16=True)


def plan_cases(every: int = EVERY) -> Iterator[PlanCase]:
    """All cases, with one of ``every`` node cases."""
    for name, model, options in catalog():
        yield PlanCase(name, functools.partial(_of_catalog, model, options), weights=model not in CONVNETS)
    for model, spec in CATALOG.items():
        if spec.can_be_dynamic and model not in _LEFT_OUT:
            make = functools.partial(_of_catalog, model, Options(dynamic=True))
            yield PlanCase(f"{model} with sizes", make, sized=True, weights=model not in CONVNETS)
    for name in sorted(ARCHITECTURES):
        for precision in ("fp32", "int4-fp16"):
            for rows, length in ((1, 1), (2, 1), (1, 20)):
                shown = f"{name} {precision}, {rows}x{length} tokens in place"
                yield PlanCase(shown, functools.partial(_step, name, precision, rows, length))
    names = [name for name, case in load_cases().items() if case.kind == "node"]
    for name in names[::every]:
        yield PlanCase(name, functools.partial(_of_node_case, name), weights=False)


def _of_catalog(model: str, options: Options) -> Case:
    return declared(load_model(build_model(model, options).SerializeToString()), {})


@functools.lru_cache(maxsize=1)
def _architecture(name: str, precision: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_language(Path(folder), name, precision)
        return (Path(folder) / "model.onnx").read_bytes()


def _step(name: str, precision: str, rows: int, length: int) -> Case:
    """A run of the decoder whose new caches are in the memory of the old ones."""
    model = for_generation(load_model(_architecture(name, precision)), "logits", choose=True)
    past = _PAST if name in OPTIMUM else _CAPACITY
    case = declared(model, {"batch": rows, "length": length, "past": past, "total": _PAST + length})
    pairs = tuple((n.replace("past_key_values", "present"), n) for n in case.inputs if n.startswith("past_key_values"))
    inputs = dict(case.inputs)
    for _, name_of_past in pairs:
        spec = inputs[name_of_past]
        assert isinstance(spec, ValueSpec)
        capacity = (*spec.shape[:2], _CAPACITY, *spec.shape[3:])
        inputs[name_of_past] = replace(spec, capacity=capacity if capacity != spec.shape else ())
    return replace(case, inputs=inputs, places={}, over=pairs)


def _of_node_case(name: str) -> Case | None:
    case = load_cases()[name]
    proto = case.model()
    try:
        model = load_model(proto.SerializeToString())
        values = dict(zip([v.name for v in model.graph.inputs], next(iter(case.data(proto)))[0], strict=True))
        if not all(isinstance(v, np.ndarray) and v.dtype != object for v in values.values()):
            return None
        return of_values(model, values, DEVICES["cpu"])
    except (VkepError, ValueError, TypeError):
        return None
