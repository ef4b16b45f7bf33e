"""Which models have independent rows, and whether a proved one differs where requests are joined.

    python -m tools.row_proofs [--pairs 10000] [--seconds 600] [--sources catalog parts ...] [--quiet]

For each model: proved, or the operator for which it is not known (`vkep.placement.rows`). Of each proved one, drawn requests of a
row run alone, then several in one run in a drawn order, then some of these beside others. A result that changes with the others
is wrong; so is one that is not that alone, but for rounding: runs of other sizes may choose other kernels. Two requests in one
run are a pair. The models are those of `tools.models` with an open batch, `vkep model`, and those that the onnx package has:
networks of ONNX's model zoo, modules that torch exported, and operators; of these the first axis is opened. The exit status is 1
if a proved model differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

import vkep
from gpu_shared.capabilities import DeviceCapabilities
from tools.backend_suite.cases import Case, load_cases
from tools.models.catalog import CATALOG, Options, build_model, reference_inputs
from tools.models.fusions import FUSIONS
from vkep.errors import VkepError
from vkep.graph import load_model
from vkep.models.starters import bert, cnn
from vkep.placement.rows import RowProof, independent

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
#: requests of a model, and how many of them share a run
_REQUESTS, _TOGETHER = 12, 8
#: the share of elements that a quantized model may round to another step
_ROUNDED = 0.05
#: bytes of weights, and values of a request, beyond which a model has two requests: its runs take long on a processor
_LARGE, _LONG = 16 << 20, 1 << 16


@dataclass(frozen=True)
class Subject:
    """A model whose inputs have rows: rows of its inputs, of which requests are drawn."""

    source: str
    name: str
    make: Callable[[], tuple[onnx.ModelProto, Feeds]]


def with_rows(proto: onnx.ModelProto, feeds: Feeds, rows: set[str]) -> onnx.ModelProto:
    """The model with axis 0 of some inputs open; the other inputs are weights."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    graph = changed.graph
    weights = {tensor.name for tensor in graph.initializer}
    for info in list(graph.input):
        if info.name in rows:
            info.type.tensor_type.shape.dim[0].dim_param = "rows"
        elif info.name not in weights:
            graph.input.remove(info)
            graph.initializer.append(onnx.numpy_helper.from_array(feeds[info.name], info.name))
    for info in graph.output:
        info.type.tensor_type.ClearField("shape")
    graph.ClearField("value_info")
    for node in graph.node:  # exporters of one image write its batch into sizes
        for tensor in graph.initializer:
            if node.op_type == "Reshape" and node.input[1] == tensor.name:
                sizes = onnx.numpy_helper.to_array(tensor)
                if len(sizes) > 1 and sizes[0] == 1 and (sizes > 0).all():
                    tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([-1, *sizes[1:]]), tensor.name))
    return changed


def opened(proto: onnx.ModelProto, feeds: Feeds) -> Iterator[tuple[onnx.ModelProto, Feeds]]:
    """A model with each set of its inputs that may have rows, and their rows."""
    for size in {a.shape[0] for a in feeds.values() if a.ndim} - {0, 1}:
        same = [n for n, a in feeds.items() if a.ndim and a.shape[0] == size]
        for rows in {frozenset(same), *(frozenset([one]) for one in same)}:
            yield with_rows(proto, feeds, set(rows)), {n: feeds[n] for n in rows}
    single = [n for n, a in feeds.items() if a.ndim > 1 and a.shape[0] == 1]
    for rows in {frozenset(single), frozenset(single[:1])} - {frozenset()}:  # images, of which a case has one
        both = {n: np.concatenate([feeds[n], feeds[n][..., ::-1]]) for n in rows}
        yield with_rows(proto, feeds, set(rows)), both


