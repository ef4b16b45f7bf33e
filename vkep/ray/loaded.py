"""Open models of a service: versions by name on one device context, and runs that share a batch.

Independent of Ray: `vkep.ray.service` provides its metrics.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any

from onnx import TensorProto

from vkep.dtypes import from_onnx
from vkep.errors import InvalidInputError
from vkep.ray.batcher import Batcher
from vkep.ray.batches import rows_axis
from vkep.ray.bodies import Array, joined, shapes_of
from vkep.ray.kserve import STRINGS, ModelSpec, ProtocolError, TensorSpec, datatype
from vkep.ray.models import local, open_session, zeros
from vkep.session.replicas import RenewedSession

if TYPE_CHECKING:
    from vkep.graph.model import ValueInfo
    from vkep.ray.models import Source

logger = logging.getLogger("vkep.ray")

Feeds = Mapping[str, Array]
Results = dict[str, Array]
#: ``observe(model, version, rows, requests, seconds)``: called after each run
Observe = Callable[[str, str, int, int, float], None]


class LoadedModel:
    """One version of a model. Requests whose inputs agree in all but the first axis share a run, where that is an axis
    of rows."""

    def __init__(
        self,
        name: str,
        version: str,
        source: Source,
        options: Mapping[str, Any],
        *,
        pool: Executor,
        rows: int,
        wait_s: float,
        runs: int,
        observe: Observe,
    ) -> None:
        """``rows``: the maximum number of rows of one run; 1: requests do not share runs. ``wait_s``: how long the first
        request of a run waits for others. ``runs``: those that ``pool`` takes at once. Where no axis but that of
        rows is symbolic, runs of one row and of ``rows`` precede the first request. Raises as `vkep.InferenceSession`,
        and ``ValueError`` for a model whose inputs or outputs have no datatype in the protocol."""
        self._pool, self._observe = pool, observe
        self.runs_done = self.rows_done = 0
        self.renewed = RenewedSession(partial(open_session, local(source), options))
        try:
            session = self.renewed.session
            inputs, outputs = session.get_inputs(), session.get_outputs()
            graph = session.model.graph
            self.spec = ModelSpec(
                name,
                version,
                {v.name: tensor_spec(v) for v in graph.inputs},
                {v.name: tensor_spec(v) for v in graph.outputs},
            )
            self._rows = rows if isinstance(rows_axis(inputs, outputs), str) else 1
            self.batcher = Batcher(self._run_all, self._rows, wait_s, runs)
            for count in sorted({1, self._rows}):
                shapes = self._shapes(count)
                if shapes is not None:
                    self.run(zeros(session, shapes))
        except BaseException:
            self.renewed.close()
            raise

    def _shapes(self, rows: int) -> dict[str, list[int]] | None:
        """Shapes for a number of rows; None where other axes are symbolic, or an input has strings."""
        specs = self.spec.inputs.values()
        if any(spec.datatype == STRINGS for spec in specs) or any(
            size is None for spec in specs for size in spec.shape[self._rows > 1 :]
        ):
            return None
        return {spec.name: [rows if size is None else size for size in spec.shape] for spec in specs}

    def run(self, feeds: Feeds) -> Results:
        """One run, in this thread. Raises as `vkep.InferenceSession.run`."""
        started = time.perf_counter()
        results = self.renewed.run(None, feeds)
        self._ran(row_count(feeds), 1, started)
        return dict(zip(self.spec.outputs, results, strict=True))

    def _ran(self, rows: int, requests: int, started: float) -> None:
        self.runs_done += 1
        self.rows_done += rows
        self._observe(self.spec.name, self.spec.version, rows, requests, time.perf_counter() - started)

    async def infer(self, feeds: Feeds) -> Results:
        """The outputs for one request. Raises as `vkep.InferenceSession.run`."""
        rows = row_count(feeds)
        if self._rows > 1 and 0 < rows < self._rows:
            counts = {shape[0] for shape in shapes_of(feeds).values()}
            if len(counts) != 1:
                raise InvalidInputError(f"inputs must have the same number of rows, got {sorted(counts)}")
            return dict(await self.batcher(feeds, signature(feeds), rows))
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.run, feeds)

    async def _run_all(self, items: list[Feeds]) -> list[Any]:
        """A result or an exception for each of the requests."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run_together, items)

    def _run_together(self, items: list[Feeds]) -> list[Any]:
        if len(items) > 1:
            try:
                return self._joined(items)
            except (InvalidInputError, MemoryError) as error:
                # the data of one request, or all of them at once, are invalid or too large: run each separately
                logger.info("a batch of %d requests is run one by one: %s", len(items), str(error))
        found: list[Any] = []
        for feeds in items:
            try:
                found.append(self.run(feeds))
            except Exception as error:
                found.append(error)
        return found

    def _joined(self, items: list[Feeds]) -> list[Results]:
        started = time.perf_counter()
        counts = [row_count(feeds) for feeds in items]
        results = self.renewed.run(None, joined(items))
        self._ran(sum(counts), len(items), started)
        ends = itertools.accumulate(counts)
        return [
            {name: result[end - count : end] for name, result in zip(self.spec.outputs, results, strict=True)}
            for count, end in zip(counts, ends, strict=True)
        ]


