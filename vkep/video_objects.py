"""Objects followed through a video by SAM 2 (arXiv:2408.00714), frame by frame, with its memories on the device.

    from vkep.video_objects import Prompt, VideoObjects

    with VideoObjects("sam2") as video:
        masks = video.frame(pixels, {"ball": Prompt([(310, 250)])})  # float32 [1, 3, 1024, 1024]
        for pixels in later:
            masks = video.frame(pixels)

``examples/export_sam2.py`` writes the folder from a model of transformers; `PARTS` says what is in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpu_shared.steady import closing
from gpu_shared.uncopied import Uncopied
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.session import InferenceSession, IOBinding
from vkep.text import shown

__all__ = ["PARTS", "Prompt", "VideoObjects"]

Array = np.ndarray[Any, Any]

#: the models of a folder by their names, with the names of their inputs and outputs
PARTS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    # of a frame: fine [1, c, 4h, 4w], medium [1, c, 2h, 2w], features [1, wide, h, w], and these as read without memories
    "image_encoder": (("pixel_values",), ("fine", "medium", "features", "alone")),
    # memories [rows, h·w, thin] and pointers [rows, wide] of earlier frames, of which it reads some rows, and how many frames ago
    # each is: 0 for the memories of frames with a prompt
    "memory_attention": (
        ("features", "memories", "memory_rows", "memory_ages", "pointers", "pointer_rows", "pointer_ages"),
        ("conditioned",),
    ),
    # points float32 [1, count, 2] and labels int64 [1, count]; masks [1, 1, 4h, 4w] and [1, 1, height, width], pointer [1, wide]
    "mask_decoder": (("features", "fine", "medium", "points", "labels"), ("mask", "large", "pointer", "score")),
    # the same for prompts of several points
    "mask_decoder_points": (("features", "fine", "medium", "points", "labels"), ("mask", "large", "pointer", "score")),
    # prompted: bool []; memory [1, h·w, thin]
    "memory_encoder": (("features", "large", "score", "prompted"), ("memory",)),
    # shown float32 [1, 1, height, width]: 1 where the object is, else 0; the results of the mask decoder
    "mask_reader": (("features", "shown"), ("mask", "large", "pointer", "score")),
}
#: those that a folder may lack
_OPTIONAL = ("mask_reader",)


@dataclass(frozen=True)
class Prompt:
    """Where an object is in a frame: points (x, y) in the pixels that the image encoder reads, of the object (label 1) or beside
    it (label 0); corners of a box have the labels 2 and 3. Or its whole mask."""

    points: Sequence[tuple[float, float]] = ()
    labels: Sequence[int] = ()  #: of the points; none: all 1
    mask: Array | None = None  #: [height, width] of these pixels: above 0 where the object is

    @classmethod
    def box(cls, left: float, top: float, right: float, bottom: float) -> Prompt:
        """The object in a box."""
        return cls([(left, top), (right, bottom)], [2, 3])

    def arrays(self, size: tuple[int, ...]) -> dict[str, Array]:
        """What the mask decoder reads, or the mask's reader; ``size``: of a frame. Raises `InvalidInputError`."""
        if self.mask is not None:
            mask = np.asarray(self.mask)
            if mask.shape != size or mask.dtype.kind not in "biuf" or len(self.points) or len(self.labels):
                raise InvalidInputError(
                    f"a prompt has a mask {mask.dtype} {mask.shape} and {len(self.points)} points; expected numbers {size} alone"
                )
            return {"shown": (mask > 0).astype(np.float32)[None, None]}
        points = np.asarray(self.points, np.float32)
        labels = np.asarray(self.labels if len(self.labels) else [1] * len(points), np.int64)
        if points.ndim != 2 or points.shape[1:] != (2,) or labels.shape != points.shape[:1] or not len(points):
            raise InvalidInputError(
                f"a prompt has points {points.shape} and labels {labels.shape}; expected [n, 2] and [n]"
            )
        if not np.isfinite(points).all() or not np.isin(labels, (0, 1, 2, 3)).all():
            raise InvalidInputError(
                f"a prompt has points or labels {shown(list(labels))}; expected numbers, and labels of 0 to 3"
            )
        return {"points": points[None], "labels": labels[None]}


#: what the mask decoder reads where there is no prompt
_NO_PROMPT = {"points": np.zeros((1, 1, 2), np.float32), "labels": np.full((1, 1), -1, np.int64)}


