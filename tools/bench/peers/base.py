"""The interface of a peer: it opens a model and runs it on numpy arrays."""

from __future__ import annotations

import importlib.metadata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from vkep.models.builder import Array


class Unavailable(Exception):
    """The peer cannot run here, or not this model; the message says why."""


class Peer(ABC):
    """One engine with one model open. Lives in a worker process; a worker opens one model."""

    packages: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        """Open the model; `inputs` are those of every later run.

        Raises:
            Unavailable: if this engine cannot run the model.
        """

    @abstractmethod
    def run(self) -> dict[str, Array]:
        """Run once, from numpy inputs to numpy outputs by name."""

    def repeat(self) -> None:
        """The call that is timed: a whole run, unless a peer measures a part of it (`placement` then says so)."""
        self.run()

    def work(self) -> list[tuple[int, int, str]]:
        """The operations, the bytes, and whether the arithmetic is float16, of each step of a run, where the engine
        reports them."""
        return []

    @abstractmethod
    def placement(self) -> str:
        """Where the model's nodes ran, in a few words; called after the first run."""

    def close(self) -> None:  # noqa: B027 (nothing to release is usual)
        """Release what `open` made."""

    def versions(self) -> dict[str, str]:
        """Versions of the packages that do the work."""
        found = {}
        for package in self.packages:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                found[package] = "not installed as a package"
        return found


def relative_error(result: Mapping[str, Array], reference: Mapping[str, Array]) -> float:
    """The largest |result - reference| over all outputs, each relative to its reference's largest magnitude.

    An output that is missing, has another number of elements, or is not finite where the reference is, counts as
    infinity.
    """
    worst = 0.0
    for name, expected in reference.items():
        got = result.get(name)
        if got is None or got.size != expected.size:
            return float("inf")
        difference = np.abs(got.reshape(expected.shape).astype(np.float64) - expected.astype(np.float64))
        error = float(np.max(difference, initial=0.0)) / (float(np.max(np.abs(expected), initial=0.0)) or 1.0)
        worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst


def count_words(kinds: Counter[str]) -> str:
    """`{"Cast": 1, "Gather": 2}` as "2 Gather, 1 Cast"."""
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
