"""Images in prompts: an encoder's features of them are in a table on the device, which the decoder reads like its embeddings."""

from __future__ import annotations

import hashlib
import operator
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkep import dtypes
from vkep.device.tensor import ALIGNMENT, DeviceTensor
from vkep.errors import InvalidInputError, InvalidModelError, UnsupportedModelError
from vkep.generation.caches import Moves, element_of
from vkep.generation.folder import VisionFolder
from vkep.generation.images import ImageLike, Pixels, Processor
from vkep.generation.rewrite import EMBEDS, FIRST_FEATURE, with_embeddings
from vkep.generation.sounds import SoundEncoder, SoundLike, numbers_of
from vkep.graph.model import Model
from vkep.session import InferenceSession
from vkep.text import shown

Array = np.ndarray[Any, Any]

#: the first token of an image in a prompt. Each image has tokens of its own, so that caches of one do not serve another
FIRST_TOKEN = 1 << 40
#: in a prompt of token ids of a model whose texts number images, -1 is the first image, and this less 1 the first sound
FIRST_SOUND = -(10**8)
#: the table's rows at the start, and the most that it grows to
_ROWS, _MOST_ROWS = 64, 1 << 17
#: images whose features are kept for another prompt
_KEPT = 32
#: roles of the encoder's inputs: pixels, a mask of them, patches in each direction, the size of an image that was cut, its mask
_PIXELS, _MASK, _GRID = "pixel_values", "pixel_attention_mask", "image_grid_thw"
_SIZES, _CROPS_MASK = "image_sizes", "image_attention_mask"
_ROLES = (_PIXELS, _MASK, _GRID, _SIZES, _CROPS_MASK)


@dataclass(eq=False)
class Image:
    """An image whose features are in the table: ``count`` rows from ``row``, for the tokens from ``first``."""

    first: int
    row: int
    count: int
    tiles: int
    rows: int  #: of tiles, or of features that have positions in a grid
    columns: int
    sound: bool = False  #: whether it is a sound

    def tokens(self, tile: int) -> range:
        """The tokens of a tile."""
        each = self.count // self.tiles
        return range(self.first + tile * each, self.first + (tile + 1) * each)


class ImagePrompt(list[int]):
    """The tokens of a prompt with images, which lives as long as their features are needed."""

    def __init__(self, tokens: Sequence[int], images: Sequence[Image]) -> None:
        super().__init__(tokens)
        self.images = tuple(images)


def _numbered(token: int) -> tuple[bool, int]:
    """Whether a negative token is a sound, and its number from 0."""
    return (True, FIRST_SOUND - token - 1) if token < FIRST_SOUND else (False, -token - 1)


def _sound_encoder(folder: VisionFolder, options: Mapping[str, Any], element: int) -> tuple[SoundEncoder | None, str]:
    """The encoder of a folder's sounds; or None, and why the model reads none."""
    if folder.sounds is None:
        return None, "has no encoder of sounds"
    try:
        made = SoundEncoder(folder.sounds, options)
    except UnsupportedModelError as error:
        return None, f"cannot be used for sounds: {error}"
    if made.element == element:
        return made, ""
    made.session.close()
    return None, f"makes features of sounds of another type than those of images ({made.element}, {element})"


def images_of(prompt: Any) -> Sequence[Image]:
    """The images of a prompt."""
    return prompt.images if isinstance(prompt, ImagePrompt) else ()


def ids_of(prompt: Any, vocabulary: int = 0, what: str = "prompt") -> list[int]:
    """The tokens of a prompt, among them those of its own images. ``vocabulary``: the number of the model's (0: unknown). Raises
    `InvalidInputError` for no tokens, and for others: those of other prompts' images are none of this one's."""
    try:
        tokens = [operator.index(token) for token in prompt]
    except TypeError as error:
        raise InvalidInputError(f"the {what} has something that is no token id: {error}") from None
    if not tokens:
        raise InvalidInputError(f"the {what} is empty: expected one token or more")
    own = {t for image in images_of(prompt) for t in range(image.first, image.first + image.count)}
    wrong = [t for t in tokens if not 0 <= t < (vocabulary or FIRST_FEATURE) and t not in own]
    if wrong:
        raise InvalidInputError(
            f"token {shown(wrong[0])} of the {what} is not among the model's{f' {vocabulary}' if vocabulary else ''}; is the "
            "tokenizer another model's?"
        )
    return tokens


def opened(folder: VisionFolder | None, options: Mapping[str, Any]) -> tuple[Vision | None, str]:
    """The encoder of a folder's images; or None, and why the model reads none. Raises as `Vision`, but no
    `UnsupportedModelError`: the model serves texts."""
    if folder is None:
        return None, "has no encoder of images"
    try:
        return Vision(folder, options), ""
    except UnsupportedModelError as error:
        return None, f"cannot be used for images: {error}"


