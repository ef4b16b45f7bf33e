"""Collects the document of a page (`vkep.view`) from an answer of a language model, token by token."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vkep.generation.batch import Answer, Batch
from vkep.session import InferenceSession
from vkep.session.execution.executor import IslandExecutor
from vkep.session.reports.introspection import Flat, flatten
from vkep.session.reports.tracing import RunTrace, Tracer
from vkep.session.reports.viewing import add_context, add_islands, add_measured, least_times, run_document
from vkep.view.document import add_graph, model_facts, new_document
from vkep.view.graph import GraphDocument, value_kinds


def answer_document(
    sessions: Sequence[InferenceSession], title: str, batch: Callable[[], Batch], add: Callable[[Batch], Answer]
) -> dict[str, Any]:
    """The document of an answer; ``add`` starts it in a new batch. It is generated three times: to plan, to record, to
    measure.

    Raises as `Batch.step`.
    """
    _made(batch, add, None)
    delegate = sessions[0]._parts.delegate
    document = new_document(title, delegate.capabilities.name, delegate.context.label)
    tracer: Tracer | None = None
    if delegate.context.device.family.timestamp_valid_bits:
        try:
            for _ in range(2):  # the first run records
                tracer = Tracer(delegate, [])
                for session in sessions:
                    session._parts.watch = tracer
                document["tokens"] = _made(batch, add, tracer)
        finally:
            for session in sessions:
                session._parts.watch = None
    islands = tracer.islands if tracer is not None else []
    _add_graphs(document, sessions, islands)
    if tracer is not None:
        document["runs"] = [run_document(tracer.run)]
        add_measured(document, delegate.capabilities, 1, lambda: None)
        _add_times(document, tracer.run, least_times(document, islands))
    add_context(document, delegate, [delegate.context])
    return document


def _made(batch: Callable[[], Batch], add: Callable[[Batch], Answer], tracer: Tracer | None) -> list[dict[str, Any]]:
    """Generate the answer; returns its steps: text, begin and end."""
    steps: list[dict[str, Any]] = []
    own = batch()
    own.runs_ahead = False  # a step's dispatches are shown within it
    try:
        answer = add(own)

        def run() -> None:
            while not answer.ended:
                if tracer is None:
                    own.step()
                    continue
                events = tracer.span("step", own.step)
                text = "".join(e.text for e in events)
                token = next((e.token for e in events if e.token is not None), None)
                name = f"prompt of {len(answer.prompt)} tokens" if not steps else f"token {len(answer.tokens)}"
                span = tracer.run.host[-1] = replace(tracer.run.host[-1], name=f"{name} {text!r}" if text else name)
                steps.append({"text": text, "token": token, "start": span.start, "end": span.end})

        if tracer is None:
            run()
        else:
            tracer.whole(run)
        if answer.error is not None:
            raise answer.error
    finally:
        own.close()
    return steps


def _add_graphs(
    document: dict[str, Any], sessions: Sequence[InferenceSession], islands: Sequence[IslandExecutor]
) -> None:
    graph = GraphDocument({})
    left = list(islands)
    for number, session in enumerate(sessions):
        latest, model = session._parts.graph.latest, session.model
        flat = flatten(latest) if latest is not None else Flat([])
        names = {node.name for node in model.graph.nodes}
        mine = [i for i in left if any(node.name in names for node in i.nodes)]
        left = [i for i in left if not any(i is other for other in mine)]
        prefix = f"model {number}: " if len(sessions) > 1 else ""
        known = {p.name: (p.dtype, p.shape) for i in [*mine, *flat.islands] for p in i.plan.ports}
        kinds = {**value_kinds(model, known), **known}
        graph.begin(prefix.__add__, {prefix + name: kind for name, kind in kinds.items()})
        graph.add_model(model.graph, flat.placements)
        document["model"] |= {prefix + name: value for name, value in model_facts(model).items()}
        add_islands(document, replace(flat, islands=mine), graph)
    add_graph(document, graph)


def _add_times(document: dict[str, Any], run: RunTrace, limits: Sequence[float]) -> None:
    """Each dispatch's time: the median over the steps that contain it. Overlapping dispatches count with their whole
    time."""
    samples: dict[tuple[int, int], list[float]] = {}
    for span in run.gpu:
        samples.setdefault((span.island, span.dispatch), []).append(span.end - span.start)
    for dispatch, limit in zip(document["dispatches"], limits, strict=True):
        found = samples.get((dispatch["island"], dispatch["index"]))
        dispatch |= {"ns": statistics.median(found) if found else 0.0, "limit_ns": limit, "samples": found or []}
    document["notes"].append(
        "A dispatch's time is the median over the steps of this answer, not of the dispatch alone."
    )
