"""Calls and small graphs at several sizes, one after another through one session whose tensors are between guard pages.

No size of a model is known when it is opened, so that a few plans serve all its runs (`vkep.session.planning.sized_plans`). Which
sizes belong together is found by trial: equal ones move together where ONNX Runtime accepts that, else each alone. Where ONNX
Runtime has no kernel, the expected results are those of a session of vkep for each run alone.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from tools.fuzz.corpus import Array, Call, Graph, calls, graphs
from tools.fuzz.guard import Guards, guarded
from tools.fuzz.mutate import Case
from tools.fuzz.worker import Answer, OnnxRuntime, Outcome, answered, judge, one_run, values_are_open

#: sizes that are no multiple of a vector or a workgroup, and some that are
_SIZES = (0, 1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 64, 65, 100, 129, 257)
#: limit of the elements of an input
_MOST = 1 << 14
#: limit of the elements of a result
_MOST_MADE = 1 << 21
#: limit of the elements of an input whose integers may be sizes
_FEW = 8
#: runs of a series, and attempts to find them
_RUNS, _TRIES = 6, 20
#: the same where each attempt opens a session
_SLOW_TRIES = 8
#: how often a series also runs without guard pages, where tensors share memory that earlier runs have used
_WITHOUT = 0.3
#: attempts to find a sample whose sizes may change
_SAMPLES = 4
#: operators whose kernels in ONNX Runtime end the process where a size is 0
_NOT_EMPTY = frozenset({
    "GRU", "LSTM", "com.microsoft.AttnLSTM", "com.microsoft.DynamicQuantizeLSTM", "com.microsoft.Inverse",
    "com.microsoft.QAttention", "com.microsoft.QLinearWhere",
})  # fmt: skip

#: a shape with a size of 0
_EMPTY = r"\[([0-9]+, )*0[],]"
#: differences from ONNX Runtime that a plan for the same sizes alone has too, where vkep is right or the result is not
#: specified: (operator, a part of the case, why)
KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "(com.microsoft.)?Attention",
        "qk_matmul_output_mode",
        "the score of a hidden key is -inf, for ONNX Runtime the least number",
    ),
    ("AffineGrid", "align_corners", "no two corners: a size of 1"),
    ("BlackmanWindow|HannWindow|HammingWindow", r"\[\] 1( |$)", "a window of one is no division by 0"),
    ("DFT", "onesided", "fewer bins than the length has are followed by zeros, as numpy has them"),
    ("GroupNormalization", "", "ONNX Runtime's function body subtracts squares"),
    ("LSTM", "Softplus", "ONNX Runtime's overflows"),
    ("OneHot", "indices: float", "indices that are no whole numbers"),
    ("Pow", "x: int", "a result that is beyond the integers, or next to one"),
    ("com.microsoft.Inverse", "float16", "matrices that are nearly singular"),
    (
        "QLinearMatMul|MatMulInteger|com.microsoft.(QGemm|MatMulIntegerToFloat)",
        _EMPTY,
        "ONNX Runtime leaves the product of no columns as its memory was",
    ),
    (
        "RotaryEmbedding",
        r"input: float[0-9]+\[[0-9, ]*[13579]\]",
        "ONNX Runtime does not write the last element of heads of an odd size",
    ),
    ("RNN", "ScaledTanh", "ONNX Runtime's factors are 0 where none is given"),
    ("ai.onnx.ml.TreeEnsemble", "membership_values", "ONNX Runtime takes the whole part of a feature for a member"),
    ("com.microsoft.GroupQueryAttention", "", "rows and cached keys beyond the length of a sequence"),
    ("com.microsoft.MatMulNBits", "g: int32", "ONNX Runtime's differs from numpy"),
    ("com.microsoft.WordConvEmbedding", "", "ONNX Runtime leaves the row of an empty word as its memory was"),
)

Samples = dict[str, list[Call | Graph]]
Feeds = dict[str, Array]


class Place(NamedTuple):
    """A number of an input: a dimension, or an integer of its content."""

    name: str
    at: int
    is_content: bool = False


@dataclass
class Sample:
    """A model without known sizes, and values of its inputs that it accepts."""

    operator: str
    model: onnx.ModelProto
    values: Feeds
    text: str


@dataclass
class _Unit:
    """Numbers that change together."""

    places: list[Place]
    number: int


@dataclass
class Series:
    """The runs of a sample, and the expected result of each."""

    sample: Sample
    feeds: list[Feeds] = field(default_factory=list)
    expected: list[Answer] = field(default_factory=list)

    def __str__(self) -> str:
        runs = " | ".join(", ".join(_shown(n, v) for n, v in feeds.items()) for feeds in self.feeds)
        return f"{self.sample.text} at {runs}"


def samples(only: Callable[[str], object], recorded: bool = True) -> Samples:
    """The calls and graphs that series are made of, by operator."""
    found: Samples = defaultdict(list)
    every: list[Call | Graph] = [*calls(recorded), *graphs(recorded)]
    for sample in every:
        if only(sample.operator):
            found[sample.operator].append(sample)
    return dict(found)


def draw(found: Samples, seed: int, number: int, attempt: int = 0) -> tuple[Sample, random.Random]:
    """Sample ``number`` of a seed, and what its sizes are drawn from. The operators take turns."""
    operators = sorted(found)
    turn, which = divmod(number, len(operators))
    operator = operators[which]
    rng = random.Random(f"sizes/{seed}/{operator}/{turn}/{attempt}")
    chosen = rng.choice(found[operator])
    if isinstance(chosen, Graph):
        nodes = ", ".join(node.op_type for node in chosen.model.graph.node if node.op_type != "Constant")
        return Sample(operator, chosen.model, chosen.values, f"{operator}: {nodes[:300]}"), rng
    constants = {n for n in chosen.constants if rng.random() < 0.7}
    case = Case(chosen.node, chosen.opsets, chosen.values, constants)
    attributes = {a.name: _attribute(a) for a in chosen.node.attribute}
    weights = "".join(f"; {_shown(n, chosen.values[n])}" for n in sorted(constants))
    return Sample(operator, case.model(), case.feeds, f"{operator} {attributes} {chosen.opsets}{weights}"), rng


def one_series(found: Samples, seed: int, number: int, context: Any, say: Callable[[str], None]) -> Outcome:
    """The outcome of a series. Before each engine its name is sent, and the sizes of each run."""
    for attempt in range(_SAMPLES):
        sample, rng = draw(found, seed, number, attempt)
        series, theirs = _series(sample, rng, context, say)
        if len(series.feeds) > 1:
            break
    else:
        return Outcome(sample.operator, number, "", theirs.text, "", theirs.kind, sample.text)
    answers, broken, counts = _by_vkep(series, context, say, guarded())
    verdict, text = judge(answers[-1], Answer("declined"), broken)
    if not verdict:
        verdict, text = _judged(series, answers, context)
    if not verdict and rng.random() < _WITHOUT:
        again, _, _ = _by_vkep(series, context, say, contextlib.nullcontext(Guards()))
        verdict, text = _judged(series, again, context)
        text = f"without guard pages: {text}"
    runs = sum(ours.kind == "result" for ours in answers)
    kind = next((ours.kind for ours in answers if ours.kind != "result"), "result")
    return Outcome(sample.operator, number, verdict, text, kind, theirs.kind, str(series), runs, *counts)


def _judged(series: Series, answers: list[Answer], context: Any) -> tuple[str, str]:
    """The first difference from the expected results, and whether a plan for its sizes alone has it too."""
    for k, (ours, expected) in enumerate(zip(answers, series.expected, strict=False)):
        verdict, text = judge(ours, expected, [])
        if verdict:
            alone = one_run(series.sample.model, series.feeds[k], context)
            if ours.kind == alone.kind == "refused":  # of which the calls without ``--sizes`` are the test
                return "", ours.text
            same = judge(ours, alone, [])[1] or "the same"
            known = same == "the same" and _is_known(series)
            if verdict == "differs" and (
                known or values_are_open(ours, expected, series.sample.model, series.feeds[k])
            ):
                continue
            return verdict, f"run {k}: {text}; a plan for these sizes alone: {same}"
    return "", ""


def _is_known(series: Series) -> bool:
    text = str(series)
    return any(re.fullmatch(o, series.sample.operator) and re.search(part, text) for o, part, _ in KNOWN)


def _by_vkep(
    series: Series, context: Any, say: Callable[[str], None], guarding: AbstractContextManager[Guards]
) -> tuple[list[Answer], list[str], tuple[int, int]]:
    """vkep's answers, the tensors around which something was written, and how often a plan was set to sizes, and to others."""
    import vkep

    answers: list[Answer] = []
    with guarding as guards:
        with contextlib.ExitStack() as stack:

            def opened() -> Iterator[Any]:
                options: Any = {"fallback": "error", "save_plans": False, "context": context}
                yield stack.enter_context(vkep.InferenceSession(series.sample.model, **options))

            say("vkep")
            answer = answered(opened)
            if answer.kind != "result":
                return [answer], guards.broken(), (0, 0)
            [session] = answer.outputs
            for k, feeds in enumerate(series.feeds):
                say(f"vkep: run {k}, {', '.join(_shown(n, v) for n, v in feeds.items())}")
                answers.append(answered(functools.partial(session.run, None, feeds)))  # type: ignore[attr-defined]
        return answers, guards.broken(), (guards.fitted, guards.refitted)


