"""A session's reports: where each node runs, and its memory."""

from __future__ import annotations

from dataclasses import replace

from vkep.session.reports.introspection import flatten
from vkep.session.reports.report import GraphReport, IslandReport, MemoryReport, Report, node_reports
from vkep.session.session_state import SessionState


def report_of(state: SessionState) -> Report:
    """Where each node runs and why, for the signature that the session planned last."""
    latest, delegate = state.graph.latest, state.delegate
    base = Report(model=state.model.source, device=delegate.capabilities.name, context=delegate.context.label)
    if latest is None:
        waiting = [v.name for v in state.inputs.values() if not v.is_static]
        note = f"not planned yet: the sizes of {waiting} are open until a run gives them"
        return replace(base, note=note)
    flat, policy = flatten(latest), state.planner.policy
    return replace(
        base,
        nodes=node_reports(flat.placements),
        islands=[IslandReport.of(i.plan, len(i.nodes)) for i in flat.islands],
        cpu_engine=flat.engines.pop() if flat.engines else "",
        graphs=[
            GraphReport(len(g.nodes), g.graph.operations, g.vgf_bytes, g.constant_bytes, g.shared_bytes)
            for g in flat.graphs
        ],
        graph_source=policy.graphs,
        why_no_graphs=policy.why_not,
        kompute=[region.report() for region in flat.kompute],
    )


def memory_of(state: SessionState) -> MemoryReport:
    """The device arena of the session's context, and the weights on the device."""
    graphs = flatten(state.graph.latest).graphs if state.graph.latest else []
    return MemoryReport.of(
        state.delegate,
        shared_bytes=sum(g.shared_bytes for g in graphs),
        graph_constant_bytes=sum(g.constant_bytes for g in graphs),
    )