class Models:
    """The versions of each model by name."""

    def __init__(self, loaded: Mapping[str, Mapping[str, LoadedModel]]) -> None:
        self.by_name = loaded

    def find(self, name: str, version: str = "") -> LoadedModel:
        """A model; without a version, the newest (the highest number, else the last by name). Raises `ProtocolError` (404)."""
        versions = self.by_name.get(name)
        if versions is None:
            raise ProtocolError(404, f"there is no model {name!r}; there are {sorted(self.by_name)}")
        version = version or max(versions, key=_age)
        if version not in versions:
            raise ProtocolError(404, f"model {name!r} has no version {version!r}; it has {sorted(versions, key=_age)}")
        return versions[version]

    def versions(self, name: str) -> list[str]:
        """A model's versions, oldest first. Raises as `find`."""
        self.find(name)
        return sorted(self.by_name[name], key=_age)

    def index(self) -> list[dict[str, str]]:
        """All versions, in the form of the repository index."""
        return [
            {"name": name, "version": version, "state": "UNAVAILABLE" if one.renewed.gone else "READY", "reason": ""}
            for name, versions in self.by_name.items()
            for version, one in versions.items()
        ]

    def gone(self) -> list[str]:
        """The models whose device is lost for good."""
        return [f"{e['name']} version {e['version']}" for e in self.index() if e["state"] != "READY"]

    def close(self) -> None:
        """Close all."""
        for versions in self.by_name.values():
            for one in versions.values():
                one.renewed.close()


def signature(feeds: Feeds) -> Any:
    """The key of requests that may share a run: shapes without the first axis."""
    return tuple((name, shape[1:]) for name, shape in sorted(shapes_of(feeds).items()))


def row_count(feeds: Feeds) -> int:
    """The rows of the first input; 1 for a scalar."""
    first = next(iter(shapes_of(feeds).values()), ())
    return first[0] if first else 1


def tensor_spec(info: ValueInfo) -> TensorSpec:
    """An input or output in the protocol's form. Raises ``ValueError``."""
    dtype = from_onnx(info.elem_type)
    text = info.elem_type == TensorProto.STRING
    if (dtype is None and not text) or info.shape is None:
        raise ValueError(f"{info.name!r} has no type that can be sent, or no rank")
    kind = datatype(dtype.numpy) if dtype is not None else STRINGS
    return TensorSpec(info.name, kind, tuple(dim if isinstance(dim, int) else None for dim in info.shape))


def _age(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdecimal() else (-1, version)
