"""Types that a device lacks, computed with 32-bit words (`vkep.shaders.words`): held to numpy on the machine's driver."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import REQUIRED_FEATURES
from tests.calls import noted
from tests.kernels import test_softmax
from tests.kernels.harness import Harness, Tensor
from tests.nightly import alternately, nightly_but
from vkep.dtypes import DTYPES
from vkep.kernels import all_kernels, tool
from vkep.kernels.kernel import Kernel
from vkep.shaders import words
from vkep.shaders.errors import InvalidSpirvError
from vkep.shaders.library import ShaderLibrary
from vkep.shaders.reflect import reflect
from vkep.shaders.validate import validate
from vkep.shaders.words import capabilities_of, lacking

WITHOUT = frozenset({"int64", "float64", "float16", "int16", "int8", "storage_8bit", "storage_16bit"})
SOURCE = """
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; WRITTEN y; uint n; }
#include "args.glsl"
#include "workgroup.glsl"
TENSOR(A_T, As)
TENSOR(B_T, Bs)
TENSOR(Y_T, Ys)
void main() {
    uint i = flat_lane();
    if (i >= args.n) return;
    A_T a = As(operand(args.a, 0)).v[i];
    B_T b = Bs(operand(args.b, 1)).v[i];
    Ys(operand(args.y, 2)).v[i] = Y_T(RESULT);
}
"""


@pytest.fixture(scope="module")
def poor() -> Iterator[Harness]:
    """The machine's device without the types."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VKEP_WITHOUT", ",".join(sorted(WITHOUT)))
        harness = Harness()
    assert not harness.caps.features & WITHOUT
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    path = tmp_path_factory.mktemp("words") / "elements.comp"
    path.write_text(SOURCE.lstrip())
    return Kernel(str(path))


def compute(
    gpu: Harness, kernel: Kernel, a: np.ndarray, b: np.ndarray, dtype: Any, result: str, offset: int = 0
) -> np.ndarray:
    glsl = {name: DTYPES[np.dtype(d).name].glsl for name, d in (("A_T", a.dtype), ("B_T", b.dtype), ("Y_T", dtype))}
    y = Tensor.empty(a.shape, dtype)
    y.offset = offset
    operands = {"a": Tensor(a, offset), "b": Tensor(b, offset), "y": y}
    call = kernel.call(
        grid=(-(-a.size // 64), 1, 1), operands=operands, params={"n": a.size}, defines={**glsl, "RESULT": result}
    )
    gpu.run([call])
    return y.array


def pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(list(itertools.product(values, values)), values.dtype)
    return np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])


def whole_numbers(dtype: Any) -> np.ndarray:
    """The ends of a type, powers of two and their neighbours, and random ones."""
    info, rng = np.iinfo(dtype), np.random.default_rng(7)
    near = {s * (1 << k) + d for k in range(info.bits) for d in (-1, 0, 1) for s in (-1, 1)} | {info.min, info.max}
    few = sorted(v for v in near if info.min <= v <= info.max)[:: 1 if info.bits < 64 else 5]
    more = rng.integers(info.min, info.max, 12, dtype=dtype, endpoint=True)
    return np.array([*few, 0, 1, info.min, info.max, *more], dtype)


def doubles() -> np.ndarray:
    """Every kind of float64, near the edges of float64, float32, float16 and the integers."""
    rng = np.random.default_rng(8)
    edges = [
        0.0,
        1.0,
        1.5,
        2.5,
        0.5,
        3.0,
        1e-320,
        5e-324,
        2.2250738585072014e-308,
        1.7976931348623157e308,
        np.inf,
        np.nan,
    ]
    edges += [2.0**k for k in (-149, -150, -126, -25, -24, -14, 31, 32, 52, 53, 62, 63, 64, 127, 128)]
    edges += [65504.0, 65519.99, 65520.0, 3.4028235677973366e38, 2.0**53 - 1, 4503599627370497.5, 1e10, np.pi]
    bits = rng.integers(0, 2**63, 24, dtype=np.uint64).view(np.float64)
    found = np.concatenate([edges, rng.standard_normal(12), bits])
    return np.concatenate([found, -found])


