"""Timing runs, and comparing results with a reference."""

from __future__ import annotations

import importlib.util
import math
import os
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from vkep.cli.common import Progress, UsageError, file_name
from vkep.cli.inputs import INPUT_PREFIX, OUTPUT_PREFIX

Array = np.ndarray[Any, Any]
#: default tolerance of the relative error, by the result's dtype; integers and booleans must be equal
TOLERANCES = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Span:
    """One phase on the host, in seconds of `time.perf_counter`. Phases that overlap are on different ``track``s."""

    name: str
    start: float
    end: float
    track: str = "main"

    @property
    def ms(self) -> float:
        """Length in milliseconds."""
        return (self.end - self.start) * 1e3


@dataclass
class Spans:
    """The spans of one command, in the order of their ends."""

    items: list[Span] = field(default_factory=list)
    _began: float = 0.0  #: when the current span, and so its first phase, began

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what the ``with`` block does."""
        start = self._began = time.perf_counter()
        yield
        self.items.append(Span(name, start, time.perf_counter()))

    def watch(self, progress: Progress | None) -> Progress:
        """Return a progress callback that records each phase as a span, and calls ``progress``. A callback comes after
        a piece of work, so a phase begins at the end of the previous one, or at the beginning of its span. Phases may
        run in different threads."""
        starts: dict[str, float] = {}
        ends: dict[str, float] = {}

        def noted(phase: str, done: int, total: int, what: str) -> None:
            start = starts.setdefault(phase, max(ends.get(phase, 0.0), self._began))
            if done == total:
                ends[phase] = time.perf_counter()
                self.items.append(Span(phase, start, ends[phase], track=phase))
                del starts[phase]
            if progress is not None:
                progress(phase, done, total, what)

        return noted

    def ms(self, name: str) -> list[float]:
        """Milliseconds of every span of this name."""
        return [s.ms for s in self.items if s.name == name]


@dataclass(frozen=True)
class Latency:
    """Milliseconds over ``runs`` runs; percentiles by nearest rank."""

    runs: int
    median_ms: float
    p90_ms: float
    p99_ms: float
    min_ms: float
    max_ms: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Latency | None:
        """Compute the statistics; None without samples."""
        if not samples:
            return None
        ordered = sorted(samples)
        p90, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.9, 0.99))
        return cls(len(ordered), statistics.median(ordered), p90, p99, ordered[0], ordered[-1])

    def to_dict(self) -> dict[str, Any]:
        """The fields, for ``--json``."""
        return asdict(self)


def time_concurrent_runs(run: Callable[[], Any], runs: int, threads: int) -> tuple[Latency, float]:
    """Call ``run`` ``runs`` times in all (at least once), from several threads at once. Returns the latency of a call, and
    the calls per second from the first one's start to the last one's end. Raises what ``run`` raises."""
    taken: list[float] = []
    numbers = iter(range(runs))  # next() of a range is atomic: each number goes to one thread

    def loop() -> None:
        while next(numbers, None) is not None:
            start = time.perf_counter()
            run()
            taken.append((time.perf_counter() - start) * 1e3)

    start = time.perf_counter()
    if threads == 1:
        loop()
    else:
        with ThreadPoolExecutor(threads) as pool:
            try:
                for each in [pool.submit(loop) for _ in range(threads)]:
                    each.result()
            finally:  # interrupted: each thread ends after its run
                for _ in numbers:
                    pass
    seconds = time.perf_counter() - start
    latency = Latency.of(taken)
    assert latency is not None, "there is a run"
    return latency, len(taken) / seconds


def time_runs(run: Callable[[], Any], runs: int, spans: Spans, name: str = "run") -> Any:
    """Call ``run`` ``count`` times, each as a span; returns the last result."""
    result = None
    for _ in range(runs):
        with spans.span(name):
            result = run()
    return result


@dataclass(frozen=True)
class Comparison:
    """One output against its reference: the largest difference, and that relative to the reference's largest magnitude.

    ``against`` names the reference; ``problem`` says why two arrays cannot be compared ("" where they can).
    """

    name: str
    against: str
    max_difference: float
    relative_error: float
    tolerance: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether the result is within the tolerance."""
        return not self.problem and self.relative_error <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """The fields, for ``--json``."""
        return {**asdict(self), "ok": self.ok}