def _series(sample: Sample, rng: random.Random, context: Any, say: Callable[[str], None]) -> tuple[Series, Answer]:
    """Runs of different sizes that are accepted, and the answer for the sample's own sizes."""
    series = Series(sample)
    say("onnxruntime")
    session = OnnxRuntime(sample.model)
    first = session.run(sample.values)
    slow = first.kind == "declined"

    def accepted(feeds: Feeds) -> Answer:
        if not slow:
            say("onnxruntime")
            return session.run(feeds)
        say(f"vkep alone: {', '.join(_shown(n, v) for n, v in feeds.items())}")
        return one_run(sample.model, feeds, context)

    if slow:
        first = accepted(sample.values)
    if first.kind != "result":
        return series, first
    units = _units(sample, rng, accepted, _SLOW_TRIES if slow else 1 << 10)
    if rng.random() < 0.7:
        series.feeds.append(sample.values)
        series.expected.append(first)
    numbers = [unit.number for unit in units]
    least = 1 if sample.operator in _NOT_EMPTY else 0
    for _ in range(_SLOW_TRIES if slow else _TRIES):
        if len(series.feeds) == _RUNS or not units:
            break
        drawn = [
            n if rng.random() < 0.4 else _drawn(unit.number, least, rng) for n, unit in zip(numbers, units, strict=True)
        ]
        feeds = _changed(sample, list(zip(units, drawn, strict=True)), rng)
        if drawn == numbers or feeds is None:
            continue
        answer = accepted(feeds)
        if answer.kind == "result" and all(np.size(made) <= _MOST_MADE for made in answer.outputs):
            series.feeds.append(feeds)
            series.expected.append(answer)
            numbers = drawn
    return series, first


