"""Collects the document of a page (`vkep.view`) from a method: its instructions, and the graphs inside its
delegates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vkep.executorch.calls import ChainedCalls, DelegateCall
from vkep.executorch.context_resources import ContextResources
from vkep.executorch.delegates import GraphRunner, Runner, VulkanRunner
from vkep.executorch.steps import Bound
from vkep.pte.method import DecodedMethod
from vkep.pte.steps import DelegateStep, KernelStep, MoveStep
from vkep.pte.values import TensorValue
from vkep.session.execution.executor import IslandExecutor, Values
from vkep.session.reports.introspection import Flat, flatten
from vkep.session.reports.tracing import RunTrace, Tracer
from vkep.session.reports.viewing import (
    add_context,
    add_islands,
    add_measured,
    add_statistics,
    least_times,
    run_document,
)
from vkep.view.document import add_graph, add_region, add_times, new_document
from vkep.view.graph import GraphDocument, Kind, value_kinds

#: runs the method with each bound step replaced by the function's result
Run = Callable[[Callable[[int, Bound], Bound]], None]


@dataclass
class _Parts:
    """The islands of all delegates in order, and the input values of each in the latest run."""

    flats: dict[int, Flat] = field(default_factory=dict)  #: by delegate
    islands: list[IslandExecutor] = field(default_factory=list)
    values: dict[int, Values] = field(default_factory=dict)  #: by island
    regions: dict[int, int] = field(default_factory=dict)  #: of the delegates that are not Vulkan's, by delegate


def method_document(
    decoded: DecodedMethod, resources: Sequence[ContextResources], runners: Sequence[Runner], run: Run, runs: int
) -> dict[str, Any]:
    """The document of a method with ``runs`` timed runs. Raises as a run."""
    run(lambda _, step: step)  # plans that need shapes are made then
    contexts = list(dict.fromkeys(held.vulkan.context for held in resources))
    device = resources[0].vulkan.capabilities.name if resources else "no delegate, no device"
    document = new_document(decoded.where, device, ", ".join(c.label for c in contexts) or "none")
    document["model"] = {
        "format": "ExecuTorch program",
        "instructions": len(decoded.steps),
        "delegates": ", ".join(delegate.backend for delegate in decoded.delegates),
    }
    parts = _Parts()
    for number, runner in enumerate(runners):
        for executable in runner.executables():
            parts.flats[number] = flatten(executable)
            parts.islands += parts.flats[number].islands
    _add_nodes(document, decoded, runners, parts)
    if resources and runs and contexts[0].device.family.timestamp_valid_bits:
        _add_runs(document, decoded, resources[0], runners, parts, run, runs)
    if resources:
        add_context(document, resources[0].vulkan, contexts)
    return document


def _add_nodes(document: dict[str, Any], decoded: DecodedMethod, runners: Sequence[Runner], parts: _Parts) -> None:
    kinds: dict[str, Kind] = {
        _name(index): (value.dtype.name, value.sizes)
        for index, value in enumerate(decoded.values)
        if isinstance(value, TensorValue)
    }
    graph = GraphDocument(kinds)

    def tensors(indices: Sequence[int]) -> list[str]:
        return [_name(i) for i in indices if isinstance(decoded.values[i], TensorValue)]

    for what, indices in (("input", decoded.inputs), ("output", decoded.outputs)):
        for name in tensors(indices):
            graph.values[graph.value(name)]["kind"] = what
    for number, step in enumerate(decoded.steps):
        title = f"instruction {number}"
        if isinstance(step, KernelStep):
            given, written = tensors(step.arguments), tensors(step.writes)
            graph.add(title, step.name, "cpu", given, written, reason="outside the delegates: it runs in numpy")
        elif isinstance(step, MoveStep):
            graph.add(title, "move", "cpu", tensors([step.source]), tensors([step.target]))
        elif isinstance(step, DelegateStep):
            runner, flat = runners[step.delegate], parts.flats.pop(step.delegate, None)
            if isinstance(runner, VulkanRunner) and flat is not None:
                _add_delegate(document, graph, runner, flat, step, kinds)
                graph.begin(str, kinds)
            else:
                where = "vulkan" if isinstance(runner, VulkanRunner) else "vgf"
                name = f"delegate {step.delegate}"
                graph.add(
                    name, decoded.delegates[step.delegate].backend, where, tensors(step.inputs), tensors(step.outputs)
                )
                if isinstance(runner, GraphRunner) and step.delegate not in parts.regions:
                    parts.regions[step.delegate] = len(document["regions"])
                    about = f"{runner.constant_bytes} bytes of constants"
                    add_region(document, graph, "vgf", [name], about)
    add_graph(document, graph)


def _add_delegate(
    document: dict[str, Any],
    graph: GraphDocument,
    runner: VulkanRunner,
    flat: Flat,
    step: DelegateStep,
    kinds: dict[str, Kind],
) -> None:
    """Add the nodes and plans inside a Vulkan delegate. Value names get the delegate's number as a prefix, except those
    at its border, which are the method's."""
    inputs, outputs = runner.borders
    outside = dict(zip((*inputs, *outputs), map(_name, (*step.inputs, *step.outputs)), strict=True))

    def named(name: str) -> str:
        return outside.get(name) or f"delegate {step.delegate}: {name}"

    known = {name: kinds[outside[name]] for name in inputs if outside[name] in kinds}
    for island in flat.islands:
        known |= {port.name: (port.dtype, port.shape) for port in island.plan.ports}
    inner = {**value_kinds(runner.model, known), **known}
    graph.begin(named, {**kinds, **{named(name): kind for name, kind in inner.items()}})
    for name in runner.model.graph.weights:
        graph.values[graph.value(name)]["kind"] = "weight"
    add_statistics(document, graph, runner.model.graph)
    graph.add_nodes(flat.placements)
    add_islands(document, flat, graph)