def compare(
    outputs: Mapping[str, Any], reference: Mapping[str, Any], against: str, tolerance: float | None = None
) -> list[Comparison]:
    """Compare each output that the reference has. ``tolerance`` replaces the defaults of `TOLERANCES`. NaN and
    infinities must be at the same positions. Raises `UsageError` where the two have no name in common.
    """
    names = [n for n in outputs if n in reference]
    if not names:
        raise UsageError(f"{against} has none of the outputs {list(outputs)}; it has {sorted(reference)}")
    return [_compare(n, against, np.asarray(outputs[n]), np.asarray(reference[n]), tolerance) for n in names]


def _compare(name: str, against: str, got: Array, expected: Array, tolerance: float | None) -> Comparison:
    allowed = TOLERANCES.get(got.dtype.name, 0.0) if tolerance is None else tolerance

    def refused(problem: str) -> Comparison:
        return Comparison(name, against, math.inf, math.inf, allowed, problem)

    if got.shape != expected.shape:
        return refused(f"shape {got.shape}, the reference has {expected.shape}")
    if got.dtype.kind in "OUS" or expected.dtype.kind in "OUS":
        return Comparison(name, against, 0.0, 0.0, 0.0) if np.array_equal(got, expected) else refused("other text")
    if got.dtype.kind in "iub" and expected.dtype.kind in "iub" and np.array_equal(got, expected):
        return Comparison(name, against, 0.0, 0.0, allowed)  # also where float64 could not tell large integers apart
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return refused("NaN or infinity at other places than in the reference")
    difference = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))
    scale = float(np.max(np.abs(b[finite]), initial=0.0)) or 1.0
    return Comparison(name, against, difference, difference / scale, allowed)


