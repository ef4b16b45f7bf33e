"""The model files of a checkout's test data: vkep's outputs beside those of ONNX Runtime's CPU provider."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tools.backend_suite.through_ort import error_text, nodes_on_cpu, open_session, provider_log, run_session
from tools.ort_suite.judge import CPU, DECLINED, ERROR, LOST, REFUSED, VULKAN, WRONG, Verdict, one_line
from vkep import dtypes

#: the size of a dimension that a model leaves open, and the largest file that is tried
_OPEN = 3
_LARGEST = 64 << 20
SKIPPED = "skipped"
#: the outputs of a file, and the nodes that ran on the CPU: (path, ONNX Runtime's session of it, inputs)
_Run = Callable[[Path, Any, Sequence[np.ndarray]], tuple[list[Any], list[str]]]


def model_files(root: Path) -> list[Path]:
    """The files under ``testdata``. Raises `FileNotFoundError` where the checkout has none."""
    folder = root / "testdata"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no test data in this checkout")
    return sorted(f for f in folder.rglob("*.onnx") if f.stat().st_size <= _LARGEST)


def lost(path: Path, why: str) -> Verdict:
    return Verdict(str(path), "(model)", LOST, why)


def on_vkep(path: Path) -> Verdict:
    """One file in a plain session; see `_compared`."""
    return _compared(path, _plain)


def through_ort(path: Path) -> Verdict:
    """One file in a session of ONNX Runtime's, vkep's provider before the CPU's; see `_compared`."""
    return _compared(path, _provider)


def _plain(path: Path, reference: Any, feeds: Sequence[np.ndarray]) -> tuple[list[Any], list[str]]:
    from vkep import InferenceSession

    with InferenceSession(path, save_plans=False) as session:
        got = session.run(None, {i.name: v for i, v in zip(reference.get_inputs(), feeds, strict=True)})
        on_cpu = [f"{n.op_type}: {n.reason}" for n in session.report().nodes if n.where in ("cpu", "deferred")]
    return got, on_cpu


def _provider(path: Path, reference: Any, feeds: Sequence[np.ndarray]) -> tuple[list[Any], list[str]]:
    with provider_log() as log:
        session = open_session(onnx.load(path), {})
        got = run_session(session, feeds)
    return got, [*nodes_on_cpu(session), *log.inside]


def _compared(path: Path, run: _Run) -> Verdict:
    """The result of ``run`` for one file. Values of inputs are drawn by their declared types and shapes; a file that
    ONNX Runtime's CPU provider does not run with them is skipped.
    """
    from vkep.errors import InvalidInputError, InvalidModelError, UnsupportedModelError

    started = time.perf_counter()

    def verdict(kind: str, reason: object = "") -> Verdict:
        took = round(time.perf_counter() - started, 3)
        return Verdict(str(path), "(model)", kind, one_line(reason), seconds=took)

    try:
        reference = _session(path, seed=1)
        rng = np.random.default_rng(int(hashlib.sha256(path.name.encode()).hexdigest()[:8], 16))
        feeds = [_draw(i, rng) for i in reference.get_inputs()]
        wanted = run_session(reference, feeds)
        again = run_session(_session(path, seed=2), feeds)
    except Exception as error:
        return verdict(SKIPPED, f"ONNX Runtime: {error_text(error)}")
    if any(_differs(a, b) for a, b in zip(again, wanted, strict=True)):
        return verdict(SKIPPED, "random outputs")
    narrow = "float16" in str([i.type for i in (*reference.get_inputs(), *reference.get_outputs())])
    try:
        got, on_cpu = run(path, reference, feeds)
    except UnsupportedModelError as error:
        return verdict(DECLINED, error)
    except (InvalidModelError, InvalidInputError) as error:
        return verdict(REFUSED, f"{type(error).__name__}: {error}")
    except Exception as error:
        return verdict(ERROR, f"{type(error).__name__}: {error}")
    for k, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        difference = _differs(ours, theirs, narrow)
        if difference and _count(ours, theirs, narrow) > _spread(path, reference, feeds, k, narrow):
            return verdict(WRONG, f"output {k}: {difference}" + (f" (on the CPU: {on_cpu[0]})" if on_cpu else ""))
    return verdict(CPU, on_cpu[0]) if on_cpu else verdict(VULKAN)


def _session(path: Path, seed: int) -> Any:
    import onnxruntime

    onnxruntime.set_seed(seed)
    onnxruntime.set_default_logger_severity(4)
    return open_session(onnx.load(path), None)


def _draw(info: Any, rng: np.random.Generator) -> np.ndarray:
    """Values for an input that ONNX Runtime describes. Raises `ValueError` for an input that is not a tensor of
    numbers."""
    kind = info.type.removeprefix("tensor(").removesuffix(")")
    dtype = next((d for d in dtypes.DTYPES.values() if d.onnx_name == kind), None)
    if dtype is None:
        raise ValueError(f"an input of type {info.type}")
    shape = tuple(d if isinstance(d, int) and d >= 0 else _OPEN for d in info.shape)
    if dtype.numpy == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.numpy.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype.numpy)
    return rng.uniform(-1, 1, shape).astype(dtype.numpy)


def _spread(path: Path, reference: Any, feeds: list[np.ndarray], index: int, narrow: bool) -> int:
    """In how many elements of an output ONNX Runtime differs from itself without its optimizations, which round elsewhere: a
    quantized network may be a step off where a value lies between two.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return _count(run_session(reference, feeds)[index], run_session(plain, feeds)[index], narrow)


def _count(got: Any, want: Any, narrow: bool) -> int:
    if np.shape(got) != np.shape(want) or isinstance(want, list) or np.asarray(got).dtype != np.asarray(want).dtype:
        return 1 << 62
    return int((~_near(np.asarray(got), np.asarray(want), narrow)).sum())


def _near(got: np.ndarray, want: np.ndarray, narrow: bool) -> np.ndarray:
    g, w = got.astype(np.float64), want.astype(np.float64)
    tolerance = 1e-3 if want.dtype in (np.float32, np.float64) and not narrow else 2e-2
    with np.errstate(all="ignore"):
        return (g == w) | (np.abs(g - w) <= tolerance * (1 + np.abs(w))) | (np.isnan(g) & np.isnan(w))


def _differs(got: Any, want: Any, narrow: bool = False) -> str:
    if isinstance(want, list) or isinstance(got, list):
        if not isinstance(want, list) or not isinstance(got, list) or len(got) != len(want):
            return "another sequence"
        return next((d for d in map(_differs, got, want) if d), "")
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    if want.dtype.kind not in "fV" and want.dtype.name != "bfloat16":
        return "" if np.array_equal(got, want) else f"{int((got != want).sum())} of {want.size} differ"
    near = _near(got, want, narrow)
    if near.all():
        return ""
    largest = float(np.nanmax(np.abs(got.astype(np.float64) - want.astype(np.float64))))
    return f"{int((~near).sum())} of {want.size} differ, by {largest:.3g} at most"
