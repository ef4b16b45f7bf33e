"""Measures which tilings are fastest on a device, for the problems of a model.

Every candidate of every problem is planned and profiled in the model itself, with its fused epilogues and the usual
state of caches. Problems are measured together, so there are as many sessions as the problem with the most candidates
has. A candidate that seems faster is measured once more, alternating with the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vkep.graph.load import ModelSource
from vkep.kernels.tuning import Choice, Trial
from vkep.session.options import SessionOptions
from vkep.session.session import InferenceSession
from vkep.session.session_state import Feed

#: a choice must take less than this fraction of the default's time
_WORTH = 0.97
#: ``progress(done, total, what)``
Progress = Callable[[int, int, str], None]
Feeds = Callable[[InferenceSession], Mapping[str, Feed]]


@dataclass(frozen=True)
class Tuned:
    """One problem: the choice (None: the default is as fast), and nanoseconds of its dispatches with the default and
    with it, from the second measurement where there was one."""

    problem: str
    labels: tuple[str, ...]
    candidates: int
    choice: Choice | None
    default_ns: float
    chosen_ns: float

    def to_dict(self) -> dict[str, Any]:
        """The fields, for ``--json``."""
        return asdict(self)


def tune(
    model: ModelSource, feeds: Feeds, options: SessionOptions, runs: int = 5, progress: Progress | None = None
) -> list[Tuned]:
    """Measure the problems of a model. Nothing is stored.

    Args:
        feeds: makes the inputs of a session's runs; tilings are tuned for their shapes.
        options: of the sessions; ``tuned`` is replaced.
        runs: profiled runs of each candidate; the least time of each dispatch counts.

    Raises what `InferenceSession` and its runs raise.
    """
    asking = Trial()
    if progress is not None:
        progress(0, 0, "the default tilings")
    with _session(model, options, asking) as session:
        default = _Times(session, feeds(session))
        default.measure(runs)
    questions = asking.asked
    rounds = max((len(q.candidates) for q in questions.values()), default=0)
    best: dict[str, tuple[float, Choice]] = {}
    for number in range(rounds):
        if progress is not None:
            progress(number, rounds + 1, f"{len(questions)} problems")
        trial = {key: q.candidates[number] for key, q in questions.items() if number < len(q.candidates)}
        with _session(model, options, trial) as session:
            times = _Times(session, feeds(session))
            times.measure(runs)
        for key, choice in trial.items():
            best[key] = min(best.get(key, (float("inf"), choice)), (times.of(questions[key].labels), choice))
    wanted = {key: choice for key, (time, choice) in best.items() if time < _WORTH * default.of(questions[key].labels)}
    after = default
    if wanted:
        if progress is not None:
            progress(rounds, rounds + 1, "the faster ones again")
        default, after = _in_turn(model, feeds, options, wanted, runs)
    if progress is not None:
        progress(rounds + 1, rounds + 1, "done")
    found = []
    for key, question in questions.items():
        before = default.of(question.labels)
        now = after.of(question.labels) if key in wanted else before
        worth = key in wanted and now < _WORTH * before
        labels = tuple(sorted(question.labels))
        chosen = wanted[key] if worth else None
        found.append(Tuned(key, labels, len(question.candidates), chosen, before, now if worth else before))
    return found


def _in_turn(
    model: ModelSource, feeds: Feeds, options: SessionOptions, wanted: Mapping[str, Choice], runs: int
) -> tuple[_Times, _Times]:
    with _session(model, options, {}) as plain, _session(model, options, wanted) as tuned:
        both = _Times(plain, feeds(plain)), _Times(tuned, feeds(tuned))
        for _ in range(runs):
            for times in both:
                times.measure(1)
    return both


def _session(model: ModelSource, options: SessionOptions, tuned: Mapping[str, Choice]) -> InferenceSession:
    return InferenceSession(model, options, tuned=tuned)


class _Times:
    """The minimum nanoseconds of each dispatch over a session's runs, by label."""

    def __init__(self, session: InferenceSession, feeds: Mapping[str, Feed]) -> None:
        self._session, self._feeds = session, feeds
        self._best: list[tuple[str, float]] = []
        self._by_label: dict[str, float] = {}

    def measure(self, runs: int) -> None:
        for _ in range(runs):
            sample = self._session.profile(self._feeds)
            labels = [d.label for island in self._session.islands() for d in island.plan.dispatches]
            times = [time for island in sample for time in island]
            before = [time for _, time in self._best] or times
            self._best = [(label, min(a, b)) for label, a, b in zip(labels, times, before, strict=True)]
        self._by_label = {}
        for label, time in self._best:
            self._by_label[label] = self._by_label.get(label, 0.0) + time

    def of(self, labels: set[str]) -> float:
        """The sum over the dispatches of these labels; infinity where there are none."""
        return sum(self._by_label.get(label, 0.0) for label in labels)
