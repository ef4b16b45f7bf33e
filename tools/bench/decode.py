"""The products and the attention of a decoder's step by GPU timestamps, as a share of the copy's bandwidth.

    python -m tools.bench.decode [--only NAME ...] [--rows 1 4] [--smallest] [--sweep] [--json FILE]

Each one runs over copies of its weights (or keys and values) that no cache holds together, one after the other with a barrier
between, as layers do, and side by side. The share counts the bytes of all operands once. ``--sweep`` tries every way to share
the weights among lanes that `vkep tune` knows, and prints the fastest ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vkep.device.measure.kernel_timer import KernelTimer
from vkep.device.measure.limits import measure_limits
from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.kernels.attention.cache_update import CacheUpdateProblem
from vkep.kernels.attention.problem import AttentionProblem
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul.form import Form
from vkep.kernels.matmul.fused import FusedProductProblem
from vkep.kernels.matmul.nbits_problem import MatMulNBitsProblem
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import choose, emit
from vkep.kernels.tuning import Choice, Trial
from vkep.ops.registry import load_own

load_own()  # every kind of problem has its candidates

#: bytes of weights that are read in turn: beyond any cache; on a CPU driver less
_ROTATED, _ROTATED_CPU = 256 << 20, 32 << 20
#: (columns, k) of Llama 3.2 1B's and 3.1 8B's products: those of a layer, and the head
SHAPES = (
    *((8192, 2048), (2048, 8192), (3072, 2048)),
    *((14336, 4096), (4096, 14336), (6144, 4096), (4096, 4096), (128256, 2048), (128256, 4096)),
)


@dataclass(frozen=True)
class Product:
    """One matrix product: its description, and its problem."""

    name: str
    problem: Problem

    @property
    def epilogue(self) -> Epilogue | None:
        """What reads the second of two products."""
        return Epilogue("v *= w;") if isinstance(self.problem, FusedProductProblem) else None

    @property
    def nbytes(self) -> int:
        """Bytes of all operands, each counted once."""
        needs, makes = self.problem.operands
        return sum(_nbytes(need) for need in (*needs, *makes))


@dataclass
class Measured:
    """One product's time. ``share``: achieved bandwidth relative to the copy's."""

    name: str
    microseconds: float
    share: float
    side_by_side: float = math.nan  #: microseconds of one without barriers between
    choice: Choice | None = None

    def __str__(self) -> str:
        text = f"{self.name:44} {self.microseconds:9.2f} us {self.share:6.2f} of the copy's bandwidth"
        if not math.isnan(self.side_by_side):
            text += f"; side by side {self.side_by_side:9.2f} us"
        return text if self.choice is None else f"{text} {self.choice}"


def _nbytes(need: Need) -> int:
    return need.extent * DTYPES[need.dtype].itemsize


def products(shapes: Sequence[tuple[int, int]] = SHAPES, rows: Sequence[int] = (1,)) -> Iterator[Product]:
    """Products of few rows with packed weights, and with floats that are dense along k or along columns."""
    for m in rows:
        for n, k in shapes:
            for bits, dtype in ((4, "float16"), (4, "float32"), (8, "float16"), (2, "float16")):
                if (bits == 4 and dtype == "float16") or (n, k) == shapes[0]:
                    nbits = MatMulNBitsProblem(m, n, k, bits, 32, dtype, at_a=16, at_b=16)
                    yield Product(f"{m} by {k} by {n}, {bits} bits, {dtype}", nbits)
                    if (bits, dtype) == (4, "float16"):
                        pair = FusedProductProblem(nbits, Form(paired=True))
                        yield Product(f"{m} by {k} by twice {n}, {bits} bits, {dtype}", pair)
            for dtype in ("float16", "float32"):
                if dtype == "float16" or (n, k) == shapes[0]:
                    for along, strides in (("k", (0, 1, k)), ("columns", (0, n, 1))):
                        floats = MatMulProblem(m, n, k, (0, k, 1), strides, dtype=dtype, alignment=16)
                        yield Product(f"{m} by {k} by {n}, {dtype} along {along}", floats)


#: (heads, heads of keys, size, keys) of attention of one token
ATTENTIONS = (
    *((32, 8, size, keys) for size in (64, 128) for keys in (576, 4096)),
    (32, 8, 128, 32768),
)
#: types of a cache's elements, by how its rows are called
_CACHES = {"float16": "", "8 bits": "int8", "4 bits": "uint8"}
#: rows of the caches that are updated
_ROOM = 64


def attentions(
    shapes: Sequence[tuple[int, int, int, int]] = ATTENTIONS, caches: Mapping[str, str] = _CACHES
) -> Iterator[Product]:
    """Attention of one token, in float16, and the update of the cache in place with rotation and norms before it."""
    for (heads, kv_heads, size, keys), (name, coding) in itertools.product(shapes, caches.items()):
        width = size // 2 if coding == "uint8" else size
        row = (0, keys * width, width)
        one = AttentionProblem(
            *(1, heads, kv_heads, 1, keys, size, size),
            (0, size, 0),
            row,
            row,
            (size, 0),
            scale=0.1,
            dtype="float16",
            alignment=16,
            coding=coding,
        )
        yield Product(f"attention of {heads} heads by {kv_heads}, {keys} keys of {size}, {name}", one)
    sizes = dict.fromkeys(shape[:3] for shape in shapes)
    for (heads, kv_heads, size), (name, coding) in itertools.product(sizes, caches.items()):
        new = (0, size, 0)
        update = CacheUpdateProblem(
            *(1, heads, kv_heads, 1, size, size, _ROOM, _ROOM, 0),
            *(new, new, new),
            "float16",
            half=size // 2,
            table_rows=_ROOM,
            over=True,
            cache=coding,
            alignment=16,
        )
        yield Product(f"update of a cache, {heads} heads by {kv_heads} of {size}, {name}", update)
        normed = replace(update, epsilon=1e-5)
        yield Product(f"update of a cache with norms, {heads} heads by {kv_heads} of {size}, {name}", normed)


def _time(timer: KernelTimer, product: Product, waits: bool = True) -> float:
    """Microseconds of one product."""
    needs, makes = product.problem.operands
    rotated = _ROTATED_CPU if timer.caps.device_type == "cpu" else _ROTATED
    copies = max(1, min(64, rotated // product.nbytes))
    given = []
    calls: list[KernelCall] = []
    shared = [timer.operand(nbytes=_nbytes(need)) for need in (needs[0], *makes)]
    for _ in range(copies):
        weights = [timer.operand(nbytes=_nbytes(need)) for need in needs[1:]]
        given += weights
        calls += emit(product.problem, timer, [shared[0], *weights], shared[1:], product.epilogue)
    try:
        return timer.milliseconds(calls, 4, waits) * 1e3 / copies
    finally:
        timer.release(*given, *shared)


def _runs(product: Product, timer: KernelTimer) -> bool:
    try:
        choose(product.problem, timer.caps)
    except Decline:  # two products in one dispatch: not every kernel of few rows takes two
        return False
    return True


def _ways(timer: KernelTimer, product: Product) -> tuple[str, tuple[Choice, ...]]:
    trial = Trial()
    timer.choices = trial
    inputs, outputs = ([timer.operand(nbytes=_nbytes(need)) for need in needs] for needs in product.problem.operands)
    emit(product.problem, timer, inputs, outputs, product.epilogue)
    timer.choices = {}
    return next(((key, question.candidates) for key, question in trial.asked.items()), ("", ()))


def measure(
    only: Sequence[str] = (),
    smallest: bool = False,
    sweep: bool = False,
    rows: Sequence[int] = (1, 4),
    tell: Callable[[str], None] = print,
) -> list[Measured]:
    """Measure the products of some numbers of rows whose names contain one of ``only`` (none: all). Raises `DriverNotFoundError`,
    `DeviceNotFoundError`.
    """
    timer = KernelTimer()
    try:
        limits = measure_limits(timer)
        tell(str(limits))
        nothing = Product("", MatMulProblem(1, 8, 64, (0, 64, 1), (0, 1, 64), dtype="float32", alignment=16))
        tell(f"a dispatch of next to no work, and the barrier after it: {_time(timer, nothing):.2f} us")
        found = []
        shapes = ((64, 256),) if smallest else SHAPES[:2] if timer.caps.device_type == "cpu" else SHAPES
        steps = attentions(((4, 2, 64, 100),), {"4 bits": "uint8"}) if smallest else attentions()
        for product in itertools.chain(products(shapes, (1,) if smallest else rows), steps):
            if only and not any(name in product.name for name in only):
                continue
            if not _runs(product, timer):
                continue
            limit_us = limits.nanoseconds(0, product.nbytes) / 1e3
            us = _time(timer, product)
            found.append(Measured(product.name, us, limit_us / us, _time(timer, product, waits=False)))
            tell(str(found[-1]))
            if sweep:
                key, ways = _ways(timer, product)
                tried = []
                for way in ways:
                    timer.choices = {key: way}
                    us = _time(timer, product)
                    tried.append(Measured(product.name, us, limit_us / us, choice=way))
                timer.choices = {}
                found += tried
                for one in sorted(tried, key=lambda m: m.microseconds)[:8]:
                    tell(str(replace(one, name="")))
        return found
    finally:
        timer.close()


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each product."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.decode", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="products whose name contains one of these"
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4], metavar="M", help="rows of the products (1 4)")
    parser.add_argument("--smallest", action="store_true", help="one small shape: that everything runs")
    parser.add_argument("--sweep", action="store_true", help="also every way to share the weights among lanes")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    given = parser.parse_args(arguments)
    found = measure(given.only, given.smallest, given.sweep, given.rows, lambda line: print(line, flush=True))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(m) for m in found], indent=1) + "\n", encoding="utf-8")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