def _add_runs(
    document: dict[str, Any],
    decoded: DecodedMethod,
    resources: ContextResources,
    runners: Sequence[Runner],
    parts: _Parts,
    run: Run,
    runs: int,
) -> None:
    traces = [_traced(decoded, resources, runners, parts, run)]  # the first run records
    islands = list(enumerate(parts.islands))
    ran = all(k in parts.values for k, _ in islands)  # none is in a branch that was not taken

    def sample() -> list[list[float]]:
        traces.append(_traced(decoded, resources, runners, parts, run))
        return [island.profile(parts.values[k]) for k, island in islands] if ran else []

    samples = add_measured(document, resources.vulkan.capabilities, runs, sample)
    document["runs"] = [run_document(trace) for trace in traces[1:]]
    if ran:
        add_times(document, samples, least_times(document, parts.islands))
    else:
        document["notes"].append("Some delegates did not run, so that nothing is timed alone.")


def _traced(
    decoded: DecodedMethod, resources: ContextResources, runners: Sequence[Runner], parts: _Parts, run: Run
) -> RunTrace:
    """Run once with each instruction as a step. Delegate calls that are usually submitted together are submitted one by
    one."""
    tracer = Tracer(resources.vulkan, parts.islands)

    def call(one: DelegateCall) -> None:
        tracer.values = {}
        number = parts.regions.get(one.step.delegate)
        if number is not None and one.runner.can_stage:
            tracer.alone(one, {}, {}, number)
            one.finish()
        else:
            one.run()
        runner = one.runner
        mine = [island for e in runner.executables() for island in flatten(e).islands]
        for number, island in enumerate(parts.islands):
            if any(island is other for other in mine):
                parts.values[number] = tracer.values

    def around(number: int, step: Bound) -> Bound:
        owner = getattr(step, "__self__", None)
        calls = owner.calls if isinstance(owner, ChainedCalls) else [owner] if isinstance(owner, DelegateCall) else None

        def timed() -> int | None:
            if calls is not None:
                for one in calls:
                    tracer.span(one.title, functools.partial(call, one))
                return None
            return tracer.span(f"cpu: {getattr(decoded.steps[number], 'name', 'move')}", step)

        return timed

    vulkan = [runner for runner in runners if isinstance(runner, VulkanRunner)]
    for runner in vulkan:
        runner.watch = tracer
    try:
        return tracer.whole(lambda: run(around))
    finally:
        for runner in vulkan:
            runner.watch = None


def _name(index: int) -> str:
    return f"value {index}"
