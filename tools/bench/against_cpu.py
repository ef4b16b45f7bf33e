"""``python -m tools.bench.against_cpu``: single operators against ONNX Runtime's CPU provider, detectors' ends, and models.

Sorting, selection, reductions, scans and indexing by long lists, which a GPU runs in several dispatches and whose time
depends on the data; products; with ``--models`` files in place of them, whose open sizes are 1. Each case runs in turns in
both engines, from numpy inputs to numpy outputs; printed are the least times of the turns in milliseconds, their quotient
(above 1 vkep is slower), and whether the results agree. ``--profile`` lists the dispatches of a run. ``--processor`` compares
the processor time of all threads, where other work keeps the machine busy; ONNX Runtime then has one thread, since others
spin while they wait.

    python -m tools.bench.against_cpu --only TopK --turns 7
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime

import vkep
from vkep.cli.plans import dispatch_times
from vkep.models.builder import Array

Feeds = dict[str, Array]
#: seconds of one engine's turn at least, unless a run takes longer
_TURN = 0.05


@dataclass(frozen=True)
class Case:
    """A graph in ONNX's text form, or the path of a model, and what it is fed."""

    name: str
    text: str
    feeds: Callable[[np.random.Generator], Feeds]
    close: bool = False  #: results are sums in float32, which differ in their last digits

    def model(self) -> onnx.ModelProto:
        """The graph as a model of opset 18, or the model."""
        if self.text.endswith(".onnx"):
            return onnx.load(self.text)
        return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {self.text}')


@dataclass
class Row:
    """Milliseconds of a case in both engines."""

    name: str
    vkep: float
    cpu: float
    agree: bool

    def __str__(self) -> str:
        text = f"{self.name:48} {self.vkep:9.3f} {self.cpu:9.3f} {self.vkep / self.cpu:8.2f}"
        return text if self.agree else f"{text}  RESULTS DIFFER"


def _floats(*shape: int) -> Callable[[np.random.Generator], Feeds]:
    return lambda rng: {"x": rng.standard_normal(shape, np.float32)}


def _top_k(rows: int, axis: int, k: int, feeds: Callable[[np.random.Generator], Feeds] | None = None) -> Case:
    text = f"""(float[{rows},{axis}] x) => (float[{rows},{k}] y, int64[{rows},{k}] i) {{
        k = Constant <value = int64[1] {{{k}}}> () y, i = TopK(x, k) }}"""
    kind = "sort" if k == axis else f"TopK {k}"
    return Case(f"{kind} of {rows} x {axis}" + (", ties" if feeds else ""), text, feeds or _floats(rows, axis))


def _boxes(rng: np.random.Generator, count: int) -> Array:
    """Corners of boxes of a 640 x 640 image, most of them small, in groups around objects as a detector places them."""
    objects = rng.random((60, 2)) * 640
    size = np.exp(rng.normal(4, 0.7, (count, 2)))
    centre = objects[rng.integers(0, 60, count)] + rng.normal(0, 30, (count, 2))
    return np.concatenate([centre - size / 2, centre + size / 2], 1).astype(np.float32)[None]


