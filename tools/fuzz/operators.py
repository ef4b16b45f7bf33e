"""Draws calls that break their operators' specification, and compares vkep with ONNX Runtime's CPU provider.

    python -m tools.fuzz.operators --cases 5000 --seed 1 [--only Conv] [--case 1234]
    python -m tools.fuzz.operators --sizes --cases 5000 --seed 1

A call that ONNX Runtime refuses must be refused (any of vkep's documented errors); what it accepts must give the same
result, or be declined. No kernel may touch what is beside its operands (`tools.fuzz.guard`), no process may end, none
may hang. With ``--sizes`` the calls, and small graphs of several nodes, are valid: each runs at several sizes through one
session (`tools.fuzz.sizes`).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tools.fuzz import sizes
from tools.fuzz.corpus import calls
from tools.fuzz.mutate import Found, draw
from tools.fuzz.worker import Answering, Outcome, one_call, serve

#: a case's operator and text by its number
Describing = Callable[[int], tuple[str, str]]
#: seconds that an engine may take for a case
LIMIT = 300
#: cases in which vkep differs from ONNX Runtime and is right: (operator, verdict, a part of the outcome's text or the
#: case, why)
KNOWN: tuple[tuple[str, str, str, str], ...] = (
    (".*Dropout", "differs", "", "what is dropped is drawn"),
    ("Squeeze", "differs", r"axes: int64\[0\]", "no axes are none; ONNX Runtime takes them for all"),
    ("Squeeze", "accepted", "Axes input is null", "ONNX Runtime's kernel of opset 25 wants the optional axes"),
    ("ConvInteger", "accepted", "per-tensor", "the specification has a zero point for each output channel"),
    ("LRN", "accepted", "NumDimensions|beta_|alpha_|size_ % 2", "the specification has any axes, sizes and factors"),
    (".*Attention", "accepted", "kv_sequence_length > 0", "no keys: the specification has no least number"),
    ("LpNormalization", "accepted", r"\[-0,-1\]", "axis 0 of a scalar"),
    (
        "ReduceSum",
        "differs",
        "363, expected -7",
        "a sum of the largest int64 wraps to 363, as numpy's; not ONNX Runtime's",
    ),
    ("Einsum", "accepted", "lower-cased letters", "ONNX Runtime refuses upper-cased letters without an arrow"),
    ("(RNN|GRU|.*LSTM)", "accepted", "hidden_size", "an optional attribute that ONNX Runtime needs"),
    (
        "QLinearMatMul",
        "accepted",
        "offset. was false|_offset|IsScalarOr1ElementVector",
        "the specification has a zero point and a scale for each row",
    ),
    (".*MatMulNBits", "refused", r"B has shape \[0,", "ONNX Runtime does not look at the shape of no rows"),
    (".*IsAllFinite", "accepted", "bound to different types", "each tensor is looked at alone"),
    (".*MultiHeadAttention", "accepted", r"\(qk\) type inference failed.*bfloat16", "a limit of ONNX Runtime's"),
    (
        ".*TreeEnsemble.*",
        "accepted",
        "input tensor has 1 features",
        "a list of features is one row, of which ONNX Runtime counts another axis",
    ),
    ("Gather", "accepted", r"i0: axis [0-9]+ [0-9]+ -> 0", "where the result is empty, no kernel reads the indices"),
    (".*EmbedLayerNormalization", "accepted", "node has 1 outputs", "an output that nobody asks for"),
    (
        ".*MatMulNBits(Mlp)?",
        "accepted",
        "bias shape must be",
        "ONNX Runtime infers shapes from sizes that it does not know",
    ),
    (
        "com.microsoft.QLinear.*",
        "accepted",
        "marked single but has an empty",
        "an input that the operator does without",
    ),
    (
        ".*MultiHeadAttention",
        "differs",
        "'unidirectional': 1",
        "the specification hides later keys; ONNX Runtime lets the last of fewer queries than keys see all",
    ),
    ("com.microsoft.UnfoldTensor", "accepted", r": bool\[", "a limit of ONNX Runtime's"),
    (".*", "differs", r"(->|=) -?(inf|nan)", "an attribute that is no number"),
    (
        ".*MatMulNBits",
        "accepted",
        "bound to different types",
        "scales of another type, which importers of programs write",
    ),
    ("Hardmax|(Log)?Softmax", "refused", "out of range", "ONNX Runtime before opset 13 does not look at the axis"),
    ("ConvTranspose", "differs", "SAME_", "the specification's size is input times stride"),
    ("MaxUnpool", "differs", "output_shape", "indices count in the pooled shape: maxunpool_export_with_output_shape"),
    ("MaxUnpool", "refused", "an index is outside.*output_shape", "they count in the pooled shape here too"),
    (
        ".*SkipSimplifiedLayerNormalization",
        "refused",
        "skip has shape",
        "ONNX Runtime reads beyond a skip of fewer batches",
    ),
    ("GatherND", "refused", "batch_dims", "ONNX Runtime does not look at it where nothing is gathered"),
    ("Dropout", "accepted", r"ratio_value < 1", "outside of training the ratio is nobody's"),
    (
        "QLinearConv",
        "accepted",
        "both 'auto_pad' and 'pads'",
        "the specification only says that they should not come together",
    ),
    ("(Max|Average|Lp|Global).*Pool", "accepted", "Only N can be zero", "a limit of ONNX Runtime's"),
    ("(RNN|GRU|LSTM)", "accepted", "layout_ == 0", "a limit of ONNX Runtime's"),
    ("(RNN|GRU|LSTM)", "differs", "nan, expected 0.0", "HardSigmoid of NaN"),
    (
        "Reduce(Max|Min)",
        "differs",
        "nan, expected",
        "NaN among the elements: ONNX Runtime's result follows from their order",
    ),
    ("Reduce(Max|Min)", "accepted", "empty set with bool", "the specification has the least value of the type"),
    ("Cast(Like)?", "accepted", "only used for cast to float 8", "the attribute does nothing for other types"),
    (".*FusedGemm", "accepted", "unknown kernel type", "a limit of ONNX Runtime's"),
    (
        "Dynamic.*",
        "differs",
        "0.003921568859368563, expected 1.0",
        "the specification's function keeps the range of zeros",
    ),
    ("Concat", "refused", "differ on another axis", "ONNX Runtime lets an empty input have any shape"),
    ("Gelu", "refused", "approximate", "ONNX Runtime has no kernel for float16, and its function body takes any text"),
    ("GroupNormalization", "refused", "bias|scale", "ONNX Runtime's function body broadcasts them"),
    ("Reduce.*", "refused", "out of range for rank 0", "ONNX Runtime does not look at the axes of a scalar"),
    ("Scatter(Elements|ND)", "refused", "reduction is", "ONNX Runtime takes an unknown reduction for none"),
    ("MatMulInteger", "accepted", "a_zero_point", "the specification has a zero point for each row"),
    (
        ".*EmbedLayerNormalization",
        "accepted",
        "dimension size (is )?known",
        "ONNX Runtime infers shapes from sizes it does not know",
    ),
    (
        ".*GatherBlockQuantized",
        "accepted",
        "zero points shape and scales shape",
        "as before; with known sizes it accepts them",
    ),
    (".*FusedGemm", "accepted", "No attribute with name", "an optional attribute that ONNX Runtime needs"),
    (
        ".*QLinear(Add|Mul)",
        "accepted",
        "must be a scalar|Input data type",
        "a list of one, or no zero point, where sizes are unknown",
    ),
    (
        "HannWindow|HammingWindow|BlackmanWindow",
        "differs",
        "element 0 is 1.*nan",
        "a window of one is no division by 0",
    ),
    ("Celu", "differs", "'alpha': 0.0", "a division by an attribute of 0"),
    ("Attention", "accepted", "attn_mask", "the specification has fewer columns than keys; ONNX Runtime does not"),
    ("Expand", "accepted", r"new_shape: int64\[\] ", "a number for a list of one"),
    ("MaxRoiPool", ".*", "spatial_scale", "a scale that is no number"),
    ("ArgMax|ArgMin", "refused", "out of range for rank 0", "ONNX Runtime does not look at the axis of a scalar"),
    ("ConstantOfShape|Pad", "refused", "expected one axis", "ONNX Runtime takes a matrix of one row for a list"),
    ("Range", "accepted", "inlfunc", "ONNX Runtime's function body does not fit its own types"),
    ("Resize", "accepted", r"sizes' \(0\)", "ONNX Runtime infers shapes from sizes that it does not know yet"),
    (".*Inverse", "refused", "expected square matrices", "ONNX Runtime does not look at the shape"),
    (".*QMoE", "differs", r" m: float", "ONNX Runtime divides routing weights by their sum in any case"),
    (
        ".*SparseAttention",
        "accepted",
        "DataRaw|multiple of 16",
        "caches in one memory, and head sizes, that ONNX Runtime needs",
    ),
    (
        ".*DecoderMaskedMultiHeadAttention",
        "accepted",
        r"output arg \(qk\)",
        "ONNX Runtime infers float16 for its scores",
    ),
)


class _Worker:
    """A process that answers one case at a time."""

    def __init__(self, answering: Answering, describing: Describing) -> None:
        self._answering, self._describing = answering, describing
        self.number = -1
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_quietly, args=(other, self._answering), daemon=True)
        self._process.start()
        other.close()
        self.stage, self.since = "start", time.monotonic()

    def ask(self, number: int) -> None:
        self.number, self.stage, self.since = number, "start", time.monotonic()
        self.pipe.send(number)

    def answer(self) -> Outcome | None:
        """The case's outcome; None where it has not arrived yet."""
        ended = ""
        try:
            if self.pipe.poll():
                said = self.pipe.recv()
                if isinstance(said, Outcome):
                    return said
                self.stage, self.since = said, time.monotonic()
                return None
        except (EOFError, ConnectionResetError):
            self._process.join()
            ended = "crash"
        if not ended and time.monotonic() - self.since < LIMIT:
            return None
        code = self._process.exitcode
        self.close()
        self._start()
        operator, case = self._describing(self.number)
        kind, stage = ended or "hang", self.stage_of_crash
        verdict = kind if stage.startswith("vkep") else ""
        return Outcome(operator, self.number, verdict, f"exit code {code} ({stage})", kind, stage, case)

    def close(self) -> None:
        self.stage_of_crash = self.stage
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _quietly(pipe: Connection, answering: Answering) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        serve(pipe, answering)