class VideoObjects(Uncopied):
    """The objects of one video, of any number of frames.

    Args:
        folder: with the models of `PARTS` as files ``NAME.onnx``.
        memories: frames that an object's mask is remembered of: those with a prompt, and the last ``memories - 1`` others.
        pointers: likewise of the pointers to objects.
        most_prompts: frames with a prompt that an object may have.
        both_ways: whether `turn` may be called: then the frames around each prompt are remembered, too.
        options: of `vkep.InferenceSession`.

    Memories, pointers, features and masks stay on the device. An object takes the same memory from its first frame on, however
    long the video is. For one thread; close it, or use ``with``.

    Raises ``FileNotFoundError``, `InvalidModelError` for models with other inputs or outputs, `InvalidInputError` for numbers
    below 2 (``most_prompts``: 1), and as `vkep.InferenceSession`.
    """

    _instead = "open the folder again, in each process"

    def __init__(
        self,
        folder: str | Path,
        *,
        memories: int = 7,
        pointers: int = 16,
        most_prompts: int = 8,
        both_ways: bool = False,
        **options: Any,
    ) -> None:
        if min(memories, pointers) < 2 or most_prompts < 1:
            raise InvalidInputError(
                f"memories is {memories}, pointers {pointers} and most_prompts {most_prompts}; expected 2, 2 and 1 or more"
            )
        self._recent, self._prompts, self._both_ways = (memories - 1, pointers - 1), most_prompts, both_ways
        self._opened = ExitStack()
        self.sessions: dict[str, InferenceSession] = {}  #: by the names of `PARTS`
        try:
            for name in PARTS:
                if name in _OPTIONAL and not (Path(folder) / f"{name}.onnx").exists():
                    continue
                self.sessions[name] = self._opened.enter_context(_part(Path(folder), name, options))
            self._bindings = {name: session.io_binding() for name, session in self.sessions.items()}
            attention = {i.name: i.shape or [] for i in self.sessions["memory_attention"].get_inputs()}
            self._rows = [_fixed(attention[name][1:]) for name in ("memories", "pointers")]
            self._size = _fixed((self.sessions["image_encoder"].get_inputs()[0].shape or [])[2:])
            if not all((*self._rows, self._size)):
                raise InvalidModelError(
                    f"{folder}: frames are {self._size}, rows of memories and of pointers {self._rows}; expected numbers"
                )
        except BaseException:
            self.close()
            raise
        self._objects: dict[Hashable, _Object] = {}
        self._frame, self._step, self._read = 0, 1, range(0)

    @property
    def size(self) -> tuple[int, ...]:
        """Height and width of a frame in pixels."""
        return self._size

    @property
    def names(self) -> list[Any]:
        """The objects that are followed."""
        return list(self._objects)

    def frame(
        self, pixels: Any, prompts: Mapping[Any, Prompt] | None = None, *, device: Literal["cpu", "gpu"] = "cpu"
    ) -> dict[Any, Any]:
        """The masks of all objects in the next frame, float32 [1, 1, height / 4, width / 4]: above 0 where the object is.

        ``pixels``: as the image encoder reads them, an array or a `DeviceTensor`. ``prompts``: of objects that begin here, or
        whose mask is to be as shown. ``device``: "gpu" gives device tensors, for which the host does not wait. After `turn`, an
        object has no mask in a frame that it has a prompt for: that of the first time holds.

        Raises `InvalidInputError` before anything runs: for a prompt of another form, for more of them than ``most_prompts``, for
        one in a frame that the object was followed in before, and where there is no object; and as `vkep.InferenceSession.run`.
        """
        shown_here = {name: prompt.arrays(self._size) for name, prompt in (prompts or {}).items()}
        if any("shown" in arrays for arrays in shown_here.values()) and "mask_reader" not in self.sessions:
            raise InvalidInputError(
                "the folder has no mask_reader.onnx, which masks as prompts need: export the model again"
            )
        if not self._objects and not shown_here:
            raise InvalidInputError("no object is followed: pass a prompt of one with the frame where it begins")
        for name in shown_here:
            if name in self._objects and self._objects[name].prompts >= self._prompts:
                raise InvalidInputError(
                    f"object {shown(name)} has {self._prompts} prompts, as many as most_prompts allows"
                )
            if self._is_again and name in self._objects and self._frame in self._objects[name].frames:
                raise InvalidInputError(
                    f"object {shown(name)} was followed in frame {self._frame} before: prompts come first"
                )
        image = self._run("image_encoder", {"pixel_values": pixels})
        masks, begun, written = {}, dict[Hashable, _Object](), list[tuple[_Object, bool, list[int]]]()
        try:
            for name in shown_here:
                if name not in self._objects:
                    begun[name] = self._object()
            for name, one in [*self._objects.items(), *begun.items()]:
                if self._is_again and self._frame in one.memories.prompted:
                    continue
                rows = [bank.free() for bank in (one.memories, one.pointers)]
                masks[name] = self._follow(one, image, shown_here.get(name), device, rows)
                written.append((one, name in shown_here, rows))
        except BaseException:
            for one in begun.values():
                one.close()
            raise
        finally:
            for tensor in image.values():
                tensor.close()
        for one, prompted, rows in written:  # a frame that failed is not remembered: another call reads it again
            for bank, row in zip((one.memories, one.pointers), rows, strict=True):
                bank.keep(self._frame, self._step, row, prompted)
            one.frames = _with(one.frames, self._frame)
        self._objects |= begun
        self._read = _with(self._read, self._frame)
        self._frame += self._step
        return masks

    @property
    def _is_again(self) -> bool:
        """Whether the next frame was read before."""
        return self._frame in self._read

    def turn(self, frame: int) -> None:
        """Go the other way: the next frame is ``frame``, of those that were read, counted from 0; then those before it if frames
        came in their order, and those after it otherwise. Objects remember what is around their prompts: those that were followed
        in ``frame`` have one there, or it is the last frame in this direction.

        Raises `InvalidInputError` without ``both_ways``, and for another frame.
        """
        if not self._both_ways:
            raise InvalidInputError("turn() needs VideoObjects(..., both_ways=True)")
        every = self._objects.values()
        prompted = {k for one in every for k in one.memories.prompted}
        may = {k for k in prompted if all(k in one.memories.prompted for one in every if k in one.frames)}
        may |= {*(self._read[-1:] if self._step > 0 else self._read[:1])}
        if frame not in may:
            raise InvalidInputError(
                f"frame is {frame}, expected one with a prompt of each object that is followed in it, or the last: {sorted(may)}"
            )
        self._frame, self._step = frame, -self._step

    def forget(self, name: Hashable) -> None:
        """Follow an object no longer, and free its memories. Raises ``KeyError`` for one that is not followed."""
        self._objects.pop(name).close()

    def reset(self) -> None:
        """Forget all objects: the next frame is the first of a video."""
        for name in self.names:
            self.forget(name)
        self._frame, self._step, self._read = 0, 1, range(0)

    def _object(self) -> _Object:
        session, banks = self.sessions["memory_attention"], list[_Bank]()
        try:
            for recent, sizes in zip(self._recent, self._rows, strict=True):
                around = 2 * recent * self._prompts if self._both_ways else 0
                tensor = session.empty_device_tensor((self._prompts + recent + 1 + around, *sizes))
                banks.append(_Bank(tensor, recent, self._both_ways))
                tensor.write(np.zeros(tensor.shape, np.float32))
        except BaseException:
            for bank in banks:
                bank.tensor.close()
            raise
        return _Object(banks[0], banks[1])

    def _follow(
        self,
        one: _Object,
        image: Mapping[str, DeviceTensor],
        prompt: Mapping[str, Array] | None,
        device: str,
        rows: Sequence[int],
    ) -> Any:
        """The mask of an object; its memory and its pointer are in the ``rows`` then."""
        features, decoder = image["alone"], "mask_decoder"
        read = {name: image[name] for name in ("fine", "medium")}
        if prompt is None:
            read_here = one.read(self._frame, self._step)
            features = self._run("memory_attention", {"features": image["features"], **read_here})["conditioned"]
        elif "shown" in prompt:
            features, decoder, read = image["features"], "mask_reader", {}
        elif prompt["points"].shape[1] > 1:
            decoder = "mask_decoder_points"
        memory, pointer = one.memories.tensor.rows(rows[0], 1), one.pointers.tensor.rows(rows[1], 1)
        made = self._run(decoder, {"features": features, **read, **(prompt or _NO_PROMPT)}, {"pointer": pointer})
        if prompt is None:
            features.close()
        large, score, mask = made["large"], made["score"], made["mask"]
        shape = {
            "features": image["features"],
            "large": large,
            "score": score,
            "prompted": np.array(prompt is not None),
        }
        self._run("memory_encoder", shape, {"memory": memory})
        for tensor in (large, score):
            tensor.close()
        if device == "gpu":
            return mask
        with mask:
            return mask.numpy()

    def _run(
        self, name: str, feeds: Mapping[str, Any], places: Mapping[str, DeviceTensor] | None = None
    ) -> dict[str, DeviceTensor]:
        """The results of a part on the device; those of ``places`` there."""
        binding: IOBinding = self._bindings[name]
        for key, value in feeds.items():
            bind = binding.bind_input if isinstance(value, DeviceTensor) else binding.bind_cpu_input
            bind(key, value)
        outputs = PARTS[name][1]
        for key in outputs:
            binding.bind_output(key, (places or {}).get(key))
        self.sessions[name].run_with_iobinding(binding)
        return dict(zip(outputs, binding.results, strict=True))  # type: ignore[arg-type]

    @closing
    def close(self) -> None:
        """Close the sessions, and free the memories; idempotent."""
        for one in getattr(self, "_objects", {}).values():
            one.close()
        self._opened.close()

    def __enter__(self) -> VideoObjects:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass
