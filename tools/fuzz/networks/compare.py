"""Runs a network by vkep and by ONNX Runtime, and judges where they differ by float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tools.fuzz.networks.graph import Network
from tools.fuzz.networks.meanings import Array, evaluate, wide
from tools.fuzz.worker import OnnxRuntime

#: differences from ONNX Runtime, as part of a value and of the root of the mean of squares, that float64 is not asked about
_SAME = {"float32": 2.0**-18, "float16": 2.0**-9}
#: evaluations with random rounding errors, and what their greatest spread is multiplied by: a kernel that sums in another order,
#: or in Winograd's form, has more rounding than one error for each node
_EVALUATIONS, _FACTOR = 4, 16.0


@dataclass(frozen=True)
class Verdict:
    """``kind`` is "right", "refused" (by both), "wrong", "refused alone" or "exception"."""

    kind: str
    text: str = ""
    declined: str = ""  #: the nodes that ran on the CPU

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("right", "refused")


def judge(network: Network, context: Any) -> Verdict:
    """The verdict on a network."""
    session = OnnxRuntime(network.model)
    theirs = [session.run(feeds) for feeds in network.feeds]
    answers = [answer.outputs if answer.kind == "result" else None for answer in theirs]
    verdict = _by_vkep(network, answers, context, "error")
    if verdict.kind == "declined":
        verdict = replace(_by_vkep(network, answers, context, "cpu"), declined=verdict.text)
    if verdict.kind == "refused alone" and None in answers:
        return replace(
            verdict, kind="refused", text=f"{verdict.text}; ONNX Runtime: {theirs[answers.index(None)].text}"
        )
    return verdict


def _by_vkep(network: Network, theirs: Sequence[Any], context: Any, fallback: Any) -> Verdict:
    import vkep

    try:
        options: Any = {"fallback": fallback, "save_plans": False, "context": context}
        with vkep.InferenceSession(network.model, **options) as session:
            ours = [session.run(None, feeds) for feeds in network.feeds]
    except vkep.UnsupportedModelError as error:
        return Verdict("declined" if fallback == "error" else "refused alone", str(error))
    except (vkep.InvalidModelError, vkep.InvalidInputError) as error:
        return Verdict("refused alone", str(error))
    except Exception as error:
        return Verdict("exception", f"{type(error).__name__}: {error}")
    for k, (mine, answer) in enumerate(zip(ours, theirs, strict=True)):
        wrong = difference(network, k, mine, answer)
        if wrong:
            return Verdict("wrong", f"run {k}: {wrong}")
    return Verdict("right")


def difference(network: Network, run: int, ours: Sequence[Any], theirs: Sequence[Any] | None) -> str:
    """What is wrong with the outputs of a run; "" where nothing is. ``theirs``: ONNX Runtime's, if it has any."""
    names = [info.name for info in network.model.graph.output]
    exact: dict[str, Array] = {}
    spreads: list[dict[str, Array]] = []
    for position, (name, got) in enumerate(zip(names, map(np.asarray, ours), strict=True)):
        other = None if theirs is None else np.asarray(theirs[position])
        if got.dtype != network.types[name]:
            return f"{name} is {got.dtype}, expected {network.types[name]}"
        if other is not None and _are_same(got, other):
            continue
        if not exact:
            feeds = network.feeds[run]
            exact = evaluate(network.model, feeds)
            rngs = map(np.random.default_rng, range(_EVALUATIONS))
            spreads = [evaluate(network.model, feeds, network.types, rng) for rng in rngs]
        text = _beyond(got, exact[name], [spread[name] for spread in spreads])
        if text:
            if other is not None:
                text += "; ONNX Runtime's: " + (_beyond(other, exact[name], [s[name] for s in spreads]) or "right")
            return f"{name} (of {_maker(network.model, name)}): {text}"
    return ""


def _maker(model: onnx.ModelProto, name: str) -> str:
    return next((node.op_type for node in model.graph.node if name in node.output), "no node")


def _typical(value: Array) -> float:
    """The root of the mean of squares, without the numbers that hide scores."""
    kept = value[np.abs(value) < 1e3]
    return float(np.sqrt(np.mean(kept**2))) if kept.size else 0.0


