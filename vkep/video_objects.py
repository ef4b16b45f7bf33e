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
}


@dataclass(frozen=True)
class Prompt:
    """Where an object is in a frame: points (x, y) in the pixels that the image encoder reads, of the object (label 1) or beside
    it (label 0); corners of a box have the labels 2 and 3."""

    points: Sequence[tuple[float, float]]
    labels: Sequence[int] = ()  #: of the points; none: all 1

    @classmethod
    def box(cls, left: float, top: float, right: float, bottom: float) -> Prompt:
        """The object in a box."""
        return cls([(left, top), (right, bottom)], [2, 3])

    def arrays(self) -> dict[str, Array]:
        """What the mask decoder reads. Raises `InvalidInputError`."""
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
        options: of `vkep.InferenceSession`.

    Memories, pointers, features and masks stay on the device. An object takes the same memory from its first frame on, however
    long the video is. For one thread; close it, or use ``with``.

    Raises ``FileNotFoundError``, `InvalidModelError` for models with other inputs or outputs, `InvalidInputError` for numbers
    below 2 (``most_prompts``: 1), and as `vkep.InferenceSession`.
    """

    _instead = "open the folder again, in each process"

    def __init__(
        self, folder: str | Path, *, memories: int = 7, pointers: int = 16, most_prompts: int = 8, **options: Any
    ) -> None:
        if min(memories, pointers) < 2 or most_prompts < 1:
            raise InvalidInputError(
                f"memories is {memories}, pointers {pointers} and most_prompts {most_prompts}; expected 2, 2 and 1 or more"
            )
        self._recent, self._prompts = (memories - 1, pointers - 1), most_prompts
        self._opened = ExitStack()
        self.sessions: dict[str, InferenceSession] = {}  #: by the names of `PARTS`
        try:
            for name in PARTS:
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
        self._frame = 0

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
        whose mask is to be as shown. ``device``: "gpu" gives device tensors, for which the host does not wait.

        Raises `InvalidInputError` before anything runs: for a prompt of another form, for more of them than ``most_prompts``, and
        where there is no object; and as `vkep.InferenceSession.run`.
        """
        shown_here = {name: prompt.arrays() for name, prompt in (prompts or {}).items()}
        if not self._objects and not shown_here:
            raise InvalidInputError("no object is followed: pass a prompt of one with the frame where it begins")
        for name in shown_here:
            if name in self._objects and self._objects[name].prompts >= self._prompts:
                raise InvalidInputError(
                    f"object {shown(name)} has {self._prompts} prompts, as many as most_prompts allows"
                )
        image = self._run("image_encoder", {"pixel_values": pixels})
        masks, begun, written = {}, dict[Hashable, _Object](), list[tuple[_Object, bool, list[int]]]()
        try:
            for name in shown_here:
                if name not in self._objects:
                    begun[name] = self._object()
            for name, one in [*self._objects.items(), *begun.items()]:
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
                bank.keep(self._frame, row, prompted)
        self._objects |= begun
        self._frame += 1
        return masks

    def forget(self, name: Hashable) -> None:
        """Follow an object no longer, and free its memories. Raises ``KeyError`` for one that is not followed."""
        self._objects.pop(name).close()

    def reset(self) -> None:
        """Forget all objects: the next frame is the first of a video."""
        for name in self.names:
            self.forget(name)
        self._frame = 0

    def _object(self) -> _Object:
        session, banks = self.sessions["memory_attention"], list[_Bank]()
        try:
            for recent, sizes in zip(self._recent, self._rows, strict=True):
                tensor = session.empty_device_tensor((self._prompts + recent + 1, *sizes))
                banks.append(_Bank(tensor, recent))
                tensor.write(np.zeros(tensor.shape, np.float32))
        except BaseException:
            for bank in banks:
                bank.tensor.close()
            raise
        return _Object(*banks)

    def _follow(
        self,
        one: _Object,
        image: Mapping[str, DeviceTensor],
        prompt: Mapping[str, Array] | None,
        device: str,
        rows: Sequence[int],
    ) -> Any:
        """The mask of an object; its memory and its pointer are in the ``rows`` then."""
        features = image["alone"]
        if prompt is None:
            features = self._run("memory_attention", {"features": image["features"], **one.read(self._frame)})[
                "conditioned"
            ]
        decoder = "mask_decoder_points" if prompt is not None and prompt["points"].shape[1] > 1 else "mask_decoder"
        read = {name: image[name] for name in ("fine", "medium")}
        memory, pointer = one.memories.tensor.rows(rows[0], 1), one.pointers.tensor.rows(rows[1], 1)
        made = self._run(decoder, {"features": features, **read, **(prompt or _NO_PROMPT)}, {"pointer": pointer})
        if features is not image["alone"]:
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
    """Rows of a tensor by frames: those with a prompt stay, of others the last ``recent``. One more is written meanwhile."""

    tensor: DeviceTensor
    recent: int
    prompted: dict[int, int] = field(default_factory=dict)  #: rows by frames
    others: dict[int, int] = field(default_factory=dict)

    def free(self) -> int:
        """A row that no frame has which is read later."""
        taken = {*self.prompted.values(), *self.others.values()}
        return next(row for row in range(self.tensor.shape[0]) if row not in taken)

    def keep(self, frame: int, row: int, prompted: bool) -> None:
        """Remember a frame, and forget the one that no later frame reads."""
        self.others = {k: other for k, other in self.others.items() if k > frame - self.recent}
        (self.prompted if prompted else self.others)[frame] = row

    def read(self, frame: int) -> tuple[list[int], list[int], list[int]]:
        """The rows that a frame reads, of how many frames ago each is, and this but 0 for frames with a prompt."""
        known = {**self.prompted, **self.others}
        ages = [frame - k for k in known]
        return list(known.values()), ages, [0 if k in self.prompted else frame - k for k in known]


@dataclass
class _Object:
    """What is remembered of an object."""

    memories: _Bank
    pointers: _Bank

    @property
    def prompts(self) -> int:
        """Frames with a prompt."""
        return len(self.memories.prompted)

    def read(self, frame: int) -> dict[str, Any]:
        """What the attention of a frame reads."""
        rows, _, ages = self.memories.read(frame)
        found, since, _ = self.pointers.read(frame)
        small = {"memory_rows": rows, "memory_ages": ages, "pointer_rows": found, "pointer_ages": since}
        large = {"memories": self.memories.tensor, "pointers": self.pointers.tensor}
        return {**large, **{name: np.array(value, np.int64) for name, value in small.items()}}

    def close(self) -> None:
        """Free the memories."""
        self.memories.tensor.close()
        self.pointers.tensor.close()


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