Numpy = Callable[[np.ndarray, np.ndarray], np.ndarray]
_INTEGER: list[tuple[str, Numpy]] = [
    ("a + b", lambda a, b: a + b),
    ("a - b", lambda a, b: a - b),
    ("a * b", lambda a, b: a * b),
    ("min(a, b)", np.minimum),
    ("max(a, b)", np.maximum),
    ("(a & b) | (a ^ ~b)", lambda a, b: (a & b) | (a ^ ~b)),
    ("a < b ? a : b", np.minimum),
    ("a >= b ? a : b", np.maximum),
    ("a == b ? a : b - a", lambda a, b: np.where(a == b, a, b - a)),
    ("a != b && a <= b ? a : b", lambda a, b: np.where((a != b) & (a <= b), a, b)),
    ("a > b ? a : b", np.maximum),
]


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize(("result", "expected"), _INTEGER, ids=[r for r, _ in _INTEGER])
def test_64_bit_integers(poor: Harness, kernel: Kernel, dtype: Any, result: str, expected: Numpy) -> None:
    a, b = pairs(whole_numbers(dtype))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(compute(poor, kernel, a, b, dtype, result), expected(a, b))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_64_bit_division_and_shifts(poor: Harness, kernel: Kernel, dtype: Any) -> None:
    a, b = pairs(whole_numbers(dtype))
    least = np.iinfo(dtype).min
    kept = (b != 0) & ~((a == least) & (b == np.array(-1).astype(dtype))) if least else b != 0
    a, b = a[kept], b[kept]
    quotient = [
        abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    expected = np.array(quotient, dtype)
    np.testing.assert_array_equal(compute(poor, kernel, a, b, dtype, "a / b"), expected)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(compute(poor, kernel, a, b, dtype, "a - (a / b) * b"), a - expected * b)
    if least == 0:
        np.testing.assert_array_equal(compute(poor, kernel, a, b, dtype, "a % b"), a % b)
    by = (b & np.array(63, dtype)).astype(dtype)
    np.testing.assert_array_equal(compute(poor, kernel, a, by, dtype, "a >> b"), a >> by)
    np.testing.assert_array_equal(compute(poor, kernel, a, by, dtype, "a << b"), a << by)


_DOUBLE: list[tuple[str, Numpy]] = [
    ("a + b", lambda a, b: a + b),
    ("a - b", lambda a, b: a - b),
    ("a * b", lambda a, b: a * b),
    ("a / b", lambda a, b: a / b),
    ("sqrt(abs(a))", lambda a, b: np.sqrt(np.abs(a))),
    ("-a", lambda a, b: -a),
    ("trunc(a)", lambda a, b: np.trunc(a)),
    ("floor(a)", lambda a, b: np.floor(a)),
    ("ceil(a)", lambda a, b: np.ceil(a)),
    ("roundEven(a)", lambda a, b: np.round(a)),
    ("a < b ? a : b", lambda a, b: np.where(a < b, a, b)),
    ("a <= b ? a : b", lambda a, b: np.where(a <= b, a, b)),
    ("a > b ? a : b", lambda a, b: np.where(a > b, a, b)),
    ("a != b ? a : b", lambda a, b: np.where(a != b, a, b)),
    ("isnan(a) || isinf(b) ? b : a", lambda a, b: np.where(np.isnan(a) | np.isinf(b), b, a)),
]


@pytest.mark.parametrize(("result", "expected"), _DOUBLE, ids=[r for r, _ in _DOUBLE])
def test_float64(poor: Harness, kernel: Kernel, result: str, expected: Numpy) -> None:
    a, b = pairs(doubles())
    with np.errstate(all="ignore"):
        wanted = expected(a, b)
    got = compute(poor, kernel, a, b, np.float64, result)
    np.testing.assert_array_equal(got, wanted)
    zero = wanted == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(wanted[zero]))


def test_casts_of_floats(poor: Harness, kernel: Kernel) -> None:
    wide = doubles()
    with np.errstate(all="ignore"):
        narrow, half = wide.astype(np.float32), wide.astype(np.float16)
        np.testing.assert_array_equal(compute(poor, kernel, wide, wide, np.float32, "a"), narrow)
        np.testing.assert_array_equal(compute(poor, kernel, narrow, wide, np.float64, "a"), narrow.astype(np.float64))
        np.testing.assert_array_equal(compute(poor, kernel, narrow, wide, np.float16, "a"), narrow.astype(np.float16))
        np.testing.assert_array_equal(compute(poor, kernel, wide, wide, np.float16, "a"), half)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(compute(poor, kernel, every, every, np.float32, "a"), every.astype(np.float32))
    every = every[~np.isnan(every)]
    assert (compute(poor, kernel, every, every, np.float16, "float(a)").view(np.uint16) == every.view(np.uint16)).all()


@pytest.mark.parametrize("source", [np.float64, np.float32])
@pytest.mark.parametrize("to", [np.int64, np.uint64, np.int32, np.uint32])
def test_floats_saturate_as_integers(poor: Harness, kernel: Kernel, source: Any, to: Any) -> None:
    with np.errstate(all="ignore"):
        values = doubles().astype(source)
    info = np.iinfo(to)
    if source == np.float32 and info.bits == 32:  # the driver's own conversion
        values = values[(values >= info.min) & (values < 2.0 ** (31 if info.min else 32))]
    expected = [
        0 if v != v else info.max if v > info.max else info.min if v < info.min else int(v) for v in values.tolist()
    ]
    got = compute(poor, kernel, values, values, to, "a")
    np.testing.assert_array_equal(got, np.array(expected, to))


