"""Interleaved rounds over the peers of one model, and the statistics of their times."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.bench.remote import PeerUnavailable, Worker, WorkerFailed

if TYPE_CHECKING:
    from vkep.device.measure.limits import DeviceLimits

TURN_MS = 100.0  # minimum seconds of a peer's turn in a round
MOST_RUNS_A_TURN = 20
SETTLE_S = 0.03  # threads of the previous peer still spin for a while after their last run
#: seconds of runs at a turn's start that are not timed: they fill the caches and raise an idle GPU's clock
WARM_S = 0.15


@dataclass
class Result:
    """One model on one peer.

    Attributes:
        status: "measured", "unavailable" (it cannot run here) or "failed".
        detail: why not measured, or where the nodes ran.
        samples_ms: the timed runs, in order.
        turn: how many of them make a turn.
        fresh_process_ms: from starting the process to its first answer, imports included.
        relative_error: largest error against the stored reference, relative to the reference's largest magnitude.
        limit_ms: the least time for the model's work on the device, by the limits measured in this run and the operations
            and bytes that vkep's plan counts (of whole runs: data is on the device).
    """

    model: str
    peer: str
    status: str = "measured"
    detail: str = ""
    samples_ms: list[float] = field(default_factory=list)
    turn: int = 1
    fresh_process_ms: float = math.nan
    import_ms: float = math.nan
    open_ms: float = math.nan
    first_run_ms: float = math.nan
    relative_error: float = math.nan
    limit_ms: float = math.nan
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def turns_ms(self) -> list[float]:
        """Median latency of each turn."""
        starts = range(0, len(self.samples_ms), self.turn)
        return [statistics.median(self.samples_ms[at : at + self.turn]) for at in starts]

    @property
    def median_ms(self) -> float:
        """Median latency, NaN without samples."""
        return statistics.median(self.samples_ms) if self.samples_ms else math.nan

    @property
    def of_limit(self) -> float:
        """The limit over the median: 1 is as fast as the device allows. NaN where either is not known."""
        return self.limit_ms / self.median_ms

    def percentile_ms(self, percent: float) -> float:
        """Latency below which `percent` of the runs are (nearest rank), NaN without samples."""
        if not self.samples_ms:
            return math.nan
        ordered = sorted(self.samples_ms)
        return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]

    def as_json(self) -> dict[str, Any]:
        """All fields, the median and its share of the limit, with null for NaN and infinities."""
        fields = asdict(self) | {"median_ms": self.median_ms, "of_limit": self.of_limit}
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in fields.items()
        }


def runs_a_turn(estimate_ms: float) -> int:
    """The number of runs in a turn: one for a slow model, more for a fast one."""
    return min(MOST_RUNS_A_TURN, max(1, math.ceil(TURN_MS / max(estimate_ms, 1e-3))))


def measure_model(
    model: Path,
    peers: Sequence[str],
    rounds: int,
    environment: Mapping[str, str],
    timeout: float,
    progress: Callable[[str], None] = lambda text: None,
    limits: DeviceLimits | None = None,
) -> list[Result]:
    """Measure one model with each peer.

    Args:
        model: an .onnx file with its .npz (in_*, out_*) beside it.
        peers: names of `tools.bench.peers.PEERS`.
        rounds: how many times every peer gets its turn.
        environment: the workers' environment variables.
        timeout: seconds to wait for one answer of a worker.
        progress: called with a short description of each step.
        limits: what the device can do, for the limit of the model's work.

    Returns:
        A result for each peer, in the given order; those that could not be measured say why.
    """
    results = {peer: Result(model.stem, peer) for peer in peers}
    with ExitStack() as stack:
        ready: dict[str, Worker] = {}
        for peer in peers:
            progress(f"{model.stem}: opening with {peer}")
            # One after another, so that no peer's start disturbs another's.
            worker = stack.enter_context(Worker(peer, dict(environment), timeout))
            try:
                _open(worker, model, results[peer], limits)
                ready[peer] = worker
            except (PeerUnavailable, WorkerFailed) as why:
                _give_up(results[peer], why)
        for number in range(rounds):
            progress(f"{model.stem}: round {number + 1} of {rounds}")
            # Every other round in reverse order, so that each peer follows each neighbour equally often.
            for peer, worker in list(ready.items())[:: -1 if number % 2 else 1]:
                time.sleep(SETTLE_S)
                result = results[peer]
                try:
                    result.samples_ms += worker.ask(do="run", warm_s=WARM_S, count=result.turn)["ms"]
                except (PeerUnavailable, WorkerFailed) as why:
                    _give_up(results[peer], why)
                    del ready[peer]
    # The work is the model's, whichever engine runs it; an engine that counts it reports it.
    known = [result.limit_ms for result in results.values() if not math.isnan(result.limit_ms)]
    for result in results.values():
        result.limit_ms = min(known, default=math.nan)
    return list(results.values())


def _open(worker: Worker, model: Path, result: Result, limits: DeviceLimits | None) -> None:
    """Open the model in the worker and fill in the result."""
    answer = worker.ask(do="open", peer=worker.peer, model=str(model.resolve()))
    result.fresh_process_ms = (time.perf_counter() - worker.started) * 1e3
    result.detail = answer["placement"]
    result.versions = answer["versions"]
    for key in ("import_ms", "open_ms", "first_run_ms", "relative_error"):
        setattr(result, key, float(answer[key]))
    if limits is not None and answer["work"]:
        result.limit_ms = sum(limits.nanoseconds(*piece) for piece in answer["work"]) / 1e6
    # The second and third run: pipelines exist and threads are awake.
    result.turn = runs_a_turn(min(worker.ask(do="run", warm_s=0.0, count=2)["ms"]))


def _give_up(result: Result, why: Exception) -> None:
    result.status = "unavailable" if isinstance(why, PeerUnavailable) else "failed"
    result.detail = str(why)
    result.samples_ms = []
