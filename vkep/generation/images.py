"""Images as vision encoders take them: resized, cut, scaled and normalized as the model's folder says."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vkep.errors import InvalidInputError, InvalidModelError, UnsupportedModelError
from vkep.generation.crops import Crops, longest_edge, nearest_ratio
from vkep.generation.folder import Record
from vkep.generation.templates import MissingPackageError
from vkep.text import shown

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Array = np.ndarray[Any, Any]
#: a file's path, the content of a file, an image of Pillow, or uint8 [height, width, 3]
ImageLike: TypeAlias = "str | Path | bytes | Array | Picture"

SETTINGS, GENAI_SETTINGS = "preprocessor_config.json", "processor_config.json"
#: formats of images that are not files of the user's: bytes come from clients of a service
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
#: pixels of an image before it is resized, and the largest edge after it
_MOST_PIXELS, _LONGEST_EDGE = 1 << 26, 4096
_BILINEAR, _BICUBIC, _LANCZOS = 2, 3, 1  # as in Pillow and in transformers' files
#: classes of transformers by what they do beside the common steps
_KINDS = {
    "CLIP": "",
    "Siglip": "",
    "ViT": "",
    "Gemma3": "",
    "Llava": "square",
    "Idefics3": "tiles",
    "SmolVLM": "tiles",
    "Qwen2VL": "patches",
}
#: what Phi3ImageTransform of onnxruntime-extensions does, whose attributes it does not read
_PHI3 = Crops(336, 16, longest_edge, fixed=True)
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_PHI4_PATCH, _MOST_CROPS = 14, 64
_GENAI_FILTERS = {"NEAREST": 0, "LANCZOS": _LANCZOS, "LINEAR": _BILINEAR, "CUBIC": _BICUBIC}


@dataclass(frozen=True)
class Pixels:
    """What a vision encoder reads of one image: ``values`` float32 [tiles, 3, height, width]. An image that was cut has
    ``rows`` by ``columns`` tiles, then one of the whole (by `Crops` before them); others have one tile, and no rows. Of an
    encoder of patches (Qwen2-VL): [patches, numbers], in ``rows`` by ``columns`` patches. ``mask``: of `Crops.cut`."""

    values: Array
    rows: int = 0
    columns: int = 0
    mask: Array | None = None


@dataclass(frozen=True)
class Processor:
    """The steps from an image to `Pixels`; sizes are (height, width)."""

    size: tuple[int, int] | None = None  #: of the resized image
    shortest: int = 0  #: edge of an image that is resized with its proportions
    longest: int = 0  #: likewise, before it is cut into tiles
    crop: tuple[int, int] | None = None
    tile: int = 0  #: edge of the tiles that an image is cut into; 0: none
    split: bool = True  #: whether it is cut, not only resized to one tile
    patch: int = 0  #: edge of the patches of an encoder of patches; 0: it reads images
    merge: int = 1  #: patches in each direction that become one feature
    frames: int = 1  #: of a patch
    pixels_from: int = 0  #: bounds of the pixels of an image that becomes patches
    pixels_to: int = 0
    crops: Crops | None = None  #: how an image is cut for Phi's encoders
    square: bool = False  #: whether the image is padded to a square with the mean's color
    filter: int = _BICUBIC
    factor: float = 1 / 255
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    @classmethod
    def of(cls, folder: Path, named: str = "") -> Processor:
        """What a folder's file says; ``named``: its file of onnxruntime-genai's steps, which is read where `SETTINGS` is absent
        or of a class of transformers that is unknown here. Raises `InvalidModelError`, and `UnsupportedModelError` for steps that
        are unknown."""
        steps = named or GENAI_SETTINGS
        if (folder / SETTINGS).is_file():
            given = Record.read(folder, SETTINGS)
            if _stem(given) in _KINDS or not named:
                return _transformers(given)
        if (folder / steps).is_file():
            return _genai(Record.read(folder, steps))
        raise InvalidModelError(f"{folder} has neither {SETTINGS} nor {steps}, which say how images are read")

    def pixels(self, image: ImageLike) -> Pixels:
        """Raises `InvalidInputError` for what is no image, `MissingPackageError` without Pillow."""
        picture = opened(image)
        if self.square:
            if max(picture.size) ** 2 > _MOST_PIXELS:
                raise InvalidInputError(
                    f"a square around an image of {picture.size} pixels has more than {_MOST_PIXELS}"
                )
            picture = _padded(picture, self.mean)
        if self.crops is not None:
            return Pixels(*self.crops.cut(picture, self._scaled))
        if self.patch:
            return self._patches(picture)
        if self.tile:
            return self._tiles(picture)
        if self.size is not None:
            picture = self._resized(picture, *self.size)
        elif self.shortest:
            short, long = sorted(picture.size)
            other = int(self.shortest * long / short)
            if other > _LONGEST_EDGE:
                raise InvalidInputError(
                    f"an image of {picture.size} pixels would be resized to an edge of {other}, more than {_LONGEST_EDGE}"
                )
            wide = picture.width > picture.height
            picture = self._resized(picture, *((self.shortest, other) if wide else (other, self.shortest)))
        values = np.asarray(picture)
        return Pixels(self._scaled(_cropped(values, self.crop) if self.crop else values)[None])

    def _tiles(self, picture: Picture) -> Pixels:
        """As the processor of Idefics 3 in transformers."""
        edge, size = self.tile, picture.size
        if self.longest:
            width, height = _with_longest(size, self.longest)
            size = width + width % 2 * (width < height), height + height % 2 * (height <= width)
            picture = self._resized(picture, size[1], size[0])
        columns, rows = (
            (-(-n // edge) for n in _with_longest(size, -(-max(size) // edge) * edge)) if self.split else (1, 1)
        )
        if rows * columns * edge**2 > _MOST_PIXELS:
            raise InvalidInputError(
                f"an image of {picture.size} pixels becomes {rows} by {columns} tiles, more than can be read"
            )
        picture = self._resized(picture, rows * edge, columns * edge)
        whole = np.asarray(picture)
        if whole.shape[:2] == (edge, edge):
            return Pixels(self._scaled(whole)[None])
        parts = [
            whole[r : r + edge, c : c + edge]
            for r in range(0, whole.shape[0], edge)
            for c in range(0, whole.shape[1], edge)
        ]
        parts.append(np.asarray(self._resized(picture, edge, edge)))
        return Pixels(np.stack([self._scaled(part) for part in parts]), rows, columns)

    def _patches(self, picture: Picture) -> Pixels:
        """As the processor of Qwen2-VL in transformers: groups of ``merge`` by ``merge`` patches follow each other."""
        edge, sizes = self.patch * self.merge, (picture.height, picture.width)
        if max(sizes) > 200 * min(sizes):
            raise InvalidInputError(
                f"an image of {picture.size} pixels is too long: one edge is over 200 times the other"
            )
        height, width = (round(n / edge) * edge for n in sizes)
        factor = math.sqrt(sizes[0] * sizes[1] / self.pixels_to)
        if height * width > self.pixels_to:
            height, width = (max(edge, math.floor(n / factor / edge) * edge) for n in sizes)
        elif height * width < self.pixels_from:
            factor = math.sqrt(self.pixels_from / (sizes[0] * sizes[1]))
            height, width = (math.ceil(n * factor / edge) * edge for n in sizes)
        values = self._scaled(np.asarray(self._resized(picture, height, width)))
        rows, columns = height // self.patch, width // self.patch
        apart = (rows // self.merge, self.merge, self.patch, columns // self.merge, self.merge, self.patch)
        ordered = values.reshape(3, *apart).transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
        patches = np.repeat(ordered, self.frames, axis=5).reshape(rows * columns, -1)
        return Pixels(np.ascontiguousarray(patches), rows, columns)

    def _resized(self, picture: Picture, height: int, width: int) -> Picture:
        return picture if picture.size == (width, height) else picture.resize((width, height), self.filter)

    def _scaled(self, values: Array) -> Array:
        """float32 [3, height, width] of uint8 [height, width, 3]."""
        scaled: Array = values.astype(np.float32) * np.float32(self.factor)
        scaled = (scaled - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def opened(image: ImageLike) -> Picture:
    """An image of Pillow in RGB, turned as its file says. Raises as `Processor.pixels`."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingPackageError(f"images need the package pillow: pip install 'vkep[generate]' ({error})") from None
    damaged = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, struct.error)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise InvalidInputError(f"the image is {image.dtype} {image.shape}; expected uint8 [height, width, 3]")
        picture = Image.fromarray(image)
    elif isinstance(image, Image.Image):
        picture = image
    else:
        try:
            picture = Image.open(io.BytesIO(image), formats=_FORMATS) if isinstance(image, bytes) else Image.open(image)
        except FileNotFoundError:
            raise
        except (TypeError, AttributeError):
            raise InvalidInputError(
                f"the image is {type(image).__name__}; expected a path, the bytes of a file, uint8 [height, width, 3], or an "
                "image of Pillow"
            ) from None
        except damaged as error:
            of_bytes = f"{len(image)} bytes are none of {', '.join(_FORMATS)}" if isinstance(image, bytes) else error
            raise InvalidInputError(f"no image that Pillow reads: {of_bytes}") from None
    if picture.width * picture.height > _MOST_PIXELS:
        raise InvalidInputError(f"the image has {picture.size} pixels, more than {_MOST_PIXELS} in all")
    try:
        return ImageOps.exif_transpose(picture).convert("RGB")  # as transformers turns photos
    except damaged as error:
        raise InvalidInputError(f"the image cannot be read: {error}") from None