_SOURCES = (np.int64, np.uint64, np.int32, np.uint32, np.int8, np.uint8, np.int16, np.uint16)
_CAST = (np.int64, np.uint64, np.int32, np.uint8, np.int8, np.int16, np.uint16, np.float32, np.float64)
#: by default the two of a width, one of which has a sign, with every second of the others
_USUAL = [(a, b) for i, a in enumerate(_SOURCES) for j, b in enumerate(_CAST) if (i // 2 + j) % 2 == 0]


@pytest.mark.parametrize("pair", nightly_but(_USUAL, itertools.product(_SOURCES, _CAST)))
def test_casts_of_integers(poor: Harness, kernel: Kernel, pair: tuple[Any, Any]) -> None:
    source, to = pair
    values = whole_numbers(source)
    np.testing.assert_array_equal(compute(poor, kernel, values, values, to, "a"), values.astype(to))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_narrow_arithmetic_wraps(poor: Harness, kernel: Kernel, dtype: Any) -> None:
    a, b = pairs(whole_numbers(dtype))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(compute(poor, kernel, a, b, dtype, "a + b"), a + b)
        np.testing.assert_array_equal(compute(poor, kernel, a, b, dtype, "a * b - a"), a * b - a)
        np.testing.assert_array_equal(compute(poor, kernel, a, b, dtype, "a < b ? a : ~b"), np.where(a < b, a, ~b))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.float16, np.int64])
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_neighbours_in_one_word(poor: Harness, kernel: Kernel, dtype: Any, offset: int) -> None:
    """Lanes of several workgroups write elements of the same words, from any address on; what lies beside them stays."""
    size = np.dtype(dtype).itemsize
    values = np.random.default_rng(9).integers(0, 127, 4099).astype(dtype)
    got = compute(poor, kernel, values, values, dtype, "a", offset * size)
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize(("name", "kept"), alternately([kernel.source for kernel in all_kernels()], ["", "16"]))
def test_every_kernel_fits_a_poor_device(name: str, kept: str) -> None:
    """Every declared variant, for devices that have no narrow or wide types, or those of 16 bits."""
    [kernel] = [kernel for kernel in all_kernels() if kernel.source == name]
    features = REQUIRED_FEATURES | {"subgroup_arithmetic", "subgroup_ballot", "subgroup_shuffle", "integer_dot_product"}
    features |= {name for name in WITHOUT if kept and kept in name}
    library = ShaderLibrary()
    for declared in tool.declared_variants([kernel]):
        shader = library.spirv(declared.variant, declared.arguments_in_memory)
        if "CooperativeMatrixKHR" in capabilities_of(shader.words):
            with pytest.raises(InvalidSpirvError, match=r"\.comp: the module needs .*CooperativeMatrixKHR"):
                library.fitted(shader, features)
            continue
        words = library.fitted(shader, features)
        assert not lacking(capabilities_of(words), features)
        assert reflect(words).arguments == shader.reflection.arguments
        validation = validate(words)
        assert validation is None or validation.valid, validation.message


def test_a_rewritten_module_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later process reads it; other features, and other code that rewrites, have entries of their own."""
    made = noted(monkeypatch, words, "fitted", lambda binary, features, library: features)
    features = REQUIRED_FEATURES | {"subgroup_arithmetic", "subgroup_ballot", "subgroup_shuffle", "int64", "float64"}
    [cache_update] = [kernel for kernel in all_kernels() if kernel.source == "cache_update.comp"]
    wide = ("Float16", "Int64")
    library = ShaderLibrary(cache_dir=tmp_path)
    shaders = (library.spirv(d.variant) for d in tool.declared_variants([cache_update]))
    variant = next(s.variant for s in shaders if capabilities_of(s.words).issuperset(wide))

    def fitted(features: frozenset[str]) -> bytes:
        library = ShaderLibrary(cache_dir=tmp_path)
        return library.fitted(library.spirv(variant), features)

    first = fitted(features)
    assert len(made) == 1 and fitted(features) == first and len(made) == 1
    fitted(features - {"int64"})
    assert len(made) == 2
    monkeypatch.setattr(words, "code_digest", lambda: "0" * 64)
    assert fitted(features) == first and len(made) == 3


@pytest.mark.parametrize("to", ["int8", "float16"])
@pytest.mark.parametrize("alignment", [1, 16])
def test_a_softmax_stores_codes(to: str, alignment: int, poor: Harness) -> None:
    all_kernels()
    test_softmax.test_epilogues_store_codes(poor, poor.caps, np.random.default_rng(1), to, alignment)