def outcomes(answering: Answering, describing: Describing, numbers: Iterable[int], jobs: int) -> Iterator[Outcome]:
    """The outcomes of the cases, in the order in which they arrive."""
    waiting = iter(numbers)
    workers = [_Worker(answering, describing) for _ in range(jobs)]
    busy: list[_Worker] = []
    try:
        for worker in workers:
            _ask(worker, waiting, busy)
        while busy:
            wait([worker.pipe for worker in busy], timeout=1)
            for worker in list(busy):
                outcome = worker.answer()
                if outcome is not None:
                    busy.remove(worker)
                    yield excused(outcome)
                    _ask(worker, waiting, busy)
    finally:
        for worker in workers:
            worker.close()


def _ask(worker: _Worker, waiting: Iterator[int], busy: list[_Worker]) -> None:
    number = next(waiting, None)
    if number is not None:
        worker.ask(number)
        busy.append(worker)


def excused(outcome: Outcome) -> Outcome:
    """The outcome without its verdict where it is one of `KNOWN`."""
    for operator, verdict, pattern, _ in KNOWN:
        same = re.fullmatch(operator, outcome.operator) and verdict == outcome.verdict
        if same and re.search(pattern, f"{outcome.text} {outcome.case}"):
            return replace(outcome, verdict="")
    return outcome


