"""Distances and inverses, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import check, model_of, on_vulkan
from tests.ops.microsoft import MS, normal

pytestmark = pytest.mark.usefixtures("vulkan")


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
def test_distances(metric: str) -> None:
    rows = {"a": normal(7, 5), "b": normal(4, 5)}
    check("CDist", rows, rtol=1e-4, atol=1e-4, metric=metric, **MS)
    wide = {name: value.astype(np.float64) for name, value in rows.items()}
    check("CDist", wide, rtol=1e-12, atol=1e-12, metric=metric, **MS)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 4, 4), (2, 3, 7, 7), (40, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_inverse(shape: tuple[int, ...], dtype: Any) -> None:
    x = normal(*shape)[..., np.random.default_rng(1).permutation(shape[-1])] + 3 * np.eye(shape[-1])[::-1]
    x = x.astype(dtype)
    (y,) = on_vulkan(model_of("Inverse", {"x": x}, domain="com.microsoft"), {"x": x})
    exact = np.linalg.inv(x.astype(np.float64))
    rough = np.abs(exact).max() * {np.float64: 1e-11, np.float32: 3e-4, np.float16: 3e-3}[dtype]
    np.testing.assert_allclose(y.astype(np.float64), exact, atol=rough)
    assert y.dtype == dtype
