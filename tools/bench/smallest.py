"""``python -m tools.bench.smallest``: microseconds of the smallest run, a Relu of 1024 elements, and the host's part of it.

The rows: arrays in and out; tensors on the device with a wait for the result; the same without waiting, twenty in a row, for
each. Each through a plain session, with ``--ort`` also through ONNX Runtime's plugin. "Host" is the time of the calling thread
alone: at the end the driver's submits and waits are replaced by calls that do nothing. Printed are the median and the fastest
tenth. Rows take turns.

    python -m tools.bench.smallest --runs 2000 --ort --sizes 100
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

import vkep
from gpu_shared import timeline
from tools.bench.dynamic import inputs
from tools.bench.waiting import relu
from vkep.models.language import ARCHITECTURES, language_model

Runs = dict[str, Callable[[], object]]
IN_A_ROW, _ROUNDS, _WARM = 20, 5, 50


def plain(session: vkep.InferenceSession, array: np.ndarray[Any, Any]) -> Runs:
    """The rows of a plain session."""
    binding = session.io_binding()
    binding.bind_input("x", session.device_tensor(array))
    binding.bind_output("y", session.empty_device_tensor(array.shape))

    def bound() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    def row() -> None:
        for _ in range(IN_A_ROW):
            session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    feeds = {"x": array}
    return {"arrays": lambda: session.run(None, feeds), "bound": bound, f"bound, {IN_A_ROW} in a row, each": row}


def through_ort(session: Any, array: np.ndarray[Any, Any]) -> Runs:
    """The rows of ONNX Runtime's session."""
    import vkep.ort

    binding = vkep.ort.bind(session, {"x": vkep.ort.to_device(array)}, {"y": vkep.ort.to_device(np.zeros_like(array))})

    def bound() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    feeds = {"x": array}
    return {"ORT, arrays": lambda: session.run(None, feeds), "ORT, bound": bound}


def new_sizes(count: int) -> list[float]:
    """Microseconds, sorted, from the inputs of a size that is new to the arguments of its run, which is not made: a decoder of 32
    layers, whose 64 caches grow by one."""
    language = replace(ARCHITECTURES["gpt2"], layers=32, kv_heads=4, context=count + 64)
    found = []
    with vkep.InferenceSession(language_model(language), save_plans=False) as session:
        graph, generator = session._parts.graph, np.random.default_rng(0)

        def values(past: int) -> dict[str, Any]:
            dims = {"batch": 1, "length": 1, "past": past, "total": past + 1}
            return session._parts.inputs_of(inputs(session, dims, generator))

        for past in (20, 21, 24):
            with graph.use(values(past)).hold:
                pass
        for past in range(32, 32 + count):
            given = values(past)
            start = time.perf_counter()
            used = graph.use(given)
            with used.hold, ExitStack() as held:
                island = used.executable.island
                assert island is not None
                island.runner.recording(held, island.numbers)
                found.append(1e6 * (time.perf_counter() - start))
    return sorted(found)


def without_driver() -> None:
    """Replace the submits and waits of this process."""
    for made in gc.get_objects():
        if isinstance(made, timeline.PreparedSubmit):
            made._submit = lambda *_: 0
        elif isinstance(made, timeline.TimelineState):
            made._functions = _Waitless(made)  # type: ignore[assignment]


class _Waitless:
    """The driver's functions, of which waits return at once, and the counter has the value of the last submit."""

    def __init__(self, state: timeline.TimelineState) -> None:
        self._state, self._functions = state, state._functions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def vkWaitSemaphores(self, *_: Any) -> int:
        return 0

    def vkGetSemaphoreCounterValue(self, _device: Any, _semaphore: Any, out: Any) -> int:
        out[0] = self._state.submitted
        return 0


def measure(runs: Runs, count: int) -> dict[str, list[float]]:
    """Microseconds of each run, sorted."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            many = IN_A_ROW if "in a row" in name else 1
            for _ in range(_WARM // many):
                run()
            for _ in range(max(count // many // _ROUNDS, 1)):
                start = time.perf_counter()
                run()
                found[name].append(1e6 * (time.perf_counter() - start) / many)
    return {name: sorted(times) for name, times in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.smallest", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=2000, help="of each row")
    parser.add_argument("--ort", action="store_true", help="also through ONNX Runtime's plugin")
    parser.add_argument(
        "--sizes", type=int, default=0, help="also what this many new sizes of a decoder of 32 layers take"
    )
    given = parser.parse_args(arguments)
    array, model = np.linspace(-1, 1, 1024, dtype=np.float32), relu()
    with vkep.InferenceSession(model, save_plans=False) as session:
        rows = plain(session, array)
        if given.ort:
            import onnxruntime

            import vkep.ort as plugin

            plugin.register()
            rows |= through_ort(
                onnxruntime.InferenceSession(model.SerializeToString(), providers=[plugin.EP_NAME]), array
            )
        whole = measure(rows, given.runs)
        without_driver()
        host = measure(rows, given.runs)
    print("| us | median | fastest tenth | host, median | host, fastest tenth |", "|---|---|---|---|---|", sep="\n")
    for name, times in whole.items():
        numbers = [f(t) for t in (times, host[name]) for f in (statistics.median, lambda t: t[len(t) // 10])]
        print(f"| {name} | {' | '.join(f'{number:.1f}' for number in numbers)} |")
    if given.sizes:
        times = new_sizes(given.sizes)
        print(f"| a new size, 32 layers |  |  | {statistics.median(times):.1f} | {times[len(times) // 10]:.1f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
