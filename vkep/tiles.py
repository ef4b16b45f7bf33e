"""Large images through a network in tiles of one size, which overlap.

    from vkep.tiles import run_in_tiles

    def upscale(part):  # float32 [1, 3, h, w] to [1, 3, 4 h, 4 w]
        return session.run(None, {"image": part})[0]

    large = run_in_tiles(upscale, image, tile=256, overlap=32)

All tiles have the same shape, so a session makes one plan for them.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

__all__ = ["run_in_tiles"]

Array = NDArray[np.floating]
Side = int | tuple[int, int]


def run_in_tiles(
    run: Callable[[Array], Array], image: Array, tile: Side, overlap: Side, *, seam: Side | None = None, step: Side = 1
) -> Array:
    """The result of ``run`` for a large image, put together from its results for tiles.

    Args:
        run: from float [..., tile height, tile width] to [..., r · tile height, r · tile width] with one ratio r for each axis
            (4: an upscaler; 1/8: an encoder).
        image: float [..., height, width]. An axis that is no longer than a tile is not divided.
        tile: pixels of a tile: of both axes, or (height, width).
        overlap: pixels that neighbours share at least; less than a tile.
        seam: the pixels of the overlap over which one tile fades into the next (0: at once). The rest of the overlap, half of it
            at each tile's edge, is not used. None: half of the overlap.
        step: tiles begin at multiples of it, as a network that halves its image needs. Sides of image, tile and overlap have to
            be multiples.

    The result has the type that ``run`` returns. It is that of the whole image, up to rounding, where (overlap - seam) / 2 is at
    least the radius of the network's receptive field. A network with attention or norms over the whole image computes those for
    each tile.

    Raises ``ValueError`` for sizes that do not fit together, or results whose sizes are no multiple of the tile's.
    """
    if image.ndim < 2:
        raise ValueError(f"image: got shape {image.shape}, expected [..., height, width]")
    sizes = [
        _Axis(name, *numbers)
        for name, *numbers in zip(
            ("height", "width"),
            image.shape[-2:],
            _pair(tile),
            _pair(overlap),
            (None, None) if seam is None else _pair(seam),
            _pair(step),
            strict=True,
        )
    ]
    height, width = sizes
    total, kind = np.zeros(0, np.float32), image.dtype
    for row, top in enumerate(height.starts):
        for column, left in enumerate(width.starts):
            part = image[..., top : top + height.tile, left : left + width.tile]
            made = run(np.ascontiguousarray(part))
            if not total.size:
                for axis, length in zip(sizes, made.shape[-2:], strict=True):
                    axis.scale(length)
                kind = made.dtype
                total = np.zeros((*made.shape[:-2], height.result, width.result), np.result_type(kind, np.float32))
            rows, columns = height.places[row], width.places[column]
            weights = height.weights[row][:, None] * width.weights[column]
            total[..., rows, columns] += made * weights
    return total.astype(kind, copy=False)


def _pair(side: Side) -> tuple[int, int]:
    return side if isinstance(side, tuple) else (side, side)


class _Axis:
    """Where the tiles of one axis begin, and after `scale` where their results lie and how much each pixel of them counts."""

    def __init__(self, name: str, length: int, tile: int, overlap: int, seam: int | None, step: int) -> None:
        if not 0 <= overlap < tile:
            raise ValueError(f"overlap, {name}: got {overlap}, expected 0 to {tile - 1}, less than a tile")
        if seam is not None and not 0 <= seam <= overlap:
            raise ValueError(f"seam, {name}: got {seam}, expected 0 to the overlap, {overlap}")
        for what, number in (("image", length), ("tile", tile), ("overlap", overlap)):
            if step < 1 or number % step:
                raise ValueError(f"{what}, {name}: got {number}, expected a multiple of the step, {step}")
        self.name, self.length, self.tile = name, length, min(tile, length)
        self._seam = overlap // 2 if seam is None else seam
        free = (length - self.tile) // step
        count = 1 - (-free // ((tile - overlap) // step)) if free else 1
        self.starts = [free * k // max(1, count - 1) * step for k in range(count)]

    def scale(self, made: int) -> None:
        """``made``: the length of a tile's result."""
        ratio = Fraction(made, self.tile)
        begins = [start * ratio for start in self.starts]
        if any(b.denominator != 1 for b in (*begins, self.length * ratio)):
            raise ValueError(
                f"result, {self.name}: got {made} for a tile of {self.tile} pixels: tiles that begin at {self.starts} would end "
                f"between pixels of the result; pass step={ratio.denominator} or a multiple of it"
            )
        self.result = int(self.length * ratio)
        self.places = [slice(int(b), int(b) + made) for b in begins]
        # between neighbours: the share of the later one rises from 0 to 1 around the middle of what both have
        pixels = np.arange(self.result) + 0.5
        middles = [(late.start + early.stop) / 2 for early, late in zip(self.places, self.places[1:], strict=False)]
        width = max(float(self._seam * ratio), 1e-6)
        shares = [np.clip((pixels - m) / width + 0.5, 0, 1) for m in middles]
        rising = [np.ones(self.result), *shares]
        falling = [*shares, np.zeros(self.result)]
        self.weights = [
            (up - down)[place].astype(np.float32) for up, down, place in zip(rising, falling, self.places, strict=True)
        ]
