"""A capacity plan: the rate of a number of GPUs and its bottleneck, computed from measured rates."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path


@dataclass(frozen=True)
class Rates:
    """What one GPU (or worker) was measured to do.

    Attributes:
        model, device: what was measured, where.
        batch: rows of a run.
        bare: rows per second of a session in a loop.
        data: rows per second of each worker in a Ray Data job, ``workers`` of them at once.
        service: rows per second of each GPU behind Ray Serve; requests: requests per second.
        p99_ms: of those requests.
        proxy: requests per second of one Serve proxy and as many replicas, of a model that does next to nothing.
        start_s: from the start of an actor to its first answer.
        row_bytes: of a row's inputs and outputs.
    """

    model: str
    device: str
    batch: int
    workers: int
    bare: float
    data: float
    service: float
    requests: float
    p99_ms: float
    proxy: float
    start_s: float
    row_bytes: int

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Rates:
        """What `write` wrote. Raises ``ValueError`` for another file, ``OSError``."""
        known = {field.name for field in fields(cls)}
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or set(found) != known:
            raise ValueError(f"{path} is no file of rates: expected a JSON object with {sorted(known)}")
        return cls(**found)


@dataclass(frozen=True)
class Service:
    """A service that was measured: its rates are those of all of its GPUs (or workers), per second."""

    batch: int  #: most rows of a run
    replicas: int
    runs: int  #: that a replica has in progress
    gpus: int
    rows: float
    requests: float
    p99_ms: float

    @staticmethod
    def write(services: Sequence[Service], path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps([asdict(one) for one in services], indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> list[Service]:
        """What `write` wrote. Raises ``ValueError`` for another file, ``OSError``."""
        known = {field.name for field in fields(cls)}
        found = json.loads(path.read_text(encoding="utf-8"))
        if (
            not isinstance(found, list)
            or not found
            or any(not isinstance(one, dict) or set(one) != known for one in found)
        ):
            raise ValueError(f"{path} is no file of services: expected a JSON list of objects with {sorted(known)}")
        return [cls(**one) for one in found]


def with_fastest(rates: Rates, services: Sequence[Service]) -> Rates:
    """Rates with the service that answers most rows with each GPU, in place of the one that they were measured with."""
    best = max(services, key=lambda one: one.rows / one.gpus)
    return replace(rates, service=best.rows / best.gpus, requests=best.requests / best.gpus, p99_ms=best.p99_ms)


@dataclass(frozen=True)
class Site:
    """The installation: GPUs and network bandwidth of a node, nodes of one Ray cluster, hours between failures of a
    GPU."""

    gpus_per_node: int = 8
    network_gbit: float = 100
    nodes_per_cluster: int = 250
    hours_between_failures: float = 50_000


@dataclass(frozen=True)
class Plan:
    """The rates of ``gpus`` GPUs. Rows and requests are per second."""

    gpus: int
    nodes: int
    clusters: int
    data_rows: float
    data_limit: str
    service_rows: float
    service_limit: str
    rows_per_request: int  #: minimum number, so that the proxies are not the bottleneck
    node_gbit: float  #: network that a node's GPUs need at their full rate
    failures_a_day: float
    lost_rows_a_day: float  #: rows per second lost to repeated runs and to GPUs that restart


def plan(rates: Rates, gpus: int, site: Site = Site()) -> Plan:
    """The plan for a number of GPUs. Raises ``ValueError`` for less than one."""
    if gpus < 1:
        raise ValueError(f"gpus is {gpus}, expected at least 1")
    on_node = min(gpus, site.gpus_per_node)
    nodes = math.ceil(gpus / site.gpus_per_node)
    by_network = site.network_gbit * 1e9 / 8 / rates.row_bytes  # rows per second into a node
    data_node, data_limit = least((on_node * rates.data, "GPUs"), (by_network, "network of a node"))
    # with one proxy on each node; where proxies would be the bottleneck, clients put more rows into a request
    per_request = max(1, math.ceil(on_node * rates.service / rates.proxy))
    service_node, service_limit = least((on_node * rates.service, "GPUs"), (by_network, "network of a node"))
    if per_request > rates.batch:
        service_node, service_limit = least(
            (service_node, service_limit), (rates.proxy * rates.batch, "proxy of a node")
        )
    failures = gpus * 24 / site.hours_between_failures
    return Plan(
        gpus,
        nodes,
        math.ceil(nodes / site.nodes_per_cluster),
        data_node * gpus / on_node,
        data_limit,
        service_node * gpus / on_node,
        service_limit,
        min(per_request, rates.batch),
        on_node * rates.data * rates.row_bytes * 8 / 1e9,
        failures,
        failures * (rates.batch + rates.start_s * rates.data),
    )


def least(*limits: tuple[float, str]) -> tuple[float, str]:
    """The smallest rate, with its configuration."""
    return min(limits, key=lambda limit: limit[0])


def table(rates: Rates, plans: Sequence[Plan]) -> str:
    """The plans in Markdown, one column per plan."""
    rows = [
        ("nodes", [f"{p.nodes:,}" for p in plans]),
        ("Ray clusters", [f"{p.clusters:,}" for p in plans]),
        ("batch jobs, rows/s", [f"{p.data_rows:,.0f}" for p in plans]),
        ("limited by", [p.data_limit for p in plans]),
        ("service, rows/s", [f"{p.service_rows:,.0f}" for p in plans]),
        ("limited by", [p.service_limit for p in plans]),
        ("rows per request, at least", [f"{p.rows_per_request}" for p in plans]),
        ("network per node, Gbit/s", [f"{p.node_gbit:.3g}" for p in plans]),
        ("GPUs that fail per day", [f"{p.failures_a_day:.2g}" for p in plans]),
        ("rows per day that this costs", [f"{p.lost_rows_a_day:,.0f}" for p in plans]),
    ]
    head = [
        f"{rates.model} on {rates.device}: a session alone runs {rates.bare:,.1f} rows/s in runs of {rates.batch} rows. "
        f"Relative to it: {rates.data / rates.bare:.2f} for each of the {rates.workers} workers of a job, "
        f"{rates.service / rates.bare:.2f} for each GPU of a service (p99 {rates.p99_ms:.0f} ms)",
        "",
        "| | " + " | ".join(f"{p.gpus:,} GPUs" for p in plans) + " |",
        "|---|" + "---|" * len(plans),
    ]
    return "\n".join(head + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows])
