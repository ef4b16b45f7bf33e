"""``python -m tools.bench.start``: how the time from a new process to its first answer is spent.

The first row is what a user waits for: a new process that imports numpy and vkep, opens the model and runs it (of a folder with a
language model: answers a prompt of 16 tokens with one token). There
much of the work overlaps (the driver opens the device while Python imports). For the other rows a process does one step
after the other, and runs the model twice. Printed are medians over processes, wall time and the processor's (of all
threads: pipelines are made beside the upload).

    python -m tools.bench.start models/resnet50.onnx --processes 9
    python -m tools.bench.start models/resnet50.onnx --cold        # every process with empty caches
    python -m tools.bench.start models/language-int4               # to the first token of a language model
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PIPELINES, WEIGHTS = "  of it, until pipelines are made", "  of it, until weights are uploaded"
SCRIPT_STEP = "a script, to the first answer"
PROMPT = 16  #: tokens
STEPS = (
    SCRIPT_STEP,
    "interpreter",
    "import numpy",
    "import onnx",
    "import vkep",
    "import the rest of vkep",
    "context",
    "session",
    "first run",
    "all steps to the first answer",
    "second run",
)
#: a user's script; prints the time of the answer, and the processor's seconds until then
SCRIPT = """
import sys
import numpy as np
import vkep

session = vkep.InferenceSession(sys.argv[1])
feeds = {}
for x in session.get_inputs():
    kind = x.type[len("tensor(") : -1]
    shape = [d if isinstance(d, int) else 1 for d in x.shape]
    feeds[x.name] = np.zeros(shape, {"float": "float32", "double": "float64"}.get(kind, kind))
session.run(None, feeds)

import time
print(time.time(), time.process_time())
"""
#: the same for a folder with a language model, up to its first token
LANGUAGE_SCRIPT = f"""
import sys
from vkep.generation import Generator

Generator(sys.argv[1], max_sequences=1).generate(list(range({PROMPT})), max_tokens=1)

import time
print(time.time(), time.process_time())
"""
Span = tuple[float, float]  #: milliseconds of wall time and of the processor's


class _Clock:
    """Spans from one mark to the next. ``start`` is the parent's time of starting the process."""

    def __init__(self, start: float) -> None:
        self.spans: dict[str, Span] = {}
        self._start, self._last = start, (start, 0.0)

    def mark(self, step: str) -> None:
        now = (time.time(), time.process_time())
        self.spans[step] = (1e3 * (now[0] - self._last[0]), 1e3 * (now[1] - self._last[1]))
        self._last = now

    def so_far(self, step: str) -> None:
        """The span since the last mark, which is not moved. The first span that is recorded under a name is kept."""
        now = (time.time(), time.process_time())
        self.spans.setdefault(step, (1e3 * (now[0] - self._last[0]), 1e3 * (now[1] - self._last[1])))

    def total(self, step: str) -> None:
        self.spans[step] = (1e3 * (time.time() - self._start), 1e3 * time.process_time())


def one_process(model: str, start: float) -> dict[str, Span]:
    """The spans of this process, which must not have imported anything yet."""
    clock = _Clock(start)
    clock.mark("interpreter")
    import numpy as np

    clock.mark("import numpy")
    import onnx  # noqa: F401

    clock.mark("import onnx")
    import vkep

    clock.mark("import vkep")
    import vkep.session.session_state
    from vkep.session.contexts import resolve_context

    language = Path(model).is_dir()
    if language:
        from vkep.generation import Generator
    clock.mark("import the rest of vkep")

    def progress(phase: str, done: int, total: int, what: str) -> None:
        if done == total:
            clock.so_far({"shaders": PIPELINES, "weights": WEIGHTS}[phase])

    options = vkep.SessionOptions(progress=progress)
    context = resolve_context(options)
    clock.mark("context")
    opened: Any = (
        Generator(model, max_sequences=1, sess_options=options, context=context)
        if language
        else vkep.InferenceSession(model, options, context=context)
    )
    with opened:
        clock.mark("session")
        run = _answers(opened) if language else _runs(opened, np)
        next(run)
        clock.mark("first run")
        clock.total("all steps to the first answer")
        next(run)
        clock.mark("second run")
    context.close()
    return clock.spans


def _runs(session: Any, np: Any) -> Iterator[None]:
    feeds = {v.name: _zeros(v.type, v.shape, np) for v in session.get_inputs()}
    while True:
        session.run(None, feeds)
        yield


def _answers(generator: Any) -> Iterator[None]:
    """A token of one answer after the other: the first run is the prompt's."""
    batch = generator.batch()
    batch.add(list(range(PROMPT)), generator.sampling(ignore_end=True))
    while True:
        batch.step()
        yield


def _zeros(kind: str, shape: Any, np: Any) -> Any:
    dtype = {"float": "float32", "double": "float64"}.get(name := kind[len("tensor(") : -1], name)
    return np.zeros([d if isinstance(d, int) else 1 for d in shape], dtype)


def measure(model: Path, processes: int, cold: bool, say: Callable[[str], object] = print) -> dict[str, Span]:
    """Medians over ``processes`` new processes of each kind, one at a time; unless ``cold``, one before them fills the caches.

    Raises `RuntimeError` with what a process printed where it fails.
    """
    runs: list[dict[str, Span]] = []
    for index in range(processes + (not cold)):
        start = time.time()
        script = LANGUAGE_SCRIPT if model.is_dir() else SCRIPT
        done, busy = map(float, _run(["-c", script, str(model)], cold).split())
        whole = (1e3 * (done - start), 1e3 * busy)
        say(f"process {index}: {whole[0]:.0f} ms to the first answer")
        if cold or index:
            worker = ["-m", "tools.bench.start", str(model), "--worker", repr(time.time())]
            runs.append({SCRIPT_STEP: whole, **json.loads(_run(worker, cold))})
    # a language model is planned at its first run
    parted = "first run" if model.is_dir() else "session"
    ordered = [row for step in STEPS for row in ((step, PIPELINES, WEIGHTS) if step == parted else (step,))]
    steps = [step for step in ordered if step in runs[0]]
    return {s: (statistics.median(r[s][0] for r in runs), statistics.median(r[s][1] for r in runs)) for s in steps}


def _run(arguments: list[str], cold: bool) -> str:
    """The last line that a process prints; ``cold``: with empty caches."""
    from tools.bench.machine import cold_environment

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **(cold_environment(folder) if cold else {})}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.splitlines()[-1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.start", description="Where the time to the first answer goes."
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="every process gets empty caches")
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.worker is not None:
        print(json.dumps(one_process(str(chosen.model), chosen.worker)))
        return 0
    if not chosen.model.exists():
        parser.error(f"no model at {chosen.model}: python -m tools.models makes the benchmark models")
    if chosen.processes < 1:
        parser.error(f"--processes is {chosen.processes}, expected 1 or more")
    spans = measure(chosen.model, chosen.processes, chosen.cold, lambda line: print(line, file=sys.stderr))
    from tools.bench.machine import machine_info

    info = machine_info()
    print(f"{info['cpu']}, {info['cores']} cores; {'; '.join(info['vulkan_devices'])}\n")
    print("| step | ms | processor's ms |\n| --- | --- | --- |")
    for step, (wall, busy) in spans.items():
        print(f"| {step.strip()} | {wall:.0f} | {busy:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