class Vision:
    """The encoder of a folder's images, and the table of their features.

    Raises as `InferenceSession`, `InvalidModelError`, and `UnsupportedModelError` for an encoder with inputs that are not known.
    """

    def __init__(self, folder: VisionFolder, options: Mapping[str, Any]) -> None:
        self.folder, self._processor = folder, Processor.of(folder.root, folder.steps)
        #: whether features have positions in three dimensions (Qwen2-VL and later): the decoder's input says it
        self.in_grid = False
        self.session = InferenceSession(str(folder.path), **options)
        try:
            graph = self.session.model.graph
            #: the encoder's inputs, and the types of their elements, by their roles
            self._reads = {folder.inputs.get(i.name, i.name): (i, numbers_of(i)) for i in graph.inputs}
            if _PIXELS not in self._reads or not {*self._reads} <= self._made():
                raise UnsupportedModelError(
                    f"{folder.path} has inputs {[i.name for i in graph.inputs]}; generation knows {', '.join(_ROLES)}, the last "
                    "two of images that are cut as onnxruntime-genai's Phi models have it"
                )
            #: the ONNX type of features
            self.element = element_of(graph.outputs[0])
            self._dtype = str(dtypes.from_onnx(self.element))
            self._moves = Moves(self.session, self._dtype)
            #: the encoder of sounds, or why there is none
            self.sound_encoder, self.no_sounds = _sound_encoder(folder, options, self.element)
        except BaseException:
            self.session.close()
            raise
        self._lock = threading.RLock()  # of the table, and what is in it
        self._encoding = threading.Lock()  # of the encoder, and the images that are kept
        self._table: DeviceTensor | None = None
        self._all: list[weakref.ref[Image]] = []
        self._kept: OrderedDict[bytes, Image] = OrderedDict()  # by a digest of their pixels, the latest last
        self._next = FIRST_TOKEN
        self._width = 0

    def _made(self) -> set[str]:
        """The roles of inputs that the processor makes."""
        crops = self._processor.crops
        return {_PIXELS, _MASK, _GRID, *([_SIZES] if crops else []), *([_CROPS_MASK] if crops and crops.patch else [])}

    @property
    def features(self) -> DeviceTensor:
        """The table [rows, width]."""
        assert self._table is not None
        return self._table

    def joined(self, model: Model, embeddings: Model) -> Model:
        """A model that reads embeddings, changed to read tokens and the features in the table, which is made for it. Raises as
        `begin` and `with_embeddings`."""
        width = next((v.shape[-1] for v in model.graph.inputs if v.name == EMBEDS and v.shape), None)
        made = with_embeddings(model, embeddings, self.element)
        self.begin(width)
        return made

    def begin(self, width: Any) -> None:
        """Make the table for embeddings of ``width``. Raises `InvalidModelError` where the encoder's features have another one,
        or no file says it."""
        shape = self.session.model.graph.outputs[0].shape or (None,)
        widths = {size for size in (width, shape[-1]) if isinstance(size, int)}
        if len(widths) != 1:
            raise InvalidModelError(f"{self.folder.path} makes features {shape} for embeddings of width {width}")
        [self._width] = widths
        self._table = self.session.empty_device_tensor((_ROWS, self._width), self._dtype)
        self._table.write(np.zeros((_ROWS, self._width), self._table.dtype.numpy))

    def prompt(
        self,
        tokens: Sequence[int],
        images: Sequence[ImageLike],
        encode: Callable[[str], list[int]],
        context: int,
        sounds: Sequence[SoundLike] = (),
    ) -> ImagePrompt:
        """The tokens of a prompt, in which the features of each image and sound take the place of its mark; of those without
        marks before all else. Runs the encoders on what is not kept. ``encode``: the tokens of a text. ``context``: the model's
        longest sequence (0: unknown).

        Raises `InvalidInputError` for marks of another number of images or sounds, for what is none, for sounds where the model
        reads none, and for more features than the model takes, `ArenaOutOfMemory`.
        """
        places = self._marks(tokens)
        everything: tuple[tuple[bool, Sequence[Any], str], ...] = ((False, images, "image"), (True, sounds, "sound"))
        for of_sounds, given, what in everything:
            numbers = {k for is_sound, k in places.values() if is_sound is of_sounds}
            if numbers and numbers != {*range(len(given))}:
                named = "" if self.folder.numbered is None else f" numbered {sorted(k + 1 for k in numbers)}"
                raise InvalidInputError(
                    f"the prompt has marks of {len(numbers)} {what}s{named}, and {len(given)} {what}s are passed"
                )
        read: list[Image] = []
        parts: dict[tuple[bool, int], list[int]] = {}
        for of_sounds, given, what in everything:
            for k, one in enumerate(given):
                count = sum(image.count for image in read)
                if count >= (context or _MOST_ROWS):
                    raise InvalidInputError(
                        f"{k} of {len(given)} {what}s have {count} features; the model takes {context or _MOST_ROWS} tokens"
                    )
                try:
                    read.append(self._read_sound(one, len(images) > 0) if of_sounds else self._read(one))
                except InvalidInputError as error:
                    raise InvalidInputError(f"{what} {k + 1} of {len(given)}: {error}") from None
                parts[of_sounds, k] = self._part(read[-1], encode)
        marked = {*places.values()}
        found = [token for key, part in parts.items() if key not in marked for token in part]
        for at, token in enumerate(tokens):
            found += parts[places[at]] if at in places else [token]
        return ImagePrompt(found, read)

    def _marks(self, tokens: Sequence[int]) -> dict[int, tuple[bool, int]]:
        """What stands at which place of a prompt: whether it is a sound, and which of them or of the images."""
        if self.folder.numbered is not None:
            return {at: _numbered(token) for at, token in enumerate(tokens) if token < 0}
        marks = (at for at, token in enumerate(tokens) if token == self.folder.mark)
        return {at: (False, k) for k, at in enumerate(marks)}

    def places(self, tokens: Sequence[int]) -> Array:
        """Tokens int64 [count] with the places of images' features in the table. Raises `InvalidInputError` for features that it
        no longer has."""
        found = np.array(tokens, np.int64)
        of_images = found >= FIRST_TOKEN
        for image in self._alive() if of_images.any() else ():
            its = (image.first <= found) & (found < image.first + image.count)
            found[its] += FIRST_FEATURE + image.row - image.first
            of_images &= ~its
        if of_images.any():
            raise InvalidInputError("an image of the prompt is no longer kept: pass it again")
        return found

    def positions(self, tokens: Sequence[int]) -> Array:
        """Positions int64 [3, count] of a sequence's tokens from its first: an image's features stand in a grid, and the text
        after it goes on at the grid's larger edge (Qwen2-VL, arXiv:2409.12191, section 2.1)."""
        in_grid = self.in_grid and max(tokens, default=0) >= FIRST_TOKEN
        images = {image.first: image for image in self._alive()} if in_grid else {}
        found: list[tuple[int, int, int]] = []
        at = 0
        while len(found) < len(tokens):
            image = images.get(tokens[len(found)])
            count, rows, columns = (image.count, image.rows, image.columns) if image is not None else (1, 1, 1)
            left = min(count, len(tokens) - len(found))
            found += [(at, at + k // columns, at + k % columns) for k in range(left)]
            at += max(rows, columns)
        return np.array(found, np.int64).reshape(-1, 3).T

    def _alive(self) -> list[Image]:
        """The images that a prompt, or the encoder's cache, refers to."""
        with self._lock:
            self._all = [ref for ref in self._all if ref() is not None]
            return [image for ref in self._all if (image := ref()) is not None]

    def _part(self, image: Image, encode: Callable[[str], list[int]]) -> list[int]:
        """What stands for an image in a prompt."""
        if not self.folder.tiled:
            pieces: list[str | range] = [self.folder.before, *map(image.tokens, range(image.tiles)), self.folder.after]
        else:  # as the processor of Idefics 3 in transformers
            around, pieces = "<fake_token_around_image>", []
            for row in range(image.rows):
                for column in range(image.columns):
                    name = f"{around}<row_{row + 1}_col_{column + 1}>"
                    pieces += [name, image.tokens(row * image.columns + column)]
                pieces.append("\n")
            lead = "\n" if image.rows else ""
            pieces += [f"{lead}{around}<global-img>", image.tokens(image.tiles - 1), around]
        joined: list[str | range] = []  # neighbouring texts are encoded as one
        for piece in pieces:
            if isinstance(piece, str) and joined and isinstance(joined[-1], str):
                joined[-1] += piece
            else:
                joined.append(piece)
        return [t for piece in joined for t in (piece if isinstance(piece, range) else encode(piece) if piece else [])]

    def _read(self, image: ImageLike) -> Image:
        pixels = self._processor.pixels(image)
        form = (pixels.values.shape, pixels.rows, pixels.columns)
        mask = b"" if pixels.mask is None else pixels.mask.tobytes()
        digest = hashlib.sha256(repr(form).encode() + pixels.values.tobytes() + mask).digest()
        with self._encoding:
            known = self._kept.pop(digest, None) or self._encoded(pixels)
            self._keep(digest, known)
        return known

    def _read_sound(self, sound: SoundLike, beside_images: bool) -> Image:
        if self.sound_encoder is None:
            raise InvalidInputError(f"the model of {self.folder.root} {self.no_sounds}")
        feeds, count = self.sound_encoder.read(sound, beside_images)
        digest = hashlib.sha256(b"".join(value.tobytes() for value in feeds.values())).digest()
        with self._encoding:
            known = self._kept.pop(digest, None)
            if known is None:
                with self.sound_encoder.encode(feeds) as features:
                    total = features.nbytes // (self._width * features.dtype.itemsize)
                    if features.shape[-1] != self._width or total < count:
                        raise InvalidModelError(
                            f"{self.sound_encoder.session.model.source} makes features {features.shape} of a sound; "
                            f"expected [1, {count}, {self._width}]"
                        )
                    known = self._stored(features.reshaped((total, self._width)).rows(0, count), 1, 0, 0, sound=True)
            self._keep(digest, known)
        return known

    def _keep(self, digest: bytes, image: Image) -> None:
        self._kept[digest] = image
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def _stored(self, features: DeviceTensor, tiles: int, rows: int, columns: int, sound: bool = False) -> Image:
        """Copy features [count, width] into the table."""
        count = features.shape[0]
        with self._lock:
            row = self._room(count)
            target = self.features.rows(row, count).reshaped((1, 1, count, self._width))
            self._moves.copy(features.reshaped((1, 1, count, self._width)), target)
            made = Image(self._next, row, count, tiles, rows, columns, sound)
            self._next += count
            self._all.append(weakref.ref(made))
        return made

    def _encoded(self, pixels: Pixels) -> Image:
        values = pixels.values
        if len(self._reads[_PIXELS][0].shape or ()) == 5:  # [images, tiles, 3, height, width]
            values = values[None]
        given = {
            _PIXELS: values,
            _MASK: np.ones((*values.shape[:-3], *values.shape[-2:]), np.bool_),
            _GRID: np.array([[1, pixels.rows, pixels.columns]], np.int64),
            _SIZES: np.array([[n * values.shape[-1] for n in (pixels.rows, pixels.columns)]], np.int64),
            _CROPS_MASK: np.array(pixels.mask)[None],
        }
        binding = self.session.io_binding()
        for role, (port, kind) in self._reads.items():
            binding.bind_cpu_input(port.name, given[role].astype(kind))
        binding.bind_output(self.session.get_outputs()[0].name)
        self.session.run_with_iobinding(binding)
        [features] = binding.results
        assert isinstance(features, DeviceTensor)
        with features:
            count = features.nbytes // (self._width * features.dtype.itemsize)
            tiles = 1 if self._processor.patch or self._processor.crops else len(pixels.values)
            rows, columns = (n // self._processor.merge for n in (pixels.rows, pixels.columns))
            right = count == rows * columns if self.in_grid else count and count % tiles == 0
            if features.shape[-1] != self._width or not right:
                raise InvalidModelError(
                    f"{self.folder.path} makes features {features.shape} of {tiles} images; expected [.., {self._width}]"
                )
            return self._stored(features.reshaped((count, self._width)), tiles, rows, columns)

    def _room(self, count: int) -> int:
        """The first of so many rows that no image has. Raises `InvalidInputError` where the table would be too large,
        `ArenaOutOfMemory`."""
        step = max(1, ALIGNMENT // (self._width * self.features.dtype.itemsize))
        while True:
            row = 0
            for image in sorted(self._alive(), key=lambda image: image.row):
                if row + count <= image.row:
                    break
                row = -(-(image.row + image.count) // step) * step
            if row + count <= self.features.shape[0]:
                return row
            if row + count <= _MOST_ROWS:
                self._grow(max(row + count, 2 * self.features.shape[0]))
            elif self._kept:
                self._kept.popitem(last=False)
            else:
                raise InvalidInputError(f"the images of all prompts have more than {_MOST_ROWS} features")

    def _grow(self, rows: int) -> None:
        old = self.features  # it is freed once no run of the decoder has it bound
        rows = -(-rows // _ROWS) * _ROWS
        table = self.session.empty_device_tensor((rows, self._width), self._dtype)
        try:
            self._moves.copy(old.reshaped((1, 1, *old.shape)), table.rows(0, old.shape[0]).reshaped((1, 1, *old.shape)))
        except BaseException:
            table.close()
            raise
        self._table = table

    @property
    def sessions(self) -> list[InferenceSession]:
        """The encoders' sessions."""
        return [self.session, *([self.sound_encoder.session] if self.sound_encoder is not None else [])]

    def close(self) -> None:
        """Close the sessions, and free the table."""
        self._moves.close()
        if self._table is not None:
            self._table.close()
        for session in self.sessions:
            session.close()