class _Bank:
    """Rows of a tensor by frames: those with a prompt stay, of others the last ``recent``, and so many before and after each
    prompt where the video is followed ``both_ways``. One more is written meanwhile."""

    tensor: DeviceTensor
    recent: int
    both_ways: bool
    prompted: dict[int, int] = field(default_factory=dict)  #: rows by frames
    others: dict[int, int] = field(default_factory=dict)

    def free(self) -> int:
        """A row that no frame has which is read later."""
        taken = {*self.prompted.values(), *self.others.values()}
        return next(row for row in range(self.tensor.shape[0]) if row not in taken)

    def keep(self, frame: int, step: int, row: int, prompted: bool) -> None:
        """Remember a frame, and forget those that no later frame reads. ``step``: 1, or backwards -1."""
        (self.prompted if prompted else self.others)[frame] = row
        self.others = {k: other for k, other in self.others.items() if self._stays(k, (frame - k) * step)}

    def _stays(self, frame: int, age: int) -> bool:
        """Whether a later frame reads one without a prompt, which was read so many frames ago."""
        near = self.both_ways and any(abs(frame - k) <= self.recent for k in self.prompted)
        return near or 0 <= age < self.recent

    def read(self, frame: int, step: int) -> dict[int, tuple[int, int]]:
        """By frames, the rows that a frame reads, and of how many frames ago each is; of those with a prompt also ones that are
        still to come."""
        ages = {k: (frame - k) * step for k in (*self.prompted, *self.others)}
        rows = {**self.prompted, **self.others}
        return {k: (rows[k], age) for k, age in ages.items() if k in self.prompted or 0 < age <= self.recent}


