"""Determines which of the offered nodes a released partitioner would take, and why it declines the others.

A released partitioner reads a whole graph. Nodes that are not offered get another target for the duration of the call,
so that neither its operator table nor its patterns match them: its proposal then contains offered nodes only. The graph
is restored when the call returns. The reasons are captured where the partitioners log them.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from executorch.backends.vulkan import patterns as vulkan_patterns
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanSupportedOperators
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.backend.utils import WhyNoPartitionReporter
from torch.export.exported_program import ExportedProgram

from vkep.executorch.export.edge import calls, graph_modules

TAG = "delegation_tag"
#: the logging methods belong to the classes, not to the objects: one call at a time
_asking = threading.Lock()
#: the pattern graphs are the same each time; creating them exports each pattern again, which takes seconds
_pattern_graphs = functools.cache(vulkan_patterns.all_fusable_graph_patterns)


def placed_elsewhere(*arguments: Any) -> Any:
    """The placeholder target of a node that is not offered."""
    raise AssertionError("a node kept from a partitioner was run")


@dataclass(frozen=True)
class Proposal:
    """The partitions that a partitioner would make, and its reasons for the nodes that it would not take."""

    partitions: tuple[tuple[torch.fx.Node, ...], ...]
    reasons: dict[torch.fx.Node, str]

    @property
    def nodes(self) -> set[torch.fx.Node]:
        """The nodes of all partitions."""
        return {node for partition in self.partitions for node in partition}


def propose(partitioner: Partitioner, program: ExportedProgram, offered: Collection[torch.fx.Node]) -> Proposal:
    """Return the proposal of ``partitioner`` for the nodes ``offered``. The program and its tags are unchanged."""
    modules = graph_modules(program.graph_module)
    with _asking, ExitStack() as stack:
        reasons = stack.enter_context(_reasons())
        stack.enter_context(_patterns_made_once())
        stack.enter_context(_quiet())
        for module in modules:
            stack.enter_context(_hidden([node for node in calls(module) if node not in offered]))
        tags: dict[tuple[int, str], list[torch.fx.Node]] = {}
        try:
            result = partitioner.partition(program)
        finally:
            for index, module in enumerate(modules):
                for node in module.graph.nodes:
                    tag = node.meta.pop(TAG, None)
                    if tag is not None and node.op == "call_function":
                        tags.setdefault((index, tag), []).append(node)
        partitions = tuple(tuple(nodes) for (_, tag), nodes in tags.items() if tag in result.partition_tags)
    taken = {node for partition in partitions for node in partition}
    return Proposal(partitions, {node: why for node, why in reasons.items() if node in offered and node not in taken})


def fused_patterns(module: torch.fx.GraphModule) -> list[set[torch.fx.Node]]:
    """The sets of nodes that the Vulkan delegate's lowering fuses into one operator."""
    with _asking, _patterns_made_once():
        return [set(match.all_nodes) for match in vulkan_patterns.get_all_fusable_subgraphs(module)]


@contextmanager
def _patterns_made_once() -> Iterator[None]:
    original = vulkan_patterns.all_fusable_graph_patterns
    vulkan_patterns.all_fusable_graph_patterns = _pattern_graphs
    try:
        yield
    finally:
        vulkan_patterns.all_fusable_graph_patterns = original


@contextmanager
def _hidden(nodes: Collection[torch.fx.Node]) -> Iterator[None]:
    targets = {node: node.target for node in nodes}
    try:
        for node in targets:
            node.target = placed_elsewhere
        yield
    finally:
        for node, target in targets.items():
            node.target = target


@contextmanager
def _reasons() -> Iterator[dict[torch.fx.Node, str]]:
    """Collect the first reason that a partitioner logs for a node, while the context lasts."""
    found: dict[torch.fx.Node, str] = {}
    with (
        _reported(VulkanSupportedOperators, "log_skip", found),
        _reported(WhyNoPartitionReporter, "report_reject", found),
    ):
        yield found


@contextmanager
def _reported(owner: type, method: str, found: dict[torch.fx.Node, str]) -> Iterator[None]:
    original: Callable[..., Any] = getattr(owner, method)

    def report(self: Any, node: torch.fx.Node, reason: str) -> Any:
        found.setdefault(node, " ".join(str(reason).split()))
        return original(self, node, reason)

    setattr(owner, method, report)
    try:
        yield
    finally:
        setattr(owner, method, original)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the partitioners' own logs: they are called several times, and the export's report has the reasons
    once."""

    def is_ours_to_say(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or "partitioner" not in record.pathname

    loggers = [logging.getLogger(), logging.getLogger("executorch.backends.arm.tosa.partitioner")]
    for logger in loggers:
        logger.addFilter(is_ours_to_say)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_ours_to_say)