def _with_longest(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Width and height of an image that is resized to a longest edge, with its proportions."""
    width, height = size
    aspect = width / height
    return (longest, max(int(longest / aspect), 1)) if width >= height else (max(int(longest * aspect), 1), longest)


def _padded(picture: Picture, mean: Sequence[float]) -> Picture:
    from PIL import Image

    edge = max(picture.size)
    square = Image.new("RGB", (edge, edge), tuple(int(255 * m) for m in mean))
    square.paste(picture, ((edge - picture.width) // 2, (edge - picture.height) // 2))
    return square


def _cropped(values: Array, crop: tuple[int, int]) -> Array:
    """The middle of an image, with black around it where it is smaller."""
    for axis, size in enumerate(crop):
        spare = values.shape[axis] - size
        if spare < 0:
            before = -(spare // 2)
            widths = [(0, 0)] * values.ndim
            widths[axis] = before, -spare - before
            values = np.pad(values, widths)
        else:
            values = np.take(values, range(spare // 2, spare // 2 + size), axis)
    return values


def _reader(given: Record) -> str:
    return given.text("image_processor_type", "") or given.text("feature_extractor_type", "")


def _stem(given: Record) -> str:
    return _reader(given).removesuffix("Fast").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")


def _transformers(given: Record) -> Processor:
    stem = _stem(given)
    if stem not in _KINDS:
        raise UnsupportedModelError(
            f"{given.where}: images are read by {shown(_reader(given))}; known are {', '.join(_KINDS)} of transformers' "
            "ImageProcessors"
        )
    values, kind = given.values, _KINDS[stem]
    processor = Processor(filter=given.number("resample", _LANCZOS if kind == "tiles" else _BICUBIC, 5))
    if kind == "tiles":
        size, most = given.record("size", needed=False), given.record("max_image_size")
        processor = replace(
            processor,
            longest=size.number("longest_edge", 0, _LONGEST_EDGE) if _is_on(values, "do_resize") else 0,
            tile=_edge(most, "longest_edge"),
            split=_is_on(values, "do_image_splitting"),
        )
    elif kind == "patches":
        processor = replace(processor, **_patches(given))
    else:
        resized = _size(given) if _is_on(values, "do_resize") else {}
        processor = replace(processor, **resized, square=kind == "square" and _is_on(values, "do_pad"))
        if _is_on(values, "do_center_crop", default=stem in ("CLIP", "Llava")):
            crop = values.get("crop_size")
            edges = {"height": crop, "width": crop} if isinstance(crop, int) else crop
            record = Record(edges, f"{given.where}: crop_size")
            processor = replace(processor, crop=(_edge(record, "height"), _edge(record, "width")))
    if _is_on(values, "do_pan_and_scan", default=False):
        raise UnsupportedModelError(f"{given.where}: do_pan_and_scan is not supported")
    factor = _floats(given, "rescale_factor", (1 / 255,))[0] if _is_on(values, "do_rescale") else 1.0
    processor = replace(processor, factor=factor)
    return _normalized(processor, given, "image_mean", "image_std") if _is_on(values, "do_normalize") else processor


def _patches(given: Record) -> dict[str, Any]:
    edges = {name: given.number(f"{name}_size", 1, 256) for name in ("patch", "merge")}
    size = given.record("size", needed=False)
    least, most = (
        size.number(edge, given.number(pixels, usual, _MOST_PIXELS), _MOST_PIXELS)
        for edge, pixels, usual in (
            ("shortest_edge", "min_pixels", 56 * 56),
            ("longest_edge", "max_pixels", 28 * 28 * 1280),
        )
    )
    found = {**edges, "frames": given.number("temporal_patch_size", 2, 16), "pixels_from": least, "pixels_to": most}
    if 0 in found.values() or not _is_on(given.values, "do_resize"):
        raise InvalidModelError(f"{given.where}: the sizes of patches are {found}, and images must be resized")
    return found


def _size(given: Record) -> dict[str, Any]:
    size = given.values.get("size")
    if isinstance(size, int):
        crops = _is_on(given.values, "do_center_crop", default=False)
        size = {"shortest_edge": size} if crops else {"height": size, "width": size}
    record = Record(size, f"{given.where}: size")
    if "shortest_edge" in record.values:
        return {"shortest": _edge(record, "shortest_edge")}
    return {"size": (_edge(record, "height"), _edge(record, "width"))}


def _genai(given: Record) -> Processor:
    """The steps of onnxruntime-genai's file, which are operators of onnxruntime-extensions."""
    steps = given.record("processor").values.get("transforms")
    processor = Processor(factor=1.0)
    for number, step in enumerate(steps if isinstance(steps, list) else []):
        operation = Record(step, f"{given.where}: transforms[{number}]").record("operation")
        name, attrs = operation.text("type"), operation.record("attrs", needed=False)
        if name == "Resize":
            chosen = attrs.text("interpolation", "CUBIC")
            if chosen not in _GENAI_FILTERS or attrs.number("keep_aspect", 0):
                raise UnsupportedModelError(f"{attrs.where}: {shown(attrs.values)} is not supported")
            size = _edge(attrs, "height"), _edge(attrs, "width")
            processor = replace(processor, size=size, filter=_GENAI_FILTERS[chosen])
        elif name == "CenterCrop":
            processor = replace(processor, crop=(_edge(attrs, "height"), _edge(attrs, "width")))
        elif name == "Rescale":
            processor = replace(processor, factor=_floats(attrs, "rescale_factor", (1 / 255,))[0])
        elif name == "Normalize":
            processor = _normalized(processor, attrs, "mean", "std")
        elif name == "Permute3D":
            if attrs.values.get("dims") != [2, 0, 1]:
                raise UnsupportedModelError(f"{attrs.where}: dims {shown(attrs.values.get('dims'))} are not supported")
        elif name == "Phi3ImageTransform":
            processor = replace(processor, crops=_PHI3, factor=1 / 255, mean=_CLIP_MEAN, std=_CLIP_STD)
        elif name == "Phi4VisionDynamicPreprocess":
            most, edge = (
                attrs.number("dynamic_hd", 36, _MOST_CROPS),
                attrs.number("dyhd_base_resolution", 448, _LONGEST_EDGE),
            )
            if not most or not edge or edge % _PHI4_PATCH or most * edge**2 > _MOST_PIXELS:
                raise InvalidModelError(
                    f"{attrs.where}: {shown(attrs.values)}; expected crops of up to {_MOST_PIXELS} pixels in all, and a multiple "
                    f"of {_PHI4_PATCH}"
                )
            processor = replace(processor, crops=Crops(edge, most, nearest_ratio, patch=_PHI4_PATCH))
        elif name not in ("DecodeImage", "ConvertRGB", "Phi4VisionProcessor"):
            raise UnsupportedModelError(f"{operation.where}: operation {shown(name)} is not supported")
    return processor


def _normalized(processor: Processor, given: Record, mean: str, std: str) -> Processor:
    means, deviations = _floats(given, mean, ()), _floats(given, std, ())
    if len(means) != 3 or len(deviations) != 3 or 0 in deviations:
        raise InvalidModelError(
            f"{given.where}: {mean} and {std} are {means} and {deviations}; expected 3 numbers each"
        )
    return replace(processor, mean=means, std=deviations)


def _is_on(values: Any, name: str, default: bool = True) -> bool:
    value = values.get(name)
    return default if value is None else bool(value)


def _edge(given: Record, name: str) -> int:
    edge = given.number(name, most=_LONGEST_EDGE)
    if not edge:
        raise InvalidModelError(f"{given.where}: {name} is 0")
    return edge


def _floats(given: Record, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    value = given.values.get(name)
    numbers = default if value is None else tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(n, (int, float)) and not isinstance(n, bool) and np.isfinite(n) for n in numbers):
        raise InvalidModelError(f"{given.where}: {name} is {shown(value)}, expected numbers")
    return tuple(float(n) for n in numbers)