def reference_outputs(archive: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs in an archive: keys ``out_*``; where there are none, every key that is not an input."""
    found = {k[len(OUTPUT_PREFIX) :]: v for k, v in archive.items() if k.startswith(OUTPUT_PREFIX)}
    return found or {k: v for k, v in archive.items() if not k.startswith(INPUT_PREFIX)}


def cpu_engine(model: Path | bytes, base_dir: Path | None = None) -> tuple[Callable[..., Any], str]:
    """Open the model on the CPU; returns a function of output names and feeds, and the name of the engine: onnxruntime
    where it is installed and opens the model, else onnx's reference evaluator. ``base_dir``: the folder of external data,
    for a model's bytes. Raises `VkepError` with the evaluator's message."""
    from vkep.errors import VkepError

    refused = ""
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        from vkep.session.ort_interface.options import NOT_REPLACED

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            options.add_session_config_entry(NOT_REPLACED, "1")
            if base_dir is not None:
                options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(base_dir))
            source = model if isinstance(model, bytes) else str(model)
            return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run, "onnxruntime"
        # onnxruntime has an exception type for each status code: a model newer than it, an operator that it lacks
        except Exception as error:
            refused = f"; onnxruntime does not open the model: {error}"
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator

        if isinstance(model, bytes):
            proto = onnx.load_model_from_string(model)
            if base_dir is not None:
                onnx.load_external_data_for_model(proto, str(base_dir))
            return ReferenceEvaluator(proto).run, "onnx.reference"
        return ReferenceEvaluator(str(model)).run, "onnx.reference"
    except Exception as error:  # evaluators raise exceptions of any type
        raise VkepError(
            f"the reference on the CPU (onnx.reference) does not open the model: {error}{refused}"
        ) from error


def cpu_reference(
    model: Path | bytes, names: Sequence[str], feeds: Mapping[str, Any], base_dir: Path | None = None
) -> tuple[dict[str, Any], str]:
    """Compute the model's outputs on the CPU; returns them and the name of the engine (`cpu_engine`). Raises `VkepError`
    with the evaluator's message."""
    from vkep.errors import VkepError

    run, engine = cpu_engine(model, base_dir)
    try:
        results = run(list(names), dict(feeds))
    except Exception as error:  # evaluators raise exceptions of any type
        raise VkepError(f"the reference on the CPU ({engine}) failed: {error}") from error
    return dict(zip(names, results, strict=True)), engine


def statistics_of(value: Any) -> dict[str, Any]:
    """Return dtype and shape, and for numbers range, mean and the count of values that are not finite."""
    if not isinstance(value, np.ndarray):
        return {"type": type(value).__name__} | ({"length": len(value)} if isinstance(value, (list, tuple)) else {})
    found: dict[str, Any] = {"dtype": value.dtype.name, "shape": list(value.shape)}
    if value.size and value.dtype.kind not in "OUS":
        numbers = value.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        found["not_finite"] = int(numbers.size - finite.size)
        if finite.size:
            found |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
    return found


def check_target(option: str, target: Path, *, folder: bool = False) -> None:
    """Raise `UsageError` where ``target`` cannot be written later: a file, or with ``folder`` a folder of files."""
    if folder and target.suffix == ".npy":
        raise UsageError(
            f"{option} {target}: expected a folder or an .npz file; a folder gets a .npy file for each output"
        )
    if folder and target.exists() and not target.is_dir():
        raise UsageError(f"{option} {target}: is a file, expected a folder or an .npz file")
    if not folder and target.is_dir():
        raise UsageError(f"{option} {target}: is a folder, expected a file")
    if target.exists() and not target.is_file() and not folder:
        return  # a device or a pipe: no file is created beside it
    below = target if folder else target.parent
    while not below.exists() and below != below.parent:
        below = below.parent  # missing folders will be created here
    try:
        # a trial write: permission bits are not reliable for /proc or a read-only mount
        with tempfile.TemporaryFile(dir=below):
            pass
        if target.is_file():
            target.open("ab").close()
    except OSError as error:
        raise UsageError(f"{option} {target}: {error.strerror}") from error


def save_outputs(outputs: Mapping[str, Any], target: Path) -> list[Path]:
    """Write the outputs: one archive where ``target`` ends in .npz, else a .npy file each in that folder. Text is
    written with a fixed width (dtype ``U``). Raises `UsageError` for an output that is not a tensor; then nothing is
    written.
    """
    arrays = {name: _plain(name, value) for name, value in outputs.items()}
    if target.suffix == ".npz":
        target.parent.mkdir(parents=True, exist_ok=True)
        # not savez(**arrays): an output may have the name of one of its parameters
        with _replacing(target) as file, zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        return [target]
    paths: dict[Path, Array] = {}
    for name, array in arrays.items():
        path = target / f"{file_name(name)}.npy"
        if path in paths:
            raise UsageError(f"two outputs would be written to {path}: give an .npz file instead")
        paths[path] = array
    target.mkdir(parents=True, exist_ok=True)
    for path, array in paths.items():
        with _replacing(path) as file:
            np.save(file, array, allow_pickle=False)
    return list(paths)


def _plain(name: str, value: Any) -> Array:
    """Return an output as an array that a .npy file stores without pickle."""
    if isinstance(value, (list, tuple, dict)) or value is None:
        raise UsageError(f"--output: output {name!r} is a {type(value).__name__}, and only tensors can be written")
    array = np.asarray(value)
    if array.dtype != object:
        return array
    if all(isinstance(item, str) for item in array.flat):
        text = array.astype("U")
        if np.array_equal(text.astype(object), array):
            return text
        raise UsageError(f"--output: output {name!r} has text that ends in a NUL character, which .npy files drop")
    kinds = sorted({type(item).__name__ for item in array.flat})
    raise UsageError(f"--output: output {name!r} holds objects ({', '.join(kinds)}), which .npy files cannot hold")


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that replaces ``path`` once it is complete; where writing fails, ``path`` is unchanged."""
    path = path.resolve()  # for a symbolic link, replace its target
    temporary = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
