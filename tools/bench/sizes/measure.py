"""One model in a session of vkep or of ONNX Runtime with vkep's provider, at sizes that it meets for the first time."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import vkep
from tools.bench.sizes.networks import NETWORKS, Array
from tools.half_precision.__main__ import relative_error
from tools.ort_cpu import cpu_session
from vkep.device.pipelines import PipelineStore
from vkep.session.planning.planner import Planner

#: sizes that a session runs; the times and pipelines after the first of them count, whose plans are made
SIZES, _FIRST = 10, 3
_AGAIN = 3
#: seconds for these runs of one size: of a slow model there are fewer
_LONGEST = 4.0
#: the largest relative error of results
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Task:
    """A model, and the way that it is run: plainly, or by ONNX Runtime."""

    name: str
    folder: Path
    by_ort: bool = False


@dataclass
class Row:
    """What was measured of a task."""

    name: str
    by_ort: bool
    plans: int = 0  #: after `SIZES` sizes: of the part of the model that has most
    pipelines: int = 0  #: created after the third size
    new: float = math.nan  #: a run of a size that is new over the same size again: the median
    more: float = math.nan  #: the same as a difference, in milliseconds
    again: float = math.nan  #: milliseconds of a run of a size that was seen
    host: float = (
        math.nan
    )  #: milliseconds of the caller's processor time that a new size takes beyond the same size again: the median
    on_cpu: int = 0  #: nodes
    error: float = 0.0  #: relative, of the worst output at the worst size
    note: str = ""  #: why it was not measured

    @property
    def faults(self) -> list[str]:
        """What misses its bar."""
        found = [f"{self.plans} plans"] * (self.plans > 3) + [f"{self.pipelines} pipelines"] * (self.pipelines > 0)
        found += [f"new {self.new:.2f}"] * (self.new > 1.15 and self.more > 1) + [f"host {self.host:.1f}"] * (
            self.host > 1
        )
        return found + [f"error {self.error:.1e}"] * (not self.error <= TOLERANCE)


class _Counts:
    """Plans that were made, by part of the model, and pipelines."""

    def __init__(self) -> None:
        self.plans: Counter[object] = Counter()
        self.pipelines = 0

    @property
    def most(self) -> int:
        return max(self.plans.values(), default=0)


@contextlib.contextmanager
def _counted() -> Iterator[_Counts]:
    counts, plan, make = _Counts(), Planner.plan, PipelineStore._make

    def planned(self: Planner, nodes: Any, known: Any, outputs: Any, *given: Any, **more: Any) -> Any:
        counts.plans[tuple([node.outputs for node in nodes])] += 1
        return plan(self, nodes, known, outputs, *given, **more)

    def made(self: PipelineStore, keys: Any, progress: Any) -> None:
        counts.pipelines += len(keys)
        make(self, keys, progress)

    Planner.plan, PipelineStore._make = planned, made  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        Planner.plan, PipelineStore._make = plan, make  # type: ignore[method-assign]


def measure(task: Task) -> Row:
    """Export the model where its file is missing, and measure it. No exception leaves it: the row has the reason."""
    row, network = Row(task.name, task.by_ort), NETWORKS[task.name]
    path = task.folder / f"{task.name.replace(' ', '_').replace('@', '.')}.onnx"
    step = "export"
    try:
        if not path.exists():
            task.folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}.part")
            network.write(part)
            part.rename(path)
        step = "open"
        peer = cpu_session(path)
        with _counted() as counts, contextlib.ExitStack() as ends:
            session, on_cpu = _by_ort(path) if task.by_ort else _plain(path, ends)
            inputs, rng = session.get_inputs(), np.random.default_rng(7)
            names = sorted({d for info in inputs for d in info.shape if isinstance(d, str)})
            step, times, before = "run", list[tuple[_Time, _Time]](), 0
            seen = set[tuple[int, ...]]()
            for k in range(SIZES):
                dims = network.draw(names, rng)
                for _ in range(50):  # a size that is new
                    if tuple(dims.values()) not in seen:
                        break
                    dims = network.draw(names, rng)
                seen.add(tuple(dims.values()))
                feeds = network.feeds(inputs, dims, rng)
                step = f"run of {dims}"
                results, first = _run(session, feeds)
                repeats = [_run(session, feeds)[1] for _ in range(min(_AGAIN, 1 + int(1e3 * _LONGEST / first.wall)))]
                again = _Time(*map(statistics.median, zip(*repeats, strict=True)))
                if k >= _FIRST:
                    times.append((first, again))
                if k + 1 == _FIRST:
                    before = counts.pipelines
                row.error = max(row.error, relative_error(results, peer.run(None, feeds)))
            row.plans, row.pipelines, row.on_cpu = counts.most, counts.pipelines - before, on_cpu()
        row.new = statistics.median([a.wall / b.wall for a, b in times])
        row.more = statistics.median([a.wall - b.wall for a, b in times])
        row.host = statistics.median([a.host - b.host for a, b in times])
        row.again = statistics.median([b.wall for _, b in times])
    except Exception as error:
        row.note = " ".join(f"{step}: {type(error).__name__}: {error}".split())[:300]
    return row


def _plain(path: Path, ends: contextlib.ExitStack) -> tuple[Any, Callable[[], int]]:
    session = ends.enter_context(vkep.InferenceSession(path, save_plans=False))
    return session, lambda: sum(node.where == "cpu" for node in session.report().nodes)


def _by_ort(path: Path) -> tuple[Any, Callable[[], int]]:
    import onnxruntime

    import vkep.ort

    vkep.ort.register()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    ours = vkep.ort.get_ep_name()
    session = onnxruntime.InferenceSession(str(path), options, providers=[ours], enable_fallback=0)
    parts = session.get_provider_graph_assignment_info()
    return session, lambda: sum(len(part.get_nodes()) for part in parts if part.ep_name != ours)


class _Time(NamedTuple):
    """Milliseconds of a run: of the clock, and of processor time of the thread that calls, which other work does not disturb."""

    wall: float
    host: float


def _run(session: Any, feeds: dict[str, Array]) -> tuple[Any, _Time]:
    feeds = {name: array.copy() for name, array in feeds.items()}
    start, before = time.perf_counter(), time.thread_time()
    results = session.run(None, feeds)
    return results, _Time(1e3 * (time.perf_counter() - start), 1e3 * (time.thread_time() - before))


def lost(task: Task, why: str) -> Row:
    """The row of a task whose process ended, or which took too long."""
    return Row(task.name, task.by_ort, note=why)


_COLUMNS: Sequence[Callable[[Row], str]] = (
    lambda row: str(row.plans),
    lambda row: f"{row.new:.2f}",
    lambda row: f"{row.more:.1f}",
    lambda row: str(row.pipelines),
    lambda row: str(row.on_cpu),
    lambda row: f"{row.host:.2f}",
)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The rows in Markdown, of a model both ways in one line."""
    ways: dict[str, dict[bool, Row]] = {}
    for row in rows:
        ways.setdefault(row.name, {})[row.by_ort] = row
    yield "| model | kind | plans | new over again | ms more | pipelines | on the CPU | host ms |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, found in ways.items():
        both = [found[way] for way in (False, True) if way in found]
        if all(row.note for row in both):
            yield f"| {name} | {NETWORKS[name].kind} | {both[0].note[:150]} | | | | | |"
            continue
        columns = [", ".join("-" if row.note else text(row) for row in both) for text in _COLUMNS]
        yield f"| {name} | {NETWORKS[name].kind} | {' | '.join(columns)} |"


def written(text: str, rows: Sequence[Row]) -> str:
    """A document whose table of models has the rows that were measured in place of those of the same models; rows of models that
    it does not have are last."""
    new = {line.split(" | ")[0]: line for line in list(table(rows))[2:]}
    lines = [new.pop(line.split(" | ")[0], line) for line in text.split("\n")]
    last = max((k for k, line in enumerate(lines) if line.split(" | ")[0][2:] in NETWORKS), default=len(lines) - 1)
    return "\n".join([*lines[: last + 1], *new.values(), *lines[last + 1 :]])
