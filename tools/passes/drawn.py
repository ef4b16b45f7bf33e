"""Checks the passes of random networks (`tools.fuzz.networks`), and shrinks one whose passes change a result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from tools.fuzz.networks.graph import Network
from tools.fuzz.networks.meanings import evaluate
from tools.fuzz.networks.strategy import networks
from tools.passes.check import Difference, Report
from tools.passes.models import check_model
from tools.plan_devices import DEVICES

#: element types of networks, as `networks` takes them
KINDS = ("float32", "float16", "mixed")


@dataclass
class Drawn:
    """The result of a campaign: the sum of all reports, and the smallest network found whose passes change a result."""

    total: Report = field(default_factory=Report)
    network: Network | None = None
    where: str = ""  #: the device
    difference: Difference | None = None


def check_random(count: int, seed: int = 0, kind: str = "float32") -> Drawn:
    """Check the passes of ``count`` networks on each device. The results before the passes are compared with those in float64."""
    found = Drawn()

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(networks(kind))
    def check(network: Network) -> None:
        feeds = network.feeds[0]
        expected = evaluate(network.model, feeds)
        for device, caps in DEVICES.items():
            report = check_model(network.model, caps, feeds, seed, expected)
            if found.network is None:
                _add(found.total, report)
            if report.differences:
                found.network, found.where, found.difference = network, device, report.differences[0]
                raise AssertionError(report.differences[0].name)

    try:
        check()
    except AssertionError:
        if found.network is None:
            raise
    return found


def _add(total: Report, report: Report) -> None:
    total.islands += report.islands
    total.passes += report.passes
    total.compared += report.compared
    total.refused += report.refused
    total.not_interpreted = Counter(total.not_interpreted + report.not_interpreted)
    total.differences += report.differences
