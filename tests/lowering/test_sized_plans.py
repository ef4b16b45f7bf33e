"""For every signature that a plan with sizes serves, its instance is the plan that lowering for that signature alone gives, with
the same choices among what is right for both (docs/shapes.md).
"""

from __future__ import annotations

import collections
import functools
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.lowering.replayed import Choices, compared
from tests.nightly import nightly_but
from tests.session.test_decode import decoder
from tools.models.catalog import Options, build_model
from tools.passes.check import differing, islands
from tools.plan_devices import DEVICES
from tools.size_conditions import Case, declared, node_cases
from vkep.errors import VkepError
from vkep.graph import load_model
from vkep.ir.program import DeferredStep, IslandStep, Program, ValueSpec
from vkep.plan.encoded import plan_fields
from vkep.plan.sized import instance
from vkep.session.planning.planned_graph import known_value
from vkep.session.planning.sized_plans import numbers_of
from vkep.sizes import Trace


def check(
    case: Case, device: str, seed: int, most: int, wanted: int = 2, general: bool = False
) -> collections.Counter[str]:
    """How many signatures were compared, of those tried that the plan serves: ``wanted`` at most "of 1", which have sizes of 1,
    and as many "others". ``general``: of a plan that is made for sizes which another one does not serve.
    """
    caps, draw = DEVICES[device], random.Random(seed)
    choices = Choices(Trace(general))
    trace = choices.trace
    if case.model.graph.weights:  # the first lowerings pack those that later ones find packed
        case.lowered(case.sizes, caps)
        case.with_trace(Trace(general), caps)
    with choices.recorded():
        program = case.with_trace(trace, caps)
    for step in program.steps:
        if isinstance(step, IslandStep):
            json.dumps(plan_fields(step.plan))  # plain numbers, which a file takes
    holds, served = trace.holds(), collections.Counter[str]()
    assert holds.hold(list(case.sizes.values()))
    for sizes in others(case, draw, most):
        kind = "of 1" if any(n == 1 < case.sizes[name] for name, n in sizes.items()) else "others"
        if served[kind] == wanted or not holds.hold(list(sizes.values())):
            continue
        try:
            with choices.replayed(list(sizes.values())):
                alone = case.lowered(sizes, caps)
        except VkepError as error:
            raise AssertionError(f"a plan with sizes serves {sizes}, which lowering refuses") from error
        same(program, alone, list(sizes.values()), f"{sizes} on {device}")
        served[kind] += 1
    return served


def others(case: Case, draw: random.Random, most: int) -> Iterator[dict[str, int]]:
    """Sizes at hand, those with sizes of 1, and others near and far, 0 among them."""
    at = case.sizes
    yield at
    yield dict.fromkeys(at, 1)
    yield from [{**at, name: 1} for name in at]
    for _ in range(24):
        yield {
            name: draw.choice([n, n + 1, 2 * n, draw.randint(0, 4), draw.randint(1, most)]) for name, n in at.items()
        }
    for name in at:
        yield {**at, name: at[name] * 2}
        yield {**at, name: at[name] + 1}


def same(sized: Program, alone: Program, sizes: list[int], told: str) -> None:
    assert [p.where for p in sized.placements] == [p.where for p in alone.placements], told
    assert [type(s) for s in sized.steps] == [type(s) for s in alone.steps], told
    for ours, theirs in zip(sized.steps, alone.steps, strict=True):
        if isinstance(ours, IslandStep):
            assert isinstance(theirs, IslandStep) and ours.sizes is not None
            for a, b in zip(compared(instance(ours.plan, ours.sizes, sizes)), compared(theirs.plan), strict=True):
                assert a == b, told
    for name, number in sized.numbers.items():
        known = alone.constants.get(name)
        assert known is None or number.array(sizes).tolist() == known.array().tolist(), told


MODELS: Mapping[str, Mapping[str, int]] = {
    "gpt2step": {"past": 37},
    "bert_enc": {"batch": 3, "sequence": 37},
    "resnet18": {"batch": 3},
    "mobilenetv2": {"batch": 3},
}


#: on each device one model, on the CPU each
CATALOG = [
    pytest.param(model, device, marks=[] if device == "cpu" or model == "mobilenetv2" else pytest.mark.nightly)
    for model in MODELS
    for device in DEVICES
]


@pytest.mark.parametrize(("model", "device"), CATALOG)
def test_models_of_the_catalog(model: str, device: str) -> None:
    loaded = load_model(build_model(model, Options(dynamic=True)).SerializeToString())
    assert check(declared(loaded, MODELS[model]), device, 1, 300)["others"] == 2


@pytest.mark.parametrize(("model", "device"), CATALOG)
def test_general_plans_of_the_catalog(model: str, device: str) -> None:
    """On a CPU driver they also serve sizes of 1."""
    loaded = load_model(build_model(model, Options(dynamic=True)).SerializeToString())
    served = check(declared(loaded, MODELS[model]), device, 1, 300, general=True)
    assert served["others"] == 2
    assert served["of 1"] > 0 or device != "cpu"


