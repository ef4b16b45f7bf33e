"""Open models of a service: versions by name on one device context, and runs that share a batch.

Independent of Ray.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from gpu_shared.errors import DeviceLostError
from vkep.dtypes import from_onnx
from vkep.errors import InvalidInputError
from vkep.serving.batcher import Batcher
from vkep.serving.bodies import Array, joined, shapes_of
from vkep.serving.joining import Joining, rows_axis
from vkep.serving.kserve import STRINGS, ModelSpec, ProtocolError, TensorSpec, datatype
from vkep.serving.limits import Places
from vkep.session import InferenceSession
from vkep.session.replicas import RenewedSession

if TYPE_CHECKING:
    from vkep.graph.model import ValueInfo

logger = logging.getLogger("vkep.serving")

Feeds = Mapping[str, Array]
Results = dict[str, Array]
#: ``observe(model, version, rows, requests, seconds)``: called after each run
Observe = Callable[[str, str, int, int, float], None]
#: ``waited(model, version, seconds)``: called for each request, with the time until its run began
Waited = Callable[[str, str, float], None]


class LoadedModel:
    """One version of a model. Requests whose inputs agree in all but the first axis share a run, where rows are independent
    (`Joining`)."""

    def __init__(
        self,
        name: str,
        version: str,
        source: Any,
        options: Mapping[str, Any],
        *,
        pool: Executor,
        rows: int,
        wait_s: float,
        runs: int,
        observe: Observe,
        waited: Waited = lambda model, version, seconds: None,
        independent: bool = False,
        example: Mapping[str, Any] | None = None,
    ) -> None:
        """``source``, ``options``: of the session. ``rows``: the most rows of one run; 1: requests do not share runs. ``wait_s``:
        how long the first request of a run waits for others. ``runs``: those that ``pool`` takes at once. ``independent``: rows
        are independent, proved or not. ``example``: the inputs of a request, for the runs before the first request; without it
        these take zeros, where no axis but that of rows is symbolic. Raises as `vkep.InferenceSession`, and ``ValueError`` for a
        model whose inputs or outputs have no datatype in the protocol, for an example that does not fit, and where rows that are
        said to be independent are not."""
        self._pool, self._observe, self._waited = pool, observe, waited
        self.runs_done = self.rows_done = 0
        self.renewed = RenewedSession(partial(InferenceSession, source, **options))
        try:
            session = self.renewed.session
            graph = session.model.graph
            self.spec = ModelSpec(
                name,
                version,
                {v.name: tensor_spec(v) for v in graph.inputs},
                {v.name: tensor_spec(v) for v in graph.outputs},
            )
            is_batch = isinstance(rows_axis(session.get_inputs(), session.get_outputs()), str)
            self._rows = rows if is_batch else 1
            self.joining = Joining(
                f"model {name!r}", session.model, session.context.capabilities, self._rows, independent
            )
            self.batcher = Batcher(self._run_all, self._rows, wait_s, runs)
            # of requests of many rows each, few fill the runs that others wait for
            self._alone, self._together, self._large = Places(runs), Places(runs * self._rows), Places(4 * runs)
            self._warm(session, example)
        except BaseException:
            self.renewed.close()
            raise

    def _warm(self, session: InferenceSession, example: Mapping[str, Any] | None) -> None:
        """Runs of one request and of many, before the first request. Where rows are said to be independent they are compared."""
        if example is not None:
            one = as_inputs(session, example)
        elif (shapes := self._shapes()) is not None:
            one = zeros(session, shapes)
        else:
            return
        count = self._rows // max(row_count(one), 1)
        joins = count > 1 and (
            self.joining.known(signature(one)) or self.joining.decide(signature(one), shapes_of(one))
        )
        try:
            alone = self.run(one)
            if joins:
                self._joined([one] * count)
        except (InvalidInputError, MemoryError) as error:
            hint = (
                ""
                if example is not None
                else "; give it inputs that it takes: options={'examples': {MODEL: {INPUT: VALUES}}}"
            )
            logger.warning("model %r: a first run failed: %s%s", self.spec.name, str(error), hint)
            return
        if joins and self.joining.asserted:
            self._compare(one, alone)

    def _compare(self, one: Feeds, alone: Results) -> None:
        """Raise ``ValueError`` where rows differ when others precede them in a run."""
        other = {name: np.flip(array) for name, array in one.items()}
        try:
            joined = self._joined([other, one])[1]
        except InvalidInputError:  # data in another order may be invalid
            joined = self._joined([one, one])[1]
        for name, result in alone.items():
            if not alike(result, joined[name]):
                raise ValueError(
                    f"model {self.spec.name!r}: rows of {name!r} depend on other rows, and independent is True"
                )

    def _shapes(self) -> dict[str, list[int]] | None:
        """Shapes of one row; None where other axes are symbolic, or an input has strings."""
        specs = self.spec.inputs.values()
        if any(spec.datatype == STRINGS for spec in specs) or any(
            size is None for spec in specs for size in spec.shape[self._rows > 1 :]
        ):
            return None
        return {spec.name: [1 if size is None else size for size in spec.shape] for spec in specs}

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

    async def infer(self, feeds: Feeds, client: str = "") -> Results:
        """The outputs for one request of a client, who has as many in progress as all runs take: others wait for no more of them.
        Raises as `vkep.InferenceSession.run`."""
        rows, loop = row_count(feeds), asyncio.get_running_loop()
        if not self.joining.off and 0 < rows < self._rows:
            shapes, key = shapes_of(feeds), signature(feeds)
            may: bool | None = False  # inputs of different rows have none to share: the session judges them
            if len({shape[:1] for shape in shapes.values()}) == 1:
                may = self.joining.known(key)
            if may is None:
                may = await loop.run_in_executor(self._pool, self.joining.decide, key, shapes)
            if may:
                places = self._together if rows * 4 <= self._rows else self._large
                async with places.one(client):
                    return dict(await self.batcher((feeds, time.perf_counter()), key, rows))
        async with self._alone.one(client):
            return await loop.run_in_executor(self._pool, self._run_alone, feeds, time.perf_counter())

    def _run_alone(self, feeds: Feeds, asked: float) -> Results:
        self._waited(self.spec.name, self.spec.version, time.perf_counter() - asked)
        return self.run(feeds)

    async def _run_all(self, items: list[tuple[Feeds, float]]) -> list[Any]:
        """A result or an exception for each of the requests, which came with the times at which they were asked."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run_timed, items)

    def _run_timed(self, items: list[tuple[Feeds, float]]) -> list[Any]:
        now = time.perf_counter()
        for _, asked in items:
            self._waited(self.spec.name, self.spec.version, now - asked)
        return self._run_together([feeds for feeds, _ in items])

    def _run_together(self, items: list[Feeds]) -> list[Any]:
        if len(items) > 1 and not self.joining.off:
            try:
                return self._joined(items)
            except DeviceLostError as error:  # for good: each further run would try to open the device again
                return [error] * len(items)
            except Exception as error:
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
        results = dict(zip(self.spec.outputs, self.renewed.run(None, joined(items)), strict=True))
        for name, result in results.items():
            if not result.ndim or len(result) != sum(counts):
                self.joining.stop(f"output {name!r} has shape {list(result.shape)} for {sum(counts)} rows")
                raise ValueError("joined rows and rows of the result differ in number")
        self._ran(sum(counts), len(items), started)
        ends = itertools.accumulate(counts)
        return [
            {name: result[end - count : end] for name, result in results.items()}
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


def as_inputs(session: InferenceSession, example: Mapping[str, Any]) -> dict[str, Array]:
    """An example's values as arrays of the inputs' types. Raises ``ValueError``."""
    infos = {info.name: info for info in session.model.graph.inputs}
    if example.keys() != infos.keys():
        raise ValueError(f"the example has {sorted(example)}, expected the inputs {sorted(infos)}")
    types = {name: from_onnx(info.elem_type) for name, info in infos.items()}
    return {name: np.asarray(v, d.numpy if (d := types[name]) is not None else object) for name, v in example.items()}


def alike(a: Array, b: Array) -> bool:
    """Whether two results agree but for rounding: runs of other sizes may choose other kernels."""
    if a.dtype.kind not in "fcV":
        return bool(np.array_equal(a, b))
    wide = a.astype(np.float64), b.astype(np.float64)
    tolerance = 1e-2 if a.dtype.itemsize < 4 else 1e-3
    return a.shape == b.shape and bool(np.allclose(*wide, tolerance, tolerance, equal_nan=True))


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


def zeros(session: InferenceSession, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray[Any, Any]]:
    """Feeds of zeros, for a first run. Raises ``ValueError`` for an input without a shape, or of a type that arrays do
    not have."""
    feeds = {}
    for info in session.model.graph.inputs:
        dtype = from_onnx(info.elem_type)
        if info.name not in shapes or dtype is None:
            raise ValueError(f"a first run needs a shape for {info.name!r}, an array; got shapes {dict(shapes)}")
        feeds[info.name] = np.zeros(tuple(shapes[info.name]), dtype.numpy)
    return feeds
