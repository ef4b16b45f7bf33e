"""Runs a network by vkep and by ONNX Runtime, and judges where they differ by float64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import helper

from gpu_shared.capabilities import DeviceCapabilities
from tools.fuzz.guard import Guards, guarded
from tools.fuzz.networks.graph import Network
from tools.fuzz.networks.meanings import Array, evaluate, wide
from tools.fuzz.worker import OnnxRuntime
from vkep.kernels.reductions import norm

#: differences from ONNX Runtime, as part of a value and of the root of the mean of squares, that float64 is not asked about
_SAME = {"float32": 2.0**-18, "float16": 2.0**-9}
#: evaluations with random rounding errors, at first and where a value is beyond them: few samples miss what a norm of two nearly
#: equal elements does to an error
_FEW, _MANY = 4, 32
#: what their greatest spread is multiplied by: a kernel that sums in another order, or in Winograd's form, has more rounding than
#: one error for each node
_FACTOR = 16.0


@dataclass(frozen=True)
class Verdict:
    """``kind`` is "right", "refused" (by both), "wrong", "refused alone", "written beside" or "exception"."""

    kind: str
    text: str = ""
    declined: str = ""  #: the nodes that ran on the CPU, or what no interpreter executes

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("right", "refused")


def judge(network: Network, context: Any, guarding: bool = False) -> Verdict:
    """The verdict on a network. ``guarding``: tensors are between guard pages (`tools.fuzz.guard`), and share no memory."""
    session = OnnxRuntime(network.model)
    theirs = [session.run(feeds) for feeds in network.feeds]
    answers = [answer.outputs if answer.kind == "result" else None for answer in theirs]
    with guarded() if guarding else contextlib.nullcontext(Guards()) as guards:
        verdict = _by_vkep(network, answers, context, "error")
        if verdict.kind == "declined":
            verdict = replace(_by_vkep(network, answers, context, "cpu"), declined=verdict.text)
        if guards.broken():
            verdict = Verdict("written beside", "; ".join(guards.broken()))
    if verdict.kind == "refused alone" and None in answers:
        return replace(
            verdict, kind="refused", text=f"{verdict.text}; ONNX Runtime: {theirs[answers.index(None)].text}"
        )
    return verdict


@mock.patch.object(norm, "_SHORT_ROW", 1)
def judge_passes(network: Network, _context: Any = None, _guarding: bool = False) -> Verdict:
    """The verdict on the passes of a network's plans for imaginary devices, whose operations are interpreted on the host
    (`tools.passes`). Small images are normed as large ones."""
    from tools.passes.check import LOWERING
    from tools.passes.models import check_model
    from tools.plan_devices import DEVICES

    missing: dict[str, None] = {}
    for k, feeds in enumerate(network.feeds):
        exact = evaluate(network.model, feeds)
        expected = {o.name: exact[o.name].astype(network.types[o.name]) for o in network.model.graph.output}
        allowed: dict[str, Array] = {}
        for device, caps in DEVICES.items():
            try:
                report = check_model(network.model, caps, feeds, expected=expected)
                if [difference.name for difference in report.differences[:1]] == [LOWERING]:
                    allowed = allowed or _allowed_of(network, feeds, exact, expected)
                    report = check_model(network.model, caps, feeds, expected=expected, allowed=allowed)
            except Exception as error:
                return Verdict("exception", f"{type(error).__name__}: {error}")
            if report.differences:
                return Verdict("wrong", f"run {k} on {device}: {report.differences[0]}")
            if not report.islands:
                return Verdict("refused alone", f"run {k} on {device}")
            missing |= dict.fromkeys(report.not_interpreted)
    for device, caps in DEVICES.items():
        try:
            text = _sized_difference(network, caps)
        except Exception as error:
            return Verdict("exception", f"with sizes on {device}: {type(error).__name__}: {error}")
        if text:
            return Verdict("wrong", f"with sizes on {device}: {text}")
    return Verdict("right", declined="; ".join(missing))


def _sized_difference(network: Network, caps: DeviceCapabilities) -> str:
    """How the results of the plan with sizes of the first run, where it is one island and serves a run, differ from those of the
    plan for that run alone; "" where they do not."""
    from tools.passes.check import differing, islands
    from tools.size_conditions import declared
    from vkep.graph import load_model
    from vkep.ir.program import IslandStep
    from vkep.sizes import Trace

    model, trace = load_model(network.model.SerializeToString()), Trace()
    dims = [(dim, info.name, axis) for info in model.graph.inputs for axis, dim in enumerate(info.shape or ())]
    sizes = [{dim: f[n].shape[a] for dim, n, a in dims if isinstance(dim, str)} for f in network.feeds]
    if not sizes[0]:
        return ""
    case = declared(model, sizes[0])
    with islands() as sized:
        program = case.with_trace(trace, caps)
    for at, feeds in zip(sizes, network.feeds, strict=True):
        with islands() as alone:
            steps = case.lowered(at, caps).steps
        if [type(step) for step in [*program.steps, *steps]] != [IslandStep, IslandStep]:
            return ""
        if trace.holds().hold(list(at.values())):
            text = differing(sized[-1], alone[-1], list(at.values()), feeds)
            if text:
                return f"at {at}: {text}"
    return ""


def _by_vkep(network: Network, theirs: Sequence[Any], context: Any, fallback: Any) -> Verdict:
    import vkep

    try:
        options: Any = {"fallback": fallback, "save_plans": False, "context": context}
        with vkep.InferenceSession(network.model, **options) as session:
            ours = [session.run(None, feeds) for feeds in network.feeds]
            if network.over:
                ours += [_in_place(session, network, feeds) for feeds in network.feeds]
    except vkep.UnsupportedModelError as error:
        return Verdict("declined" if fallback == "error" else "refused alone", str(error))
    except (vkep.InvalidModelError, vkep.InvalidInputError) as error:
        return Verdict("refused alone", str(error))
    except Exception as error:
        return Verdict("exception", f"{type(error).__name__}: {error}")
    runs = len(network.feeds)
    for k, mine in enumerate(ours):
        wrong = difference(network, k % runs, mine, theirs[k % runs])
        if wrong:
            bound = f" with outputs in the memory of inputs ({network.over})" if k >= runs else ""
            return Verdict("wrong", f"run {k % runs}{bound}: {wrong}")
    return Verdict("right")


def _in_place(session: Any, network: Network, feeds: dict[str, Array]) -> list[Array]:
    """The outputs of a run that writes some of them to the memory of inputs."""
    with contextlib.ExitStack() as stack:
        tensors = {name: stack.enter_context(session.device_tensor(feeds[name])) for name in network.over.values()}
        binding = session.io_binding()
        for name, value in feeds.items():
            if name in tensors:
                binding.bind_input(name, tensors[name])
            else:
                binding.bind_cpu_input(name, value)
        for output in network.model.graph.output:
            source = network.over.get(output.name)
            binding.bind_output(output.name, tensors[source] if source else None)
        session.run_with_iobinding(binding)
        return list(binding.copy_outputs_to_cpu())


def difference(network: Network, run: int, ours: Sequence[Any], theirs: Sequence[Any] | None) -> str:
    """What is wrong with the outputs of a run; "" where nothing is. ``theirs``: ONNX Runtime's, if it has any."""
    names = [info.name for info in network.model.graph.output]
    feeds = network.feeds[run]
    exact: dict[str, Array] = {}
    spreads: list[dict[str, Array]] = []

    def beyond(name: str, value: Array, count: int) -> str:
        while len(spreads) < count:
            spreads.append(_with_errors(network, feeds, len(spreads)))
        return _beyond(value, exact[name], [spread[name] for spread in spreads])

    for position, (name, got) in enumerate(zip(names, map(np.asarray, ours), strict=True)):
        other = None if theirs is None else np.asarray(theirs[position])
        if got.dtype != network.types[name]:
            return f"{name} is {got.dtype}, expected {network.types[name]}"
        if other is not None and _are_same(got, other):
            continue
        exact = exact or evaluate(network.model, feeds)
        text = beyond(name, got, _FEW) and beyond(name, got, _MANY)
        if text:
            if other is not None:
                text += "; ONNX Runtime's: " + (beyond(name, other, _MANY) or "right")
            return f"{name} (of {_maker(network.model, name)}): {text}"
    return ""