def test_a_short_length_is_a_size_too() -> None:
    """The positions of its words are few numbers, as a shape's, but more where the length is larger."""
    loaded = load_model(build_model("bert", Options(dynamic=True)).SerializeToString())
    case, trace = declared(loaded, {"batch": 3, "sequence": 9}), Trace()
    case.with_trace(trace, DEVICES["cpu"])
    assert trace.symbols == 2 and not trace.fixed_symbols()


@pytest.mark.parametrize("device", DEVICES)
def test_a_cache_that_grows_in_its_memory(device: str) -> None:
    loaded = load_model(build_model("gpt2step", Options(dynamic=True)).SerializeToString())
    case = declared(loaded, MODELS["gpt2step"])
    capacity = {
        n: replace(s, capacity=(*s.shape[:2], 128, 64))
        for n, s in case.inputs.items()
        if isinstance(s, ValueSpec) and n[0] == "p" and s.shape[2:3] == (37,)
    }
    inputs = {**case.inputs, **capacity}
    numbers = numbers_of(inputs).values
    places = {name: [k for k, n in enumerate(numbers) if n == size] for name, size in (("past", 37), ("room", 128))}
    assert list(map(len, places.values())) == [2, 2]
    case = replace(case, inputs=inputs, places=places, over=(("nk", "pk"), ("nv", "pv")))
    assert check(case, device, 1, 300)["others"] == 2
    [step] = case.lowered(case.sizes, DEVICES[device]).steps
    assert isinstance(step, IslandStep) and step.over == case.over


@pytest.mark.parametrize("device", DEVICES)
def test_a_decoder_whose_prompts_differ_in_length(device: str) -> None:
    """Its past is of one size; the plan depends on the total length."""
    case = declared(load_model(decoder().SerializeToString()), {"batch": 2, "length": 5, "past": 96})
    waiting = [s for s in case.lowered(case.sizes, DEVICES[device]).steps if isinstance(s, DeferredStep)]
    total = {n: known_value(np.array([60], np.int32), n, True) for n in waiting[0].values}
    case = replace(case, inputs={**case.inputs, **total}, places={n: case.places[n] for n in ("batch", "length")})
    assert check(case, device, 1, 12)["others"] == 2


#: cases whose function bodies compute at run time, with sizes, what folds for one signature: other nodes make it then; loops,
#: which are unrolled for one signature; a state without elements, which is a constant for one signature; and scales in bfloat16,
#: which a kernel reads from a buffer that a dispatch writes. Of those that are one plan in both ways, the results are compared
_OTHER_BODIES = ("center_crop_pad", "linear_attention", "kernel_size_one", "scan", "bf16_expanded")


@functools.cache
def _node_cases() -> list[tuple[str, Case]]:
    return list(node_cases())


def _same_results(case: Case, device: str, seed: int) -> bool:
    """Whether other sizes were found, at which the operations with sizes have the results of those that are lowered for them
    alone. Of a lowering that makes more than a plan, none are."""
    caps, trace = DEVICES[device], Trace()
    with islands() as sized:
        program = case.with_trace(trace, caps)
    holds = trace.holds()
    for sizes in others(case, random.Random(seed), 12):
        at = list(sizes.values())
        if sizes == case.sizes or not holds.hold(at):
            continue
        with islands() as alone:
            steps = case.lowered(sizes, caps).steps
        if [type(s) for s in [*program.steps, *steps]] != [IslandStep, IslandStep]:
            return False
        assert differing(sized[-1], alone[-1], at) == "", sizes
        return True
    return False


@pytest.mark.parametrize("device", nightly_but(("cpu",), DEVICES))
def test_results_where_plans_differ(device: str) -> None:
    compared = collections.Counter[str]()
    for k, (name, case) in enumerate(_node_cases()):
        for part in _OTHER_BODIES:
            if part in name and compared[part] < 3:
                try:
                    compared[part] += _same_results(case, device, k)
                except AssertionError as error:
                    raise AssertionError(name) from error
    assert all(compared[part] for part in _OTHER_BODIES) and compared["bf16_expanded"] >= 3, compared


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("device", nightly_but(("cpu",), DEVICES))
@pytest.mark.parametrize("third", nightly_but((0,), range(3)))
def test_node_cases(device: str, third: int) -> None:
    """Each third has most operators: the cases of one follow each other."""
    totals = collections.Counter[str]()
    for k, (name, case) in enumerate(_node_cases()):
        if k % 3 != third or any(part in name for part in _OTHER_BODIES):
            continue
        try:
            found = check(case, device, k, 40, general=bool(k % 2))
        except AssertionError as error:
            raise AssertionError(name) from error
        totals.update(kind for kind, count in found.items() if count > (kind == "others"))  # one is the case itself
    assert totals["others"] > 500 and totals["of 1"] > 330