def _are_same(got: Array, other: Array) -> bool:
    if got.shape != other.shape:
        return False
    if got.dtype.name not in _SAME:
        return bool((got == other).all())
    a, b = wide(got), wide(other)
    allowed = _SAME[got.dtype.name] * (np.abs(b) + _typical(b))
    return bool(((np.abs(a - b) <= allowed) | (a == b)).all())


def _beyond(got: Array, exact: Array, spreads: Sequence[Array]) -> str:
    """The elements that differ from float64 by more than rounding explains."""
    if got.shape != exact.shape:
        return f"shape {list(got.shape)}, expected {list(exact.shape)}"
    if got.dtype.kind != "f":
        wrong = got != exact
        return f"{wrong.sum()} of {got.size} elements" if wrong.any() else ""
    with np.errstate(all="ignore"):
        spread = np.max([np.abs(s - exact) for s in spreads], 0)
        # a rounding error of one element is a sample: its neighbours have the same distribution
        allowed = _FACTOR * (spread + np.sqrt(np.mean(spread[np.abs(exact) < 1e3] ** 2)) if spread.size else spread)
        off = np.abs(wide(got) - exact)
        wrong = ~((off <= allowed) | (got == exact.astype(got.dtype)))
    if not wrong.any():
        return ""
    at = np.unravel_index(
        int(np.argmax(np.where(wrong, np.nan_to_num(off / np.maximum(allowed, 1e-30), nan=np.inf), -1))), got.shape
    )
    place = [int(i) for i in at]
    return (
        f"{int(wrong.sum())} of {got.size} elements; at {place} {got[at]:.7g}, expected {exact[at]:.7g} "
        f"(rounding allows {allowed[at]:.2g})"
    )


def with_outputs(network: Network, names: Sequence[str]) -> Network:
    """The network with other outputs, and without the nodes that these do not need."""
    wanted, nodes = set(names), []
    for node in reversed(network.model.graph.node):
        if wanted & set(node.output):
            nodes.append(node)
            wanted |= set(node.input)
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    graph = model.graph
    for field, kept in (("node", nodes[::-1]), ("initializer", [t for t in graph.initializer if t.name in wanted])):
        kept = list(map(type(kept[0]).FromString, [item.SerializeToString() for item in kept])) if kept else []
        graph.ClearField(field)
        getattr(graph, field).extend(kept)
    inputs = [info for info in network.model.graph.input if info.name in wanted]
    del graph.input[:], graph.output[:]
    graph.input.extend(inputs)
    for name in names:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(network.types[name]))
        graph.output.append(helper.make_tensor_value_info(name, kind, None))
    feeds = tuple({n: v for n, v in feed.items() if n in wanted} for feed in network.feeds)
    return Network(model, feeds, network.types)


def first_wrong(network: Network, context: Any) -> str:
    """The first node whose result is wrong, with all results as outputs, else with each as the only output."""
    made = [name for node in network.model.graph.node if node.op_type != "Constant" for name in node.output if name]
    every = judge(with_outputs(network, made), context)
    if every.is_failure:
        return f"with all results as outputs: {every.kind}, {every.text}"
    for name in made:
        alone = judge(with_outputs(network, [name]), context)
        if alone.is_failure:
            return f"with {name} as the only output: {alone.kind}, {alone.text}"
    return "right with all results as outputs, and with each alone"


def save(network: Network, path: Path) -> None:
    """Write the model, and beside it the inputs of its runs."""
    onnx.save(network.model, path)
    arrays: dict[str, Any] = {f"{run}/{n}": v for run, feeds in enumerate(network.feeds) for n, v in feeds.items()}
    np.savez(path.with_suffix(".npz"), **arrays)


def load(path: Path) -> Network:
    """A network that `save` wrote."""
    model = onnx.load(path)
    runs: dict[str, dict[str, Array]] = {}
    with np.load(path.with_suffix(".npz")) as arrays:
        for key in arrays:
            run, name = key.split("/", 1)
            runs.setdefault(run, {})[name] = arrays[key]
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {t.name: t.data_type for t in graph.initializer}
    types |= {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    names = {name: helper.tensor_dtype_to_np_dtype(kind).name for name, kind in types.items()}
    return Network(model, tuple(runs[run] for run in sorted(runs)), names)
