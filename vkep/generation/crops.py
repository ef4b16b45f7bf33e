"""Images as Phi's encoders take them: the whole image, then crops of it at a larger size.

The sizes are those of onnxruntime-extensions' operators Phi3ImageTransform and Phi4VisionDynamicPreprocess with
Phi4VisionProcessor, which folders of onnxruntime-genai name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vkep.errors import InvalidInputError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Array = np.ndarray[Any, Any]
#: width and height
Size: TypeAlias = tuple[int, int]
_BILINEAR, _BICUBIC = 2, 3  # as in Pillow
_WHITE = (255, 255, 255)
#: the shortest edge that an image may be resized to
_SHORTEST = 10


@dataclass(frozen=True)
class Layout:
    """Where a resized image lies on a white canvas of whole crops."""

    size: Size  #: of the resized image
    canvas: Size
    at: Size  #: of its upper left corner


@dataclass(frozen=True)
class Crops:
    """How an image is cut: up to ``most`` crops of ``edge`` by ``edge`` pixels. ``fixed``: crops of zeros follow, so that every
    image has as many. ``patch``: edge of the patches that a mask of crops has numbers for; 0: there is no mask."""

    edge: int
    most: int
    layout: Callable[[Size, int, int], Layout]
    fixed: bool = False
    patch: int = 0

    def cut(self, picture: Picture, scaled: Callable[[Array], Array]) -> tuple[Array, int, int, Array | None]:
        """float32 [1 + crops, 3, edge, edge], of which the first is the whole image; rows and columns of the crops; and of a
        ``patch`` the mask float32 [1 + crops, edge / patch, edge / patch], which is 0 beside the image. ``scaled``: float32
        [3, height, width] of uint8 [height, width, 3]. Raises `InvalidInputError` for an image that is too long."""
        from PIL import Image

        layout = self.layout(picture.size, self.edge, self.most)
        if min(layout.size) < _SHORTEST:
            raise InvalidInputError(
                f"an image of {picture.size} pixels is too long: it would be resized to {layout.size}"
            )
        canvas = Image.new("RGB", layout.canvas, _WHITE)
        canvas.paste(picture.resize(layout.size, _BILINEAR), layout.at)
        values = scaled(np.asarray(canvas))
        edges = (self.edge, self.edge)
        whole = [np.asarray(Image.fromarray(channel).resize(edges, _BICUBIC)) for channel in values]
        columns, rows = (n // self.edge for n in layout.canvas)
        crops = [np.stack(whole)[None], _tiles(values, self.edge)]
        if self.fixed:
            crops.append(np.zeros((self.most - rows * columns, 3, *edges), np.float32))
        return np.concatenate(crops), rows, columns, self._mask(layout) if self.patch else None

    def _mask(self, layout: Layout) -> Array:
        edge = self.edge // self.patch
        mask = np.ones((1, *(n // self.edge * edge for n in layout.canvas[::-1])), np.float32)
        right, below = ((whole - size) // self.patch for whole, size in zip(layout.canvas, layout.size, strict=True))
        mask[:, mask.shape[1] - below :] = 0
        mask[:, :, mask.shape[2] - right :] = 0
        return np.concatenate([np.ones((1, edge, edge), np.float32), _tiles(mask, edge)[:, 0]])


def _tiles(values: Array, edge: int) -> Array:
    """[rows * columns, channels, edge, edge] of [channels, rows * edge, columns * edge]."""
    channels, height, width = values.shape
    apart = values.reshape(channels, height // edge, edge, width // edge, edge).transpose(1, 3, 0, 2, 4)
    return apart.reshape(-1, channels, edge, edge)


def longest_edge(size: Size, edge: int, most: int) -> Layout:
    """The largest size whose crops are at most ``most``, in the middle of its canvas (Phi-3-vision)."""
    width, height = size
    ratio = max(size) / min(size)
    scale = max(k for k in range(1, most + 1) if k * math.ceil(k / ratio) <= most)
    long, short = scale * edge, int(scale * edge / ratio)
    padded = -(-short // edge) * edge
    wide = width >= height
    resized, canvas = ((long, short), (long, padded)) if wide else ((short, long), (padded, long))
    return Layout(resized, canvas, ((canvas[0] - resized[0]) // 2, (canvas[1] - resized[1]) // 2))


def nearest_ratio(size: Size, edge: int, most: int) -> Layout:
    """The crops that cover the image at its own size, or where these are more than ``most`` those of the nearest ratio of width
    and height, in the corner of its canvas (Phi-4-multimodal)."""
    width, height = size
    columns, rows = (-(-n // edge) for n in size)
    if columns * rows > most:
        columns, rows = _ratio(size, edge, most)
    canvas = columns * edge, rows * edge
    factors = canvas[0] / width, canvas[1] / height
    by_width = factors[0] < factors[1]
    resized = (canvas[0], int(height * factors[0])) if by_width else (int(width * factors[1]), canvas[1])
    return Layout(resized, canvas, (0, 0))


def _ratio(size: Size, edge: int, most: int) -> tuple[int, int]:
    """Columns and rows: the nearest ratio; of equal ones the largest whose pixels are less than twice the image's."""
    width, height = size
    forms = [(c, r) for c in range(1, most + 1) for r in range(1, most // c + 1)]
    found, least = (1, 1), math.inf
    for columns, rows in sorted(forms, key=lambda form: form[0] * form[1]):
        apart = abs(width / height - columns / rows)
        if apart < least or (apart == least and 2 * width * height > edge**2 * columns * rows):
            found, least = (columns, rows), apart
    return found
