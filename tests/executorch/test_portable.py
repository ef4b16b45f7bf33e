"""Portable kernels against torch, whose results are kept as data."""

from __future__ import annotations

import importlib.util
import re
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.executorch.portable_cases import cases
from vkep.errors import VkepError
from vkep.executorch.portable import KERNELS
from vkep.executorch.portable.registry import KERNELS as TABLE
from vkep.executorch.portable.registry import kernel

CASES = cases()
EXPECTED: Any = np.load(Path(__file__).parent / "data" / "portable.npz")


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{k}-{name}" for k, (name, _) in enumerate(CASES)])
def test_a_kernel_does_what_torch_does(number: int) -> None:
    name, arguments = CASES[number]
    one = KERNELS[f"aten::{name}"]
    assert one.arguments == len(arguments)
    with np.errstate(all="ignore"):
        result = one.function(*arguments)
    results = result if isinstance(result, tuple) else (result,)
    wanted = [EXPECTED[f"{number}_{k}"] for k in range(len(results))]
    assert f"{number}_{len(results)}" not in EXPECTED, "as many results as torch gives"
    for got, want in zip(results, wanted, strict=True):
        if want.size == 0 and got.size == 0:  # what inference does not need is left empty
            continue
        assert got.shape == want.shape
        tolerance = 4e-3 if want.dtype == np.float16 else 2e-6
        np.testing.assert_allclose(np.asarray(got).astype(want.dtype), want, rtol=10 * tolerance, atol=tolerance)


def test_created_elements_are_counted_before_they_are_created() -> None:
    for name, arguments in CASES:
        one = KERNELS[f"aten::{name}"]
        with np.errstate(all="ignore"):
            result = one.function(*arguments)
        given = [a for a in arguments if isinstance(a, np.ndarray)]
        for made in result if isinstance(result, tuple) else (result,):
            is_view = any(np.shares_memory(made, a) for a in given)  # of an argument's elements, several times perhaps
            assert is_view or np.size(made) <= one.elements(*arguments), name


def test_elements_at_indices_are_counted_once() -> None:
    elements, x, index = KERNELS["aten::index.Tensor_out"].elements, np.zeros((3, 4, 1, 1)), np.zeros(200, np.int64)
    assert elements(x, [None, None, index, index]) == 3 * 4 * 200
    assert elements(x, [index[:, None], index[:7]]) == 200 * 7
    assert elements(x, [None, np.ones((4, 1, 1), np.bool_)]) == x.size


_LARGE, _MOST_ELEMENTS, _MOST_BYTES = 1 << 24, 1 << 14, 1 << 22


def _with_a_large_number(arguments: Sequence[Any]) -> Iterator[list[Any]]:
    """The arguments with one of the numbers replaced, also of those in lists."""
    for k, argument in enumerate(arguments):
        before, after = list(arguments[:k]), list(arguments[k + 1 :])
        if isinstance(argument, (int, float)) and not isinstance(argument, bool):
            yield [*before, type(argument)(_LARGE), *after]
        elif isinstance(argument, list) and all(isinstance(n, (int, float)) for n in argument):
            for i, n in enumerate(argument):
                yield [*before, [*argument[:i], type(n)(_LARGE), *argument[i + 1 :]], *after]


def test_no_number_of_a_small_file_takes_much_memory() -> None:
    """A call that is counted as small creates nothing large, whatever number a damaged file has in it."""
    refused = 0
    tracemalloc.start()
    try:
        for name, arguments in CASES:
            one = KERNELS[f"aten::{name}"]
            for damaged in _with_a_large_number(arguments):
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                try:
                    with np.errstate(all="ignore"):
                        if one.elements(*damaged) > _MOST_ELEMENTS:
                            refused += 1
                            continue
                        one.function(*damaged)
                except Exception:  # what a run reports
                    pass
                assert tracemalloc.get_traced_memory()[1] - before < _MOST_BYTES, (name, damaged)
    finally:
        tracemalloc.stop()
    assert refused > 50


def test_arguments_are_left_as_they_were() -> None:
    for name, arguments in CASES:
        before = [a.copy() for a in arguments if isinstance(a, np.ndarray)]
        with np.errstate(all="ignore"):
            KERNELS[f"aten::{name}"].function(*arguments)
        after = [a for a in arguments if isinstance(a, np.ndarray)]
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(old, new, err_msg=name)


def test_most_kernels_have_a_case() -> None:
    tested = {f"aten::{name}" for name, _ in CASES}
    assert len(tested) >= 180
    assert len(KERNELS) >= 300
    assert tested <= set(KERNELS)


def test_a_name_is_declared_once() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        kernel("add.out")(lambda self: self)
    assert TABLE["aten::add.out"].arguments == 3


def test_batch_norm_that_trains_is_refused() -> None:
    """As by ExecuTorch's kernel: it would have to change its inputs."""
    ones = np.ones(3, np.float32)
    with pytest.raises(VkepError, match="export the model in eval mode"):
        KERNELS["aten::_native_batch_norm_legit.out"].function(np.ones((2, 3)), None, None, ones, ones, True, 0.1, 1e-5)


def test_every_operator_of_executorchs_portable_library_has_a_kernel() -> None:
    """By the list that its package brings, where that is installed."""
    found = importlib.util.find_spec("executorch")
    if found is None:
        pytest.skip("needs executorch: pip install 'vkep[executorch]'")
    folders = [Path(place) / "kernels" / "portable" for place in found.submodule_search_locations or ()]
    text = "".join((folder / "functions.yaml").read_text() for folder in folders)
    names = re.findall(r"^- (?:op|func): ([\w.:]+)", text, re.MULTILINE)
    assert len(names) >= 200
    assert [name for name in names if (name if "::" in name else f"aten::{name}") not in KERNELS] == []