def _maker(model: onnx.ModelProto, name: str) -> str:
    return next((node.op_type for node in model.graph.node if name in node.output), "no node")


def _typical(value: Array, beside: Array) -> float:
    """The root of the mean of squares, without the elements whose value ``beside`` hides a score."""
    kept = value[np.abs(beside) < 1e3]
    return float(np.sqrt(np.mean(kept**2))) if kept.size else 0.0


def _are_same(got: Array, other: Array) -> bool:
    if got.shape != other.shape:
        return False
    if got.dtype.name not in _SAME:
        return bool((got == other).all())
    a, b = wide(got), wide(other)
    allowed = _SAME[got.dtype.name] * (np.abs(b) + _typical(b, b))
    return bool(((np.abs(a - b) <= allowed) | (a == b)).all())


def _with_errors(network: Network, feeds: dict[str, Array], seed: int) -> dict[str, Array]:
    """The values of a run with random rounding errors."""
    return evaluate(network.model, feeds, network.types, np.random.default_rng(seed))


def _allowed_of(
    network: Network, feeds: dict[str, Array], exact: dict[str, Array], expected: dict[str, Array]
) -> dict[str, Array]:
    """`_allowed` of each result of floats."""
    spreads = [_with_errors(network, feeds, seed) for seed in range(_MANY)]
    floats = [name for name, value in expected.items() if value.dtype.kind == "f"]
    return {name: _allowed(exact[name], [spread[name] for spread in spreads]) for name in floats}