def _units(sample: Sample, rng: random.Random, accepted: Callable[[Feeds], Answer], tries: int) -> list[_Unit]:
    """The numbers that may change, in groups that change together."""
    groups: dict[int, list[Place]] = defaultdict(list)
    for name, value in sample.values.items():
        for axis, dim in enumerate(value.shape):
            groups[dim].append(Place(name, axis))
    if rng.random() < 0.6:
        for name, value in sample.values.items():
            if value.dtype.kind == "i" and value.size <= _FEW:
                for k, number in enumerate(value.reshape(-1).tolist()):
                    if abs(number) > 1:
                        groups[number].append(Place(name, k, True))
    found: list[_Unit] = []

    def moves(places: list[Place], number: int) -> bool:
        nonlocal tries
        tries -= 1
        unit = _Unit(places, number)
        feeds = _changed(sample, [(unit, number + rng.choice((1, 1, 2, 3)))], rng) if tries >= 0 else None
        if feeds is None or accepted(feeds).kind != "result":
            return False
        found.append(unit)
        return True

    for number, places in sorted(groups.items()):
        together = rng.random() < 0.65
        if together and moves(places, number):
            continue
        if not [place for place in places if moves([place], number)] and not together:
            moves(places, number)
    return found


def _drawn(number: int, least: int, rng: random.Random) -> int:
    """Another number of its sign: one below 0 stays below 0."""
    if number < 0:
        return -_drawn(-number, 1, rng)
    return max(
        rng.choice((number, number - 1, number + 1, 2 * number, 4 * number + 1, *_SIZES)) if number else 1, least
    )


def _changed(sample: Sample, units: Sequence[tuple[_Unit, int]], rng: random.Random) -> Feeds | None:
    """The values with other numbers; None where an input is too large."""
    shapes = {name: list(value.shape) for name, value in sample.values.items()}
    content: list[tuple[Place, int]] = []
    for unit, number in units:
        for place in unit.places:
            if place.is_content:
                content.append((place, number))
            else:
                shapes[place.name][place.at] = max(number, 0)
    if any(np.prod(shape, dtype=np.int64) > _MOST for shape in shapes.values()):
        return None
    least = min((dim for shape in shapes.values() for dim in shape if dim), default=1)
    feeds = {name: _filled(value, shapes[name], least, rng) for name, value in sample.values.items()}
    for place, number in content:
        made = feeds[place.name] = feeds[place.name].copy()
        if place.at < made.size:
            made.reshape(-1)[place.at] = number
    return feeds


def _filled(value: Array, shape: list[int], least: int, rng: random.Random) -> Array:
    """Another shape, with elements of the value. Integers are also repeated in turn, or made less than the ``least`` size,
    since they may be indices."""
    if list(value.shape) == shape:
        return value
    if not value.size:
        return np.zeros(shape, value.dtype)
    draws = np.random.default_rng(rng.getrandbits(32))
    kind = rng.random()
    if value.dtype.kind != "f" and kind < 0.5:
        return np.resize(value, shape).astype(value.dtype)
    made = np.asarray(value.reshape(-1)[draws.integers(0, value.size, shape)])
    if value.dtype.kind == "f" and made.size > 1 and (np.asarray(value, np.float64) % 1).any():  # no two are the same
        return np.asarray((made * (1 - 0.02 * draws.random(shape))).astype(value.dtype))
    return np.asarray(made % least).astype(value.dtype) if value.dtype.kind in "iu" and kind < 0.8 else made


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return "tensor" if isinstance(value, onnx.TensorProto) else list(value) if hasattr(value, "extend") else value


def _shown(name: str, value: Array) -> str:
    small = f" {value.tolist()}" if value.size <= _FEW and value.dtype.kind in "iub" else ""
    return f"{name}: {value.dtype}{list(value.shape)}{small}"
