"""`vkep.tiles`: an image in tiles gives what the whole image gives, by one plan; sizes that do not fit are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vkep
from vkep.models.builder import GraphBuilder
from vkep.tiles import run_in_tiles

Array = np.ndarray[Any, Any]


def blurred(image: Array, radius: int) -> Array:
    """A mean over a square, with zeros around the image: a network with this radius of its receptive field."""
    side = 2 * radius + 1
    padded = np.pad(image, [(0, 0)] * (image.ndim - 2) + [(radius, radius)] * 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(-2, -1))
    return windows.mean(axis=(-2, -1), dtype=image.dtype)


def larger(image: Array) -> Array:
    return np.repeat(np.repeat(image, 2, -1), 3, -2)


def smaller(image: Array) -> Array:
    return image[..., ::4, ::2] + image[..., 3::4, 1::2]


@given(st.data(), st.integers(0, 3), st.sampled_from([lambda x: x, larger, smaller]))
def test_tiles_give_the_whole_image(data: st.DataObject, radius: int, after: Callable[[Array], Array]) -> None:
    step = (4, 2) if after is smaller else (1, 1)
    tile = tuple(s * data.draw(st.integers(10, 14)) for s in step)
    size = [s * data.draw(st.integers(3, 60 // s)) for s in step]
    overlap = tuple(s * data.draw(st.integers(-(-2 * radius // s), 9)) for s in step)
    seam = tuple(data.draw(st.integers(0, o - 2 * radius)) for o in overlap)
    image = np.random.default_rng(0).random((2, 3, *size), np.float32)
    shapes = set()

    def run(part: Array) -> Array:
        shapes.add(part.shape)
        return after(blurred(part, radius))

    found = run_in_tiles(run, image, tile, overlap, seam=seam, step=step)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, after(blurred(image, radius)), atol=1e-5)
    assert shapes == {(2, 3, *np.minimum(size, tile))}


def test_tiles_that_differ_fade_into_one_another() -> None:
    number = iter(range(9))
    made = run_in_tiles(
        lambda part: np.full(part.shape, next(number), np.float16), np.zeros((1, 20), np.float16), 12, 4, seam=4
    )
    assert made.dtype == np.float16
    np.testing.assert_allclose(made[0], [*[0] * 8, 0.125, 0.375, 0.625, 0.875, *[1] * 8])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"overlap": 8}, "overlap, height: got 8, expected 0 to 7"),
        ({"overlap": (2, -1)}, "overlap, width: got -1"),
        ({"seam": 3}, "seam, height: got 3, expected 0 to the overlap, 2"),
        ({"step": (1, 3)}, "image, width: got 20, expected a multiple of the step, 3"),
        ({"step": 4}, "overlap, height: got 2, expected a multiple of the step, 4"),
        ({"tile": 7, "overlap": 0}, "result, width: got 4 for a tile of 7 pixels"),
        ({"tile": 6, "overlap": 1}, "pass step=2 or a multiple of it"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_in_tiles(lambda x: x[..., :: x.shape[-1] // 3], np.zeros((20, 20)), **{"tile": 8, "overlap": 2, **sizes})
    with pytest.raises(ValueError, match=r"expected \[\.\.\., height, width\]"):
        run_in_tiles(lambda x: x, np.zeros(8), 4, 2)


@pytest.mark.gpu
def test_a_network_runs_by_one_plan() -> None:
    graph = GraphBuilder("upscaler")
    x, channels = graph.input("image", [1, 3, "height", "width"]), 3
    for k, wide in enumerate((8, 8, 12)):  # three convolutions: a radius of 3
        kernel = graph.constant(f"{k}", graph.weight(f"{k}", (wide, channels, 3, 3), 0.2))
        x, channels = graph.add("Conv", x, kernel, kernel_shape=[3, 3], pads=[1] * 4), wide
    graph.output(graph.add("DepthToSpace", x, blocksize=2), "y", [1, 3, "height2", "width2"])
    image = np.random.default_rng(1).random((1, 3, 100, 150), np.float32)
    with vkep.InferenceSession(graph.model()) as session:
        (expected,) = session.run(None, {"image": image})
        plans = session._parts.graph.plan_count
        found = run_in_tiles(lambda part: session.run(None, {"image": part})[0], image, 64, 12, seam=6)
        assert session._parts.graph.plan_count == plans + 1
    np.testing.assert_allclose(found, expected, atol=1e-5)