@dataclass
class _Object:
    """What is remembered of an object."""

    memories: _Bank
    pointers: _Bank
    frames: range = range(0)  #: that it was followed in

    @property
    def prompts(self) -> int:
        """Frames with a prompt."""
        return len(self.memories.prompted)

    def read(self, frame: int, step: int) -> dict[str, Any]:
        """What the attention of a frame reads: memories of all frames with a prompt, whose age counts as 0, and pointers of those
        that came before it."""
        memories, pointers = self.memories.read(frame, step), self.pointers.read(frame, step)
        pointers = {k: found for k, found in pointers.items() if found[1] >= 0}
        small: dict[str, list[int]] = {
            "memory_rows": [row for row, _ in memories.values()],
            "memory_ages": [0 if k in self.memories.prompted else age for k, (_, age) in memories.items()],
            "pointer_rows": [row for row, _ in pointers.values()],
            "pointer_ages": [age for _, age in pointers.values()],
        }
        large = {"memories": self.memories.tensor, "pointers": self.pointers.tensor}
        return {**large, **{name: np.array(value, np.int64) for name, value in small.items()}}

    def close(self) -> None:
        """Free the memories."""
        self.memories.tensor.close()
        self.pointers.tensor.close()


def _with(frames: range, frame: int) -> range:
    """Frames that follow each other, with one more."""
    return range(min(frame, frames.start), max(frame + 1, frames.stop)) if frames else range(frame, frame + 1)


def _fixed(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes that are numbers; none where one is open."""
    found = tuple(size for size in sizes if isinstance(size, int))
    return found if len(found) == len(sizes) else ()


def _part(folder: Path, name: str, options: Mapping[str, Any]) -> InferenceSession:
    session = InferenceSession(str(folder / f"{name}.onnx"), **options)
    found = [i.name for i in session.get_inputs()], [o.name for o in session.get_outputs()]
    if any({*names} != {*expected} for names, expected in zip(found, PARTS[name], strict=True)):
        session.close()
        raise InvalidModelError(
            f"{folder / name}.onnx has inputs {found[0]} and outputs {found[1]}; expected {PARTS[name]}"
        )
    return session
