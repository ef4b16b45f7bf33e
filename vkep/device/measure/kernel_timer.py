"""Times kernel calls on the GPU with timestamps, without a session: operands are plain device buffers."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_shared.commands import QueryPool
from gpu_shared.memory import Buffer
from gpu_shared.timeline import PreparedSubmit
from vkep.device.measure.kernel_runner import TIMEOUT_S, KernelRunner
from vkep.dtypes import DTYPES
from vkep.kernels.kernel import KernelCall
from vkep.kernels.tuning import Choice, chosen

_SAMPLES = 5
#: seconds of idling between measurements, and of work after which an idle GPU has raised its clock again, with a margin
_IDLE_WARM_SECONDS = ((1.0, 0.5), (0.2, 0.15), (0.0, 0.05))


@dataclass(eq=False)
class Operand:
    """A device buffer of ``nbytes``; ``data`` is uploaded before the first use."""

    nbytes: int
    data: np.ndarray | None = None
    buffer: Buffer | None = field(default=None, repr=False)


class KernelTimer(KernelRunner):
    """Times calls. It is also the target that candidates emit for (`vkep.kernels.select.Target`). Operands keep their
    buffers until `release` or `close`."""

    def __init__(self, select: int | str | None = None) -> None:
        super().__init__("vkep kernel timer", select)
        self._last_work = -math.inf
        self.choices: Mapping[str, Choice] = {}  #: measured tilings to prefer

    def operand(self, data: np.ndarray | None = None, nbytes: int = 0) -> Operand:
        """An operand with the bytes of ``data`` (any shape and element type), or of ``nbytes`` bytes that are not
        initialized."""
        return Operand(data.nbytes if data is not None else nbytes, data)

    def tuned(self, candidates: Callable[[], Iterable[Choice]], *problem: object) -> Choice | None:
        """As `vkep.kernels.select.Target.tuned`."""
        return chosen(self.choices, "", candidates, *problem)

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Operand:
        """A buffer for intermediate results."""
        return self.operand(nbytes=math.prod(shape) * DTYPES[dtype].itemsize)

    def counters(self, count: int) -> Operand:
        """A buffer of zeros."""
        return self.operand(np.zeros(count, np.uint32))

    def constant(self, array: np.ndarray) -> Operand:
        """A buffer with the array's bytes, in C order."""
        return self.operand(array)

    def prepack(self, weight: Operand, transform: Callable[[np.ndarray], np.ndarray], tag: str) -> Operand:
        """A buffer with the result of ``transform`` on the weight's array. ``tag`` names the transformation."""
        assert weight.data is not None
        return self.operand(np.ascontiguousarray(transform(weight.data)))

    def has_packed(self, weight: Operand, tag: str) -> bool:
        """False: each measurement packs its own."""
        return False

    def fault(self, reason: str) -> tuple[None, int]:
        """No fault word: the data of measurements are valid."""
        return None, 0

    def release(self, *operands: Operand) -> None:
        """Free the operands' buffers; a later use allocates them again."""
        for operand in operands:
            if operand.buffer is not None:
                operand.buffer.close()
                operand.buffer = None

    def milliseconds(self, calls: Sequence[KernelCall], repeats: int = 10, waits: bool = True) -> float:
        """GPU time of one pass over the calls (each ``waits`` for the previous one, or they may overlap): the median of
        several timed batches."""
        return statistics.median(self.samples(calls, repeats, waits)[-_SAMPLES:])

    def samples(self, calls: Sequence[KernelCall], repeats: int = 10, waits: bool = True) -> list[float]:
        """As `milliseconds`: the time of each batch, over ``repeats``; in the first ones the GPU may still raise its
        clock."""
        prepared = [self.ready(call, [self._address(t) for _, t in call.operands]) for call in calls]
        commands, queries = self.pool.allocate(), QueryPool(self.device, 2)
        commands.begin(simultaneous=False)
        commands.reset_query_pool(queries)
        commands.memory_barrier()
        commands.write_timestamp(queries, 0)
        for _ in range(repeats):
            for call in prepared:
                call.record(commands)
                if waits:
                    commands.memory_barrier()
        if not waits:
            commands.memory_barrier()
        commands.write_timestamp(queries, 1)
        commands.end()
        submit = PreparedSubmit(self.timeline, [commands])
        times: list[float] = []
        began = time.perf_counter()
        idle = 0.0 if self.caps.device_type == "cpu" else began - self._last_work
        until = began + next(warm for at_least, warm in _IDLE_WARM_SECONDS if idle >= at_least)
        while len(times) < _SAMPLES or time.perf_counter() < until:
            self.timeline.wait(submit.submit(), timeout_s=TIMEOUT_S)
            first, last = queries.results()
            times.append(queries.nanoseconds(first, last) / 1e6 / repeats)
        self._last_work = time.perf_counter()
        queries.close()
        commands.close()
        for call in prepared:
            call.close()
        return times

    def _address(self, operand: Operand | None) -> int:
        if operand is None:
            return 0
        if operand.buffer is None:
            data = b"" if operand.data is None else np.ascontiguousarray(operand.data).reshape(-1).view(np.uint8).data
            operand.buffer = self.buffer(operand.nbytes, data)
        return operand.buffer.address
