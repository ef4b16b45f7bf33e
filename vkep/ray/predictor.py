"""`Predictor`: a model as a class for `ray.data.Dataset.map_batches`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.errors import DeviceLostError
from gpu_shared.steady import closing
from vkep.errors import InvalidInputError
from vkep.ray.batches import Array, Columns, Padding, Table
from vkep.ray.devices import in_actor
from vkep.ray.models import local, open_session
from vkep.serving.loaded import zeros
from vkep.session.replicas import RenewedSession

if TYPE_CHECKING:
    from vkep.ray.models import Source

logger = logging.getLogger("vkep.ray")


class Predictor:
    """A model over the batches of a Ray dataset: an actor opens it on the GPU that Ray assigned, and keeps it open.

        dataset.map_batches(
            vkep.ray.Predictor, fn_constructor_args=[model], num_gpus=1, batch_size=64, compute=ray.data.ActorPoolStrategy(size=4)
        )

    Args:
        model: a path that all nodes have, bytes, an ``onnx.ModelProto``, or what `vkep.ray.ship` returned.
        inputs: column by input, where the names differ.
        outputs: column by output, for the requested ones; None: all, under their names.
        warm: runs before the first batch: a number of rows, or shapes by input (rows included). None: one row where the
            model's other axes are fixed. The first run of a shape compiles its shaders.
        rows: the most rows of one run; 0: a batch as it comes. The runs of a batch overlap, as many at once as the session's
            ``concurrency`` allows (2).
        pad: values by input to fill up rows of different sizes with (``{"input_ids": 0, "attention_mask": 0}``), so
            that they share runs; padding is removed from the outputs again, along axes of the same symbol. Without it
            rows of equal shape share runs.
        steps: the sizes that padded axes are rounded up to.
        session_options: as `vkep.SessionOptions`; ``device`` is the GPU that Ray assigned, unless it is named.

    A call takes columns as arrays [rows, ...] (or arrays of arrays where rows differ in shape) and gives the outputs,
    and other columns unchanged. Subclasses may override `__call__` and use `predict`. A batch whose device is lost is
    run again on a new context; where none is available the actor ends, and Ray runs the batch in another.

    Raises as `vkep.InferenceSession`; ``ValueError`` for a model without an axis of rows.
    """

    def __init__(
        self,
        model: Source,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        warm: int | Mapping[str, Sequence[int]] | None = None,
        rows: int = 0,
        pad: Mapping[str, Any] | None = None,
        steps: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024, 2048),
        **session_options: Any,
    ) -> None:
        self._padding = Padding(pad, steps) if pad else None
        self._rows = rows
        self._pool: ThreadPoolExecutor | None = None
        model = local(model)  # once: a session that is opened again finds the same key
        self._session = RenewedSession(partial(open_session, model, session_options))
        try:
            arguments, results = self.session.get_inputs(), self.session.get_outputs()
            self._columns = _named("inputs", inputs or {}, [a.name for a in arguments])
            self._results = _named("outputs", outputs or {}, [r.name for r in results])
            if outputs is not None:
                self._results = {name: column for name, column in self._results.items() if name in outputs}
                results = [result for result in results if result.name in outputs]
            _named("pad", dict.fromkeys(pad or {}, ""), [a.name for a in arguments])
            self._table = Table.of(arguments, results)
            self._pool = ThreadPoolExecutor(self.session.options.concurrency, thread_name_prefix="vkep-predictor")
            self._warm(warm)
        except BaseException:
            self.close()
            raise

    @property
    def session(self) -> Any:
        """The `vkep.InferenceSession`."""
        return self._session.session

    def __call__(self, batch: Columns) -> Columns:
        """The outputs for a batch's rows, and the other columns unchanged. Raises `InvalidInputError`,
        ``ValueError``."""
        return self.predict(batch)

    def predict(self, batch: Columns) -> Columns:
        """See `__call__`. Raises `InvalidInputError` for missing columns and for outputs that would overwrite some, and
        as `InferenceSession.run`."""
        missing = [column for column in self._columns.values() if column not in batch]
        if missing:
            raise InvalidInputError(
                f"the batch has no columns {missing}; it has {list(batch)}: inputs={{input: column}} says which is which"
            )
        feeds = {name: np.asarray(batch[column]) for name, column in self._columns.items()}
        kept = {name: column for name, column in batch.items() if name not in self._columns.values()}
        clash = sorted(set(kept) & set(self._results.values()))
        if clash:
            raise InvalidInputError(
                f"columns {clash} would be overwritten: outputs={{output: column}} gives outputs other names"
            )
        assert self._pool is not None
        found = self._table.run(feeds, self._run, self._padding, self._rows, self._pool.map)
        return {**kept, **{column: found[name] for name, column in self._results.items()}}

    def _run(self, feeds: Columns) -> list[Array]:
        try:
            return self._session.run(list(self._results), feeds)
        except DeviceLostError:
            if self._session.gone and in_actor():
                # Ray runs the batch again in another actor: an exception here would end the job instead
                logger.exception("the device is gone: this worker ends")
                os._exit(1)
            raise

    def _warm(self, warm: int | Mapping[str, Sequence[int]] | None) -> None:
        shapes = warm if isinstance(warm, Mapping) else self._warm_shapes(warm)
        if shapes is not None:
            self._run(zeros(self.session, shapes))

    def _warm_shapes(self, rows: int | None) -> dict[str, tuple[int, ...]] | None:
        """Shapes for a number of rows; None where other axes than the first are symbolic and have no given size."""
        count = self._table.rows if isinstance(self._table.rows, int) else rows or 1
        if all(isinstance(dim, int) for dims in self._table.inputs.values() for dim in dims):
            return {name: (count, *map(int, dims)) for name, dims in self._table.inputs.items()}  # type: ignore[arg-type]
        if rows is not None:
            raise ValueError(
                f"warm is {rows}, but the model has symbolic axes beside that of rows ({dict(self._table.inputs)}): "
                "give shapes by input"
            )
        return None

    @closing
    def close(self) -> None:
        """Close the session; idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
        self._session.close()


def _named(what: str, given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Columns by name: ``given``, else the name itself. Raises ``ValueError`` for a name that the model does not
    have."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{what} names {unknown}; the model has {list(known)}")
    return {name: given.get(name, name) for name in known}
