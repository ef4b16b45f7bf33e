"""Sessions of ONNX Runtime on vkep's provider, many and long: memory must not grow, and no object may be left.

python -m tools.ort_soak                                   # 1000 sessions, 100,000 runs, eight threads
python -m tools.ort_soak --sessions 50 --runs 2000         # shorter
python -m tools.ort_soak --json soak.json

Memory is the process's resident set, sampled twenty times in each phase, when dropped objects are destroyed. Growth is the slope
over the samples times their number, after the first third, which fills caches and pools (`tools.growth`). The process starts
itself again with two arenas of glibc's malloc (`tools.heap`). Python's own share is what ``tracemalloc`` sees over a twentieth of
each phase, run once more. Exit code 1 where memory grew by more than ``--allow`` MB, an answer was wrong, or a Vulkan object or a
structure of the provider's was left.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tools.growth import grown
from tools.heap import resident_mb, restart_with_two_arenas

SAMPLES = 20
#: the provider's options of the sessions, in turn
KINDS: tuple[dict[str, str], ...] = (
    {},
    {"io": "host"},
    {"kernels": "registry"},
    {"token": "soak", "group_id": "7"},
    {"enable_graph_capture": "1"},
)
_MODEL = """<ir_version: 9, opset_import: ["": 18]>
soak (float[n,16] x) => (float[n,16] y) <float[16] b = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
  a = Add(x, b) r = Relu(a) s = Mul(r, x) y = Sub(s, b) }"""
_STAY = {"OrtEpFactory"}  # a session that outlives its registration still calls it


@dataclass
class Phase:
    """The results of one phase: seconds, resident megabytes, and growth as the module's docstring defines it."""

    name: str
    count: int
    seconds: float = 0.0
    resident_mb: list[float] = field(default_factory=list)
    python_kb: float = 0.0  #: growth that tracemalloc saw over ``traced`` more
    traced: int = 0

    @property
    def growth_mb(self) -> float:
        return grown(self.resident_mb)