def _allowed(exact: Array, spreads: Sequence[Array]) -> Array:
    """The errors of elements that rounding explains, by evaluations with random rounding errors."""
    with np.errstate(all="ignore"):
        spread = np.max([np.abs(s - exact) for s in spreads], 0)
        # a rounding error of one element is a sample: its neighbours have the same distribution
        return np.asarray(_FACTOR * (spread + _typical(spread, exact)))


def _beyond(got: Array, exact: Array, spreads: Sequence[Array]) -> str:
    """The elements that differ from float64 by more than rounding explains."""
    if got.shape != exact.shape:
        return f"shape {list(got.shape)}, expected {list(exact.shape)}"
    if got.dtype.kind != "f":
        wrong = got != exact
        return f"{wrong.sum()} of {got.size} elements" if wrong.any() else ""
    with np.errstate(all="ignore"):
        allowed = _allowed(exact, spreads)
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


def first_wrong(network: Network, context: Any, judge: Callable[[Network, Any], Verdict] = judge) -> str:
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
    arrays |= {f"over/{output}": np.array(source) for output, source in network.over.items()}
    np.savez(path.with_suffix(".npz"), **arrays)


def load(path: Path) -> Network:
    """A network that `save` wrote."""
    model = onnx.load(path)
    runs: dict[str, dict[str, Array]] = {}
    with np.load(path.with_suffix(".npz")) as arrays:
        for key in arrays:
            run, name = key.split("/", 1)
            runs.setdefault(run, {})[name] = arrays[key]
    over = {output: str(source) for output, source in runs.pop("over", {}).items()}
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {t.name: t.data_type for t in graph.initializer}
    types |= {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    names = {name: helper.tensor_dtype_to_np_dtype(kind).name for name, kind in types.items()}
    return Network(model, tuple(runs[run] for run in sorted(runs)), names, over)