def _scores(rng: np.random.Generator, classes: int, count: int, every: bool) -> Array:
    """Scores from 0 to 1: one class in some hundred boxes is above 0.25, or all are."""
    if every:
        return (0.3 + 0.7 * rng.random((1, classes, count))).astype(np.float32)
    logits = rng.normal(-6, 1, (1, classes, count))
    sure = rng.choice(count, max(1, count // 20), replace=False)
    logits[0, rng.integers(0, classes, len(sure)), sure] = rng.normal(0, 1.5, len(sure))
    return (1 / (1 + np.exp(-logits))).astype(np.float32)


def _suppression(classes: int, count: int, most: int, every: bool = False) -> Case:
    text = f"""(float[1,{count},4] boxes, float[1,{classes},{count}] scores) => (int64[k,3] y) {{
        most = Constant <value = int64[1] {{{most}}}> () over = Constant <value = float[1] {{0.45}}> ()
        least = Constant <value = float[1] {{0.25}}> () y = NonMaxSuppression(boxes, scores, most, over, least) }}"""
    return Case(
        f"NonMaxSuppression {count} x {classes}, {most}" + (", all scores" if every else ""),
        text,
        lambda rng: {"boxes": _boxes(rng, count), "scores": _scores(rng, classes, count, every)},
    )


def _yolo(count: int, classes: int) -> Case:
    """YOLO's output to boxes, scores and classes, with the suppression inside."""
    text = f"""(float[1,{4 + classes},{count}] x) => (float[k,4] box, float[k] score, int64[k] kind) {{
        cut = Constant <value = int64[2] {{4, {classes}}}> () b, s = Split <axis: int = 1> (x, cut)
        t = Transpose <perm: ints = [0, 2, 1]> (b) half = Constant <value = float {{0.5}}> ()
        c, size = Split <axis: int = 2, num_outputs: int = 2> (t) h = Mul(size, half) low = Sub(c, h) high = Add(c, h)
        boxes = Concat <axis: int = 2> (low, high) most = Constant <value = int64[1] {{300}}> ()
        over = Constant <value = float[1] {{0.45}}> () least = Constant <value = float[1] {{0.25}}> ()
        n = NonMaxSuppression(boxes, s, most, over, least) two = Constant <value = int64 {{2}}> ()
        one = Constant <value = int64 {{1}}> () at = Gather <axis: int = 1> (n, two) kind = Gather <axis: int = 1> (n, one)
        first = Constant <value_ints: ints = [0]> () f = Squeeze(boxes, first) box = Gather(f, at) score = GatherND(s, n) }}"""

    def feeds(rng: np.random.Generator) -> Feeds:
        corners = _boxes(rng, count)
        centred = np.concatenate([corners[..., :2] / 2 + corners[..., 2:] / 2, corners[..., 2:] - corners[..., :2]], 2)
        return {"x": np.concatenate([centred.transpose(0, 2, 1), _scores(rng, classes, count, False)], 1)}

    return Case(f"YOLO's end, {count} x {classes}", text, feeds)


def _detr(count: int, classes: int) -> Case:
    """RT-DETR's end: the 300 best of all scores, their classes and boxes."""
    text = f"""(float[1,{count},{classes}] logits, float[1,{count},4] boxes)
        => (float[1,300] s, int64[1,300] kind, float[1,300,4] b) {{
        p = Sigmoid(logits) flat = Flatten(p) k = Constant <value = int64[1] {{300}}> () s, i = TopK(flat, k)
        n = Constant <value = int64 {{{classes}}}> () kind = Mod(i, n) at = Div(i, n)
        last = Constant <value_ints: ints = [2]> () u = Unsqueeze(at, last)
        wide = Constant <value_ints: ints = [1, 300, 4]> () e = Expand(u, wide)
        b = GatherElements <axis: int = 1> (boxes, e) }}"""
    return Case(
        f"RT-DETR's end, {count} x {classes}",
        text,
        lambda rng: {
            "logits": rng.normal(-4, 2, (1, count, classes)).astype(np.float32),
            "boxes": rng.random((1, count, 4), np.float32),
        },
        close=True,
    )


def _arg(shape: Sequence[int], axis: int, op: str = "ArgMax") -> Case:
    out = [n for d, n in enumerate(shape) if d != axis]
    text = f"(float[{_dims(shape)}] x) => (int64[{_dims(out)}] y) {{ y = {op} <axis: int = {axis}, keepdims: int = 0> (x) }}"
    return Case(f"{op} of {'x'.join(map(str, shape))}, axis {axis}", text, _floats(*shape))


def _reduced(shape: Sequence[int], axis: int, op: str) -> Case:
    out = [n for d, n in enumerate(shape) if d != axis]
    text = f"""(float[{_dims(shape)}] x) => (float[{_dims(out)}] y) {{
        d = Constant <value = int64[1] {{{axis}}}> () y = {op} <keepdims: int = 0> (x, d) }}"""
    feeds = _floats(*shape) if op == "ReduceMax" else lambda rng: {"x": rng.random(shape, np.float32)}
    return Case(f"{op} of {'x'.join(map(str, shape))}, axis {axis}", text, feeds, close=op != "ReduceMax")


def _histogram(count: int, bins: int) -> Case:
    """The numbers of elements of each bin, by OneHot and a sum."""
    text = f"""(int64[{count}] i) => (float[{bins}] y) {{ d = Constant <value = int64 {{{bins}}}> ()
        v = Constant <value = float[2] {{0, 1}}> () o = OneHot(i, d, v) a = Constant <value = int64[1] {{0}}> ()
        y = ReduceSum <keepdims: int = 0> (o, a) }}"""
    return Case(f"histogram of {count} in {bins}", text, lambda rng: {"i": rng.integers(0, bins, count)})


def _dims(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


def _counted(count: int) -> Iterator[Case]:
    yield Case(
        f"NonZero of {count}",
        f"(float[{count}] x) => (int64[1,k] y) {{ y = NonZero(x) }}",
        lambda rng: {"x": np.where(rng.random(count) < 0.1, rng.random(count), 0).astype(np.float32)},
    )
    yield Case(
        f"Compress of {count} x 4",
        f"(float[{count},4] x, bool[{count}] c) => (float[k,4] y) {{ y = Compress <axis: int = 0> (x, c) }}",
        lambda rng: {"x": rng.random((count, 4), np.float32), "c": rng.random(count) < 0.1},
    )
    yield Case(
        f"Unique of {count}",
        f"(int64[{count}] x) => (int64[k] y) {{ y = Unique(x) }}",
        lambda rng: {"x": rng.integers(0, 80, count)},
    )
    yield Case(
        f"Unique of {count}, all outputs",
        f"(float[{count}] x) => (float[k] y, int64[k] a, int64[{count}] b, int64[k] c) {{ y, a, b, c = Unique(x) }}",
        lambda rng: {"x": rng.integers(0, count, count).astype(np.float32)},
    )


def _indexed(count: int) -> Iterator[Case]:
    """Lists of so many indices."""
    rows = f"float[{count},8]"
    yield Case(
        f"GatherND of {count} x 8",
        f"({rows} x, int64[{count},1] i) => ({rows} y) {{ y = GatherND(x, i) }}",
        lambda rng: {"x": rng.random((count, 8), np.float32), "i": rng.integers(0, count, (count, 1))},
    )
    for how in ("none", "add"):
        yield Case(
            f"ScatterND {how} of {count} x 8",
            f'({rows} x, int64[{count},1] i, {rows} u) => ({rows} y) {{ y = ScatterND <reduction: string = "{how}"> (x, i, u) }}',
            lambda rng: {
                "x": rng.random((count, 8), np.float32),
                "i": rng.permutation(count)[:, None],
                "u": rng.random((count, 8), np.float32),
            },
        )
        yield Case(
            f"ScatterElements {how} of {count}",
            f"(float[{count}] x, int64[{count}] i, float[{count}] u) => (float[{count}] y) {{ "
            f'y = ScatterElements <reduction: string = "{how}"> (x, i, u) }}',
            lambda rng: {
                "x": rng.random(count, np.float32),
                "i": rng.permutation(count),
                "u": rng.random(count, np.float32),
            },
        )
    yield Case(
        f"ScatterElements add of {count} to 100",
        f"(float[100] x, int64[{count}] i, float[{count}] u) => (float[100] y) {{ "
        'y = ScatterElements <reduction: string = "add"> (x, i, u) }',
        lambda rng: {
            "x": rng.random(100, np.float32),
            "i": rng.integers(0, 100, count),
            "u": rng.random(count, np.float32),
        },
        close=True,
    )
    yield Case(
        f"OneHot of {count} x 100",
        f"(int64[{count}] i) => (float[{count},100] y) {{ d = Constant <value = int64 {{100}}> () "
        "v = Constant <value = float[2] {0, 1}> () y = OneHot(i, d, v) }",
        lambda rng: {"i": rng.integers(0, 100, count)},
    )


def _sum(rows: int, axis: int, inner: int = 1) -> Case:
    shape = f"float[{rows},{axis},{inner}]"
    text = f"({shape} x) => ({shape} y) {{ d = Constant <value = int32 {{1}}> () y = CumSum(x, d) }}"
    return Case(
        f"CumSum of {rows} x {axis} x {inner}",
        text,
        lambda rng: {"x": rng.integers(-9, 9, (rows, axis, inner)).astype(np.float32)},
    )


def _product(m: int, k: int, n: int) -> Case:
    """By a constant matrix."""
    text = f"""(float[{m},{k}] x) => (float[{m},{n}] y) {{ s = Constant <value = int64[2] {{{k}, {n}}}> ()
        first = Constant <value = float {{0}}> () end = Constant <value = float {{{k * n}}}> ()
        step = Constant <value = float {{1}}> ()
        r = Range(first, end, step) v = Sin(r) w = Reshape(v, s) y = MatMul(x, w) }}"""
    return Case(f"MatMul of {m} x {k} x {n}", text, _floats(m, k), close=True)


def _file(path: Path) -> Case:
    def feeds(rng: np.random.Generator) -> Feeds:
        made: Feeds = {}
        model = onnx.load(path, load_external_data=False)
        for info in model.graph.input:
            kind = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
            shape = [d.dim_value or 1 for d in info.type.tensor_type.shape.dim]
            made[info.name] = (rng.standard_normal(shape) if kind.kind == "f" else np.zeros(shape)).astype(kind)
        return made

    return Case(path.stem, str(path), feeds, close=True)


def cases() -> Iterator[Case]:
    """Every case."""
    for rows, axis, k in (
        (1, 672_000, 1000),
        (1, 672_000, 300),
        (32, 100_000, 100),
        (1, 128_256, 50),
        (1, 128_256, 1),
        (1, 8400, 300),
        (1, 1000, 5),
        (64, 1000, 5),
        (8400, 80, 3),
        (1, 100_000, 20_000),
    ):
        yield _top_k(rows, axis, k)
    yield _top_k(1, 672_000, 1000, lambda rng: {"x": rng.integers(0, 30, (1, 672_000)).astype(np.float32)})
    for rows, axis in ((1, 4096), (64, 4096), (1, 65_536), (64, 65_536), (1000, 100)):
        yield _top_k(rows, axis, axis)
    for classes, count, most in ((1, 8400, 300), (80, 8400, 100), (80, 25_200, 300)):
        yield _suppression(classes, count, most)
        yield _suppression(classes, count, most, every=True)
    yield _yolo(8400, 80)
    yield _yolo(25_200, 80)
    yield _detr(8400, 80)
    yield _detr(300, 80)
    for shape, axis in (((1, 1_000_000), 1), ((1, 80, 8400), 1), ((1, 8400, 80), 2), ((64, 128_256), 1)):
        yield _arg(shape, axis)
        yield _reduced(shape, axis, "ReduceMax")
        yield _reduced(shape, axis, "ReduceSum")
    yield _arg((1, 100_000, 4), 1, "ArgMin")
    yield _reduced((1, 100_000, 4), 1, "ReduceMean")
    yield _histogram(100_000, 100)
    yield from _counted(8400)
    yield from _counted(672_000)
    yield _sum(1, 1_000_000)
    yield _sum(64, 16_384)
    yield _sum(1, 4096, 256)
    yield from _indexed(100_000)
    for product in ((1024, 1024, 1024), (128, 768, 768), (197, 768, 3072)):
        yield _product(*product)


def measure(case: Case, turns: int, profile: bool, processor: bool = False) -> Row:
    """Both engines in turns. Raises whatever either raises."""
    model = case.model().SerializeToString()
    feeds = case.feeds(np.random.default_rng(7))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = int(processor)
    clock = time.process_time if processor else time.perf_counter
    cpu = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with vkep.InferenceSession(model) as session:
        got, want = session.run(None, feeds), cpu.run(None, feeds)
        rtol = 1e-3 if case.close else 0
        agree = all(
            a.shape == b.shape and np.allclose(a, b, rtol, rtol * np.abs(b).max(initial=0) if rtol else 0)
            for a, b in zip(got, want, strict=True)
        )
        ours, theirs = math.inf, math.inf
        for _ in range(turns):
            ours = min(ours, _least(lambda: session.run(None, feeds), clock))
            theirs = min(theirs, _least(lambda: cpu.run(None, feeds), clock))
        if profile:
            _print_profile(session, feeds)
    return Row(case.name, ours, theirs, agree)


def _least(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """The least milliseconds of a run in a turn."""
    least, end = math.inf, time.perf_counter() + _TURN
    while least == math.inf or time.perf_counter() < end:
        start = clock()
        run()
        least = min(least, (clock() - start) * 1e3)
    return least


def _print_profile(session: vkep.InferenceSession, feeds: Mapping[str, Array]) -> None:
    samples = [session.profile(feeds) for _ in range(3)]
    for time_of in dispatch_times([island.plan for island in session.islands()], samples):
        print(f"    {time_of.nanoseconds / 1e6:9.3f} ms  {time_of.kernel}  {time_of.label}  grid {time_of.grid}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Exit code 1 where results differ or an engine fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.against_cpu", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="the cases whose names contain one of these"
    )
    parser.add_argument(
        "--models", nargs="+", type=Path, default=[], metavar="FILE", help="models in place of the cases"
    )
    parser.add_argument("--turns", type=int, default=5, help="turns of each engine (5)")
    parser.add_argument("--profile", action="store_true", help="list the dispatches of a run")
    parser.add_argument("--processor", action="store_true", help="compare processor time")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    given = parser.parse_args(arguments)
    rows, failed = [], False
    print(f"{'':48} {'vkep ms':>9} {'CPU ms':>9} {'quotient':>8}")
    for case in map(_file, given.models) if given.models else cases():
        if given.only and not any(part in case.name for part in given.only):
            continue
        rows.append(measure(case, given.turns, given.profile, given.processor))
        failed |= not rows[-1].agree
        print(rows[-1], flush=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
    return int(failed or not rows)


if __name__ == "__main__":
    sys.exit(main())
