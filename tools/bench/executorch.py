"""Programs (.pte) against the same model as an ONNX session: ``python -m tools.bench.executorch [PTE ONNX]``.

Both run in one process on one context, in turns, numpy in and out. Without arguments: the RFC's model, mixed. A pair of
MobileNetV2 is made with ``python -m tools.executorch_data mobilenet_v2_full --variant vulkan --out FOLDER`` (needs torch)
and ``python -m tools.models mobilenetv2 --out FOLDER``. Exit status 1 where a program takes more than ``--allow`` times as
long.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples import mixed_delegates
from vkep import InferenceSession
from vkep.executorch import Program

ROOT = Path(__file__).resolve().parents[2]
RFC = ROOT / "tests" / "executorch" / "data" / "given" / "unified_vgf_and_vk.pte"
#: minimum seconds of a turn
TURN_S = 0.05


@dataclass(frozen=True)
class Pair:
    """Median milliseconds of each; ``ratio`` is the median of the ratios of adjacent turns, which the machine's noise
    affects less."""

    name: str
    program_ms: float
    session_ms: float
    ratio: float
    difference: float  #: largest difference between their outputs, if the weights are the same
    where: str


def measure(pte: Path, onnx: Any, turns: int, prefer: str) -> Pair:
    """Run both in turns. Raises ``ValueError`` where their inputs differ."""
    with Program.load(pte) as program:
        method = program.load_method("forward")
        contexts = program.contexts()
        with InferenceSession(onnx, prefer=prefer, context=contexts[0] if contexts else None) as session:
            meta, (argument,) = method.metadata, session.get_inputs()
            info = meta.input_tensor_meta(0)
            shape = tuple(
                d if isinstance(d, int) else n for d, n in zip(argument.shape or (), info.sizes(), strict=True)
            )
            if shape != info.sizes() or meta.num_inputs() != 1:
                raise ValueError(f"{pte} takes {meta.describe()}, the ONNX model {argument.shape}")
            x = np.random.default_rng(0).standard_normal(shape).astype(info.numpy_dtype)
            inputs, feeds = [x], {argument.name: x}
            difference = float(np.abs(method.execute(inputs)[0] - session.run(None, feeds)[0]).max())
            times: list[tuple[float, float]] = []
            for _ in range(turns):
                times.append((_turn(lambda: method.execute(inputs)), _turn(lambda: session.run(None, feeds))))
            first, second = zip(*times, strict=True)
            ratio = statistics.median(a / b for a, b in times)
            counts = session.report().counts
    return Pair(pte.name, statistics.median(first), statistics.median(second), ratio, difference, str(counts))


def _turn(run: Callable[[], Any]) -> float:
    """Milliseconds per run."""
    count, start = 0, time.perf_counter()
    while True:
        run()
        count += 1
        spent = time.perf_counter() - start
        if spent >= TURN_S:
            return spent / count * 1e3


def main(arguments: list[str] | None = None) -> int:
    """Measure a program beside the same model as an ONNX session."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.executorch", description=main.__doc__)
    parser.add_argument(
        "pair", nargs="*", type=Path, metavar="FILE", help="a .pte and an .onnx file (default: the RFC's model)"
    )
    parser.add_argument("--turns", type=int, default=60, help="turns of each (default: 60)")
    parser.add_argument(
        "--prefer", default=None, help="delegates of the ONNX session (default: vgf_first for the RFC's, else auto)"
    )
    parser.add_argument("--allow", type=float, default=1.1, help="most times as long as the session (default: 1.1)")
    given = parser.parse_args(arguments)
    if len(given.pair) not in (0, 2):
        parser.error("expected a .pte and an .onnx file, or nothing")
    pte, onnx = (given.pair[0], given.pair[1]) if given.pair else (RFC, mixed_delegates.build_model())
    prefer = given.prefer or ("auto" if given.pair else "vgf_first")
    pair = measure(pte, onnx, given.turns, prefer)
    print(
        f"{pair.name}: program {pair.program_ms:.3f} ms, ONNX session {pair.session_ms:.3f} ms ({pair.where}), "
        f"ratio {pair.ratio:.3f}; "
        + (f"outputs differ by {pair.difference:.1e}" if pair.difference < 1e-3 else "other weights")
    )
    return 0 if pair.ratio <= given.allow else 1


if __name__ == "__main__":
    sys.exit(main())