def arrays_of(case: Case, proto: onnx.ModelProto) -> Feeds | None:
    """A case's inputs by name; None where they are not arrays."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    infos = [i for i in proto.graph.input if i.type.HasField("tensor_type") and i.name not in weights]
    arrays = next(iter(case.data(proto)))[0]
    if len(infos) != len(arrays) or not all(isinstance(a, np.ndarray) for a in arrays):
        return None
    return {info.name: a for info, a in zip(infos, arrays, strict=True)}


def subjects() -> Iterator[Subject]:
    """All models, those last whose runs take longest on a processor."""
    for name, build in (("cnn", cnn), ("bert", bert)):
        yield Subject("vkep model", name, lambda build=build: _of_starter(build()))  # type: ignore[misc]
    for name, fusion in FUSIONS.items():
        yield Subject("parts of networks", name, lambda f=fusion: _all(f.model(), f.feeds()))  # type: ignore[misc]
    kinds = {
        "pytorch-converted": "torch's modules",
        "pytorch-operator": "torch's operators",
        "node": "ONNX's operators",
        "light": "ONNX's model zoo",
    }
    for kind, source in kinds.items():
        for name, case in load_cases().items():
            if case.kind == kind and not case.is_random:
                yield Subject(source, name.partition("/")[2], lambda case=case: _of_case(case))  # type: ignore[misc]
    for name, spec in CATALOG.items():
        if spec.has_batch and spec.can_be_dynamic:
            yield Subject("catalog", name, lambda name=name: _of_catalog(name))  # type: ignore[misc]


def _all(proto: onnx.ModelProto, feeds: Feeds) -> tuple[onnx.ModelProto, Feeds]:
    """A model with the axis of rows that the most of its inputs have."""
    found = max(opened(proto, feeds), key=lambda one: len(one[1]), default=None)
    if found is None:
        raise LookupError("no input has rows")
    return found


def _of_case(case: Case) -> tuple[onnx.ModelProto, Feeds]:
    proto = case.model()
    feeds = arrays_of(case, proto)
    if feeds is None:
        raise LookupError("inputs are not tensors")
    return _all(proto, feeds)


def _of_catalog(name: str) -> tuple[onnx.ModelProto, Feeds]:
    options = Options(batch=2, dynamic=True)
    proto = build_model(name, options)
    return proto, reference_inputs(name, proto, options)


def _of_starter(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Feeds]:
    draw, feeds = np.random.default_rng(0), dict[str, Array]()
    for info in proto.graph.input:
        shape = [d.dim_value or (2 if axis == 0 else 16) for axis, d in enumerate(info.type.tensor_type.shape.dim)]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        drawn = draw.standard_normal(shape) if dtype.kind == "f" else draw.integers(0, 2, shape)
        feeds[info.name] = drawn.astype(dtype)
    return proto, feeds


def requests(feeds: Feeds, draw: np.random.Generator, count: int) -> list[Feeds]:
    """Requests of a row: floats of the size of those in ``feeds``, other values from them, since they may be indices."""
    found: list[Feeds] = []
    for _ in range(count):
        one: dict[str, Array] = {}
        for name, rows in feeds.items():
            row = draw.permuted(rows[[int(draw.integers(len(rows)))]].reshape(1, -1), axis=1).reshape(
                1, *rows.shape[1:]
            )
            if rows.dtype.kind == "f" and rows.size and np.isfinite(rows).all():
                row = (row + np.std(rows) * draw.standard_normal(row.shape)).astype(rows.dtype)
            one[name] = np.ascontiguousarray(row)
        found.append(one)
    return found


class Checked:
    """A proved model, open: the results of its requests alone."""

    def __init__(self, proto: onnx.ModelProto, feeds: Feeds, draw: np.random.Generator) -> None:
        """Raises as `vkep.InferenceSession`, also where no request is valid."""
        size = sum(len(t.raw_data) for t in proto.graph.initializer)
        is_large = size > _LARGE or sum(a[:1].size for a in feeds.values()) > _LONG
        self._draw, self._session = draw, vkep.InferenceSession(proto.SerializeToString())
        try:
            self._requests = requests(feeds, draw, 2 if is_large else _REQUESTS)
            self._alone = [self._session.run(None, dict(one)) for one in self._requests]
        except BaseException:
            self.close()
            raise

    def joined(self) -> tuple[int, str]:
        """Join some requests: the pairs that were compared, and what differs."""
        order = self._draw.permutation(len(self._requests))[:_TOGETHER]
        others = self._draw.choice(order, len(order))
        stays = np.arange(len(order)) % 2 == self._draw.integers(2)
        results = zip(self._run(order), self._run(np.where(stays, order, others)), strict=True)
        for at, (result, beside_others) in enumerate(results):
            alone = np.concatenate([self._alone[k][at] for k in order])
            if not _same(result[stays], beside_others[stays]):
                return 0, f"output {at}: rows change with the rows beside them"
            if alone.shape != result.shape or _beyond_rounding(alone, result) > _ROUNDED:
                return 0, f"output {at}: rows are not those alone"
        return len(order) * (len(order) - 1) // 2, ""

    def _run(self, order: Array) -> list[Array]:
        feeds = {name: np.concatenate([self._requests[k][name] for k in order]) for name in self._requests[0]}
        return self._session.run(None, feeds)

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def _same(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b) if a.dtype == object else a.tobytes() == b.tobytes())


def _beyond_rounding(a: Array, b: Array) -> float:
    """The share of the elements of two results of one shape that differ by more than rounding."""
    if a.dtype.kind not in "fcV":
        return float(np.mean(a != b)) if a.size else 0.0
    tolerance = 1e-2 if a.dtype.itemsize < 4 else 1e-3
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    return 1 - float(
        np.mean(np.isclose(a.astype(kind), b.astype(kind), tolerance, tolerance, equal_nan=True)) if a.size else 1
    )


@dataclass
class Found:
    """Of a source of models."""

    proved: int = 0
    why: Counter[str] = field(default_factory=Counter)
    no_rows: int = 0
    pairs: int = 0
    cannot_run: int = 0
    wrong: list[str] = field(default_factory=list)


def reason_of(proto: onnx.ModelProto, caps: DeviceCapabilities) -> RowProof:
    """The proof. Raises `VkepError`, ``ValueError``."""
    return independent(load_model(proto.SerializeToString()), caps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove, compare and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.row_proofs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--sources", nargs="+", help="of models: first words of the rows of the table (default: all)")
    parser.add_argument("--quiet", action="store_true", help="print the table alone")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    draw, deadline = np.random.default_rng(given.seed), time.monotonic() + given.seconds
    found: dict[str, Found] = defaultdict(Found)
    every = [one for one in subjects() if one.source.startswith(tuple(given.sources or [""]))]
    each = -(-given.pairs // max(len(every), 1))
    for one in every:
        of = found[one.source]
        try:
            proto, feeds = one.make()
            proof = reason_of(proto, DeviceCapabilities.for_tests())
        except (LookupError, VkepError, ValueError):
            of.no_rows += 1
            continue
        if not given.quiet:
            print(f"{one.source}: {one.name}: {proof.reason or 'proved'}", flush=True)
        if proof.reason:
            of.why[proof.reason] += 1
            continue
        of.proved += 1
        _compare(of, one.name, proto, feeds, draw, 4 * each, deadline)
    _print(found)
    return int(any(of.wrong for of in found.values()))


def _compare(
    of: Found, name: str, proto: onnx.ModelProto, feeds: Feeds, draw: np.random.Generator, pairs: int, deadline: float
) -> None:
    """Compare at least so many pairs of a model's requests, while there is time."""
    if time.monotonic() > deadline:
        return
    try:
        model = Checked(proto, feeds, draw)
    except (VkepError, MemoryError):
        of.cannot_run += 1
        return
    try:
        count = 0
        while count < pairs and time.monotonic() < deadline:
            more, wrong = model.joined()
            if wrong:
                of.wrong.append(f"{name}: {wrong}")
                break
            count += more
            of.pairs += more
            if more < 2:  # a large model
                break
    except VkepError as error:
        of.wrong.append(f"{name}: joined: {error}")
    finally:
        model.close()


def _print(found: Mapping[str, Found]) -> None:
    print(
        "\n| models | proved | not proved | without rows | proved, requests refused | pairs joined | pairs that differ |"
    )
    print("|---|---|---|---|---|---|---|")
    for source, of in found.items():
        not_proved = sum(of.why.values())
        cells = [source, of.proved, not_proved, of.no_rows, of.cannot_run, of.pairs, len(of.wrong)]
        print(f"| {' | '.join(map(str, cells))} |")
    for text in [text for of in found.values() for text in of.wrong]:
        print(text)


if __name__ == "__main__":
    sys.exit(main())