class Soak:
    """The two phases' work; `wrong` counts answers that were not right."""

    def __init__(self) -> None:
        import onnxruntime

        import gpu_shared
        import vkep.ort

        vkep.ort.register()
        self._ort, self._name = onnxruntime, vkep.ort.EP_NAME
        proto = onnx.parser.parse_model(_MODEL)
        self._model = proto.SerializeToString()
        devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == self._name]
        default = gpu_shared.select_device(gpu_shared.list_devices()).capabilities.uuid
        #: the memory's device id is the device's place among the provider's
        self._number = [d.ep_metadata["vulkan_uuid"] for d in devices].index(default)
        self._vendor = int(devices[self._number].device.vendor_id)
        self._bias = np.arange(1, 17, dtype=np.float32)
        self.wrong = 0

    def close(self) -> None:
        """Unregister the library; ONNX Runtime then frees the objects that sessions shared."""
        import vkep.ort

        gc.collect()
        vkep.ort.unregister()
        gc.collect()

    def open(self, options: dict[str, str]) -> Any:
        settings = self._ort.SessionOptions()
        settings.log_severity_level = 4
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        made = self._ort.InferenceSession(self._model, settings, providers=[(self._name, options)], enable_fallback=0)
        made.disable_fallback()
        return made

    def check(self, session: Any, rows: int) -> None:
        """Run once with ``rows`` rows, a signature of its own, and check the answer."""
        x = np.full((rows, 16), float(rows), np.float32)
        expected = np.maximum(x + self._bias, 0) * x - self._bias
        self.wrong += not np.array_equal(session.run(None, {"x": x})[0], expected)

    def check_bound(self, session: Any, rows: int) -> None:
        """As `check`, between tensors on the device."""
        x = np.full((rows, 16), float(rows), np.float32)
        binding = session.io_binding()
        place = ("gpu", self._number, self._vendor)
        binding.bind_ortvalue_input("x", self._ort.OrtValue.ortvalue_from_numpy(x, *place))
        out = self._ort.OrtValue.ortvalue_from_numpy(np.zeros_like(x), *place)
        binding.bind_ortvalue_output("y", out)
        options = self._ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", "-1")
        session.run_with_iobinding(binding, options)
        expected = np.maximum(x + self._bias, 0) * x - self._bias
        self.wrong += not np.array_equal(out.numpy(), expected)

    def sessions(self, count: int, sample: Callable[[], None], threads: int) -> None:
        """Create, run and drop sessions of every kind, ``threads`` at a time."""

        def one(number: int) -> None:
            session = self.open(KINDS[number % len(KINDS)])
            if "enable_graph_capture" in KINDS[number % len(KINDS)]:
                self.check_bound(session, 1 + number % 3)
            else:
                self.check(session, 1 + number % 3)

        _share(count, threads, one, sample)

    def runs(self, count: int, sample: Callable[[], None], threads: int) -> None:
        """Run a session of every kind from all threads; more signatures than a plan cache holds come by."""
        opened = [self.open({**kind, "plan_cache_size": "4"}) for kind in KINDS[:4]]

        def one(number: int) -> None:
            session = opened[number % len(opened)]
            rows = 1 + (number // 1000) % 7
            if number % 10 == 0 and number % len(opened) != 1:
                self.check_bound(session, rows)
            else:
                self.check(session, rows)

        _share(count, threads, one, sample)


def _share(count: int, threads: int, work: Callable[[int], None], sample: Callable[[], None]) -> None:
    """Call ``work`` for each number in this many threads, and ``sample`` at `SAMPLES` points, when no thread is
    working."""
    edges = [count * n // SAMPLES for n in range(SAMPLES + 1)]
    for low, high in itertools.pairwise(edges):
        numbers = iter(range(low, high))
        lock = threading.Lock()
        failures: list[BaseException] = []

        def loop(numbers: Any = numbers, lock: Any = lock, failures: Any = failures) -> None:
            try:
                while not failures:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    work(number)
            except BaseException as error:
                failures.append(error)

        started = [threading.Thread(target=loop) for _ in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        if failures:
            raise failures[0]
        sample()


def _settled_mb() -> float:
    """Resident memory without what was dropped: another thread destroys the last device of a token, of 13 MB on lavapipe."""
    from gpu_shared.steady import settle

    gc.collect()
    settle()
    return resident_mb()


def measure(name: str, work: Callable[[int, Callable[[], None], int], None], count: int, threads: int) -> Phase:
    """Run one phase, and a twentieth of it again under tracemalloc."""
    phase = Phase(name, count)
    began = time.perf_counter()
    work(count, lambda: phase.resident_mb.append(_settled_mb()), threads)
    phase.seconds = time.perf_counter() - began
    phase.traced = max(SAMPLES, count // 20)
    tracemalloc.start()
    try:
        work(phase.traced, lambda: None, threads)  # what stays after a first round is caches
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        work(phase.traced, lambda: None, threads)
        gc.collect()
        phase.python_kb = (tracemalloc.get_traced_memory()[0] - before) / 1e3
    finally:
        tracemalloc.stop()
    return phase


def leftovers() -> dict[str, int]:
    """Vulkan objects, memory domains and structures of the provider's that are alive although no session is and the library
    is unregistered (until then ONNX Runtime's environment keeps the allocators of device tensors).
    """
    import gpu_shared
    from vkep.ort.boundary import live_structs
    from vkep.ort.memory.domain import live_domains

    found = {f"Vulkan {kind}": n for kind, n in gpu_shared.live_counts().items() if n}
    found |= {f"memory of {name}": n for name, n in live_domains().items()}
    return found | {name: n for name, n in live_structs().items() if name not in _STAY}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.ort_soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--allow", type=float, default=16.0, metavar="MB", help="growth that counts as noise")
    parser.add_argument("--json", type=Path, help="write the samples here")
    given = parser.parse_args(arguments)
    soak = Soak()
    phases = [
        measure("sessions", soak.sessions, given.sessions, given.threads),
        measure("runs", soak.runs, given.runs, given.threads),
    ]
    soak.close()
    left = leftovers()
    for phase in phases:
        rate = phase.count / phase.seconds
        first, last = phase.resident_mb[0], phase.resident_mb[-1]
        print(
            f"{phase.count} {phase.name} in {given.threads} threads: {phase.seconds:.0f} s ({rate:.0f}/s), resident "
            f"{first:.1f} to {last:.1f} MB, growth {phase.growth_mb:+.2f} MB, Python's own {phase.python_kb:+.1f} kB over "
            f"{phase.traced} more"
        )
    print(f"left behind: {left or 'nothing'}; wrong answers: {soak.wrong}")
    if given.json:
        content = {"process": os.getpid(), "left": left, "wrong": soak.wrong, "phases": [asdict(p) for p in phases]}
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    grew = [p.name for p in phases if p.growth_mb > given.allow]
    return 1 if grew or left or soak.wrong else 0


if __name__ == "__main__":
    restart_with_two_arenas("tools.ort_soak")
    sys.exit(main())