def by_operator(only: str = "") -> Found:
    """The valid calls that cases are derived from, by operator."""
    found: Found = defaultdict(list)
    for call in calls():
        if re.fullmatch(only or ".*", call.operator):
            found[call.operator].append(call)
    return dict(found)


def table(results: Iterable[Outcome]) -> str:
    """A line for each operator with findings, and one for all."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for key in (result.operator, "all"):
            counts[key].update(["cases", f"ours {result.ours}", result.verdict or "well"])
    kinds = ("crash", "hang", "written beside", "accepted", "differs", "refused", "exception")
    head = f"{'operator':<44}{'cases':>7}{'result':>8}{'refused':>9}{'declined':>10}  findings"
    lines = [head]
    for name in sorted(counts, key=lambda n: (n == "all", n)):
        count = counts[name]
        wrong = ", ".join(f"{kind} {count[kind]}" for kind in kinds if count[kind])
        if wrong or name == "all":
            ours = (count["ours result"], count["ours refused"], count["ours declined"])
            lines.append(f"{name:<44}{count['cases']:>7}{ours[0]:>8}{ours[1]:>9}{ours[2]:>10}  {wrong or 'none'}")
    return "\n".join(lines)


def _broken_calls(only: str, seed: int) -> tuple[Answering | None, Describing]:
    found = by_operator(only)

    def describe(number: int) -> tuple[str, str]:
        case = draw(found, seed, number)
        return case.operator, str(case)

    return functools.partial(one_call, found, seed) if found else None, describe


def _series(only: str, seed: int, recorded: bool) -> tuple[Answering | None, Describing]:
    found = sizes.samples(functools.partial(re.fullmatch, only or ".*"), recorded)

    def describe(number: int) -> tuple[str, str]:
        sample, _ = sizes.draw(found, seed, number)
        return sample.operator, sample.text

    return functools.partial(sizes.one_series, found, seed) if found else None, describe


def fits(results: list[Outcome]) -> str:
    """The counts of runs at several sizes."""
    fitted = {r.operator for r in results if r.refitted}
    return (
        f"{sum(r.runs for r in results)} runs in {sum(r.runs > 1 for r in results)} sessions of "
        f"{len({r.operator for r in results if r.runs > 1})} operators; {sum(r.fitted for r in results)} set a plan to sizes, "
        f"{sum(r.refitted for r in results)} a plan in memory of other sizes, of {len(fitted)} operators"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000, help="the operators take turns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="regular expression over operators")
    parser.add_argument("--case", type=int, help="only this case, with its details")
    parser.add_argument("--results", type=Path, help="a line of JSON for each case")
    parser.add_argument("--sizes", action="store_true", help="valid calls and small graphs, each at several sizes")
    parser.add_argument(
        "--node-tests", action="store_true", help="without the models of tests/ops, which take a minute to find"
    )
    args = parser.parse_args(arguments)
    if args.sizes:
        answering, describing = _series(args.only, args.seed, not args.node_tests)
    else:
        answering, describing = _broken_calls(args.only, args.seed)
    if answering is None:
        parser.error(f"--only {args.only!r} is no operator of the corpus")
    numbers = range(args.cases) if args.case is None else [args.case]
    results: list[Outcome] = []
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(args.results.open("w")) if args.results else None
        for outcome in outcomes(answering, describing, numbers, args.jobs):
            results.append(outcome)
            if file:
                file.write(json.dumps(asdict(outcome)) + "\n")
                file.flush()
            if outcome.verdict or args.case is not None:
                print(
                    f"{outcome.verdict or 'well'}: case {outcome.number}: {outcome.case}\n    {outcome.text}",
                    flush=True,
                )
    print(table(results))
    if args.sizes:
        print(fits(results))
    return 1 if any(r.verdict for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
