"""`vkep.video_objects`: objects through whole videos, against ONNX Runtime's CPU provider and against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.growth import growth
from tools.ort_video import CpuVideo
from tools.pipelines import crossing
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.models.video_objects import EDGE, write_video_objects
from vkep.video_objects import PARTS, Prompt, VideoObjects

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]
#: by frames, prompts of objects: a point, a box, several points of an object that is followed, an object that begins later
PROMPTS: dict[int, dict[Any, Prompt]] = {
    0: {"a": Prompt([(30, 20)])},
    3: {"b": Prompt.box(10, 10, 40, 44)},
    9: {"a": Prompt([(30, 28), (5, 5)], [1, 0])},
    22: {"b": Prompt([(12, 50)]), "c": Prompt([(50, 12)])},
}


def frames(count: int, edge: int = EDGE) -> list[Array]:
    """float32 [1, 3, edge, edge]: a square over waves."""
    y, x = np.mgrid[:edge, :edge]
    found = []
    for k in range(count):
        frame = np.stack([np.sin(x / 7 + k / 3 + c) + np.cos(y / 5 - k / 4 + c) for c in range(3)])[None]
        at = k % (edge - 20)
        frame[:, :, at : at + 20, 20:40] += 2
        found.append(frame.astype(np.float32))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("objects")
    write_video_objects(path)
    return path


def followed(video: Any, count: int = 30, prompts: Any = PROMPTS) -> list[dict[Any, Array]]:
    return [video.frame(frame, prompts.get(k)) for k, frame in enumerate(frames(count))]


def square(left: int, top: int) -> Array:
    """A mask bool [edge, edge]."""
    y, x = np.mgrid[:EDGE, :EDGE]
    return (abs(x - left - 8) < 8) & (abs(y - top - 10) < 10)


#: by frames; from frame 9, of whose objects each has a prompt there, the video is read backwards
SHOWN: dict[int, dict[Any, Prompt]] = {
    0: {"a": Prompt(mask=square(20, 10))},
    9: {"a": Prompt([(30, 28), (5, 5)], [1, 0]), "b": Prompt(mask=square(4, 30).astype(np.uint8))},
    22: {"c": Prompt(mask=np.zeros((EDGE, EDGE)))},
}


def both_ways(video: Any, again: bool = False) -> list[dict[Any, Array]]:
    """The masks forwards, then from frame 9 backwards, and ``again`` forwards from the first frame."""
    found, shots = followed(video, 30, SHOWN), frames(30)
    video.turn(9)
    found += [video.frame(shots[k]) for k in range(9, -1, -1)]
    if again:
        video.turn(0)
        found += [video.frame(shots[k]) for k in range(30)]
    return found


def apart(ours: list[dict[Any, Array]], theirs: list[dict[Any, Array]]) -> float:
    """The largest difference of masks, as a part of the largest value."""
    assert [list(masks) for masks in ours] == [list(masks) for masks in theirs]
    pairs = [(masks[name], others[name]) for masks, others in zip(ours, theirs, strict=True) for name in masks]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def test_masks_are_those_of_onnx_runtime(folder: Path) -> None:
    expected = followed(CpuVideo(folder))
    with VideoObjects(folder, fallback="error") as video:
        made = followed(video)
        assert apart(made, expected) < 1e-5
        assert all(masks[name].shape == (1, 1, EDGE // 4, EDGE // 4) for masks in made for name in masks)
        plans = {name: session._parts.graph.plan_count for name, session in video.sessions.items()}
        assert max(plans.values()) <= 3, plans  # for one to ten memories, and one to eighteen pointers
        assert not [n for s in video.sessions.values() for n in s.report().nodes if n.where == "cpu"]
    changes: tuple[dict[str, Any], ...] = ({"memories": 4}, {"pointers": 5})
    for changed in changes:  # what is remembered changes the masks
        assert apart(followed(CpuVideo(folder, **changed)), expected) > 1e-4
        with VideoObjects(folder, **changed) as video:
            assert apart(followed(video), followed(CpuVideo(folder, **changed))) < 1e-5


def test_only_frames_and_masks_cross(folder: Path) -> None:
    with VideoObjects(folder, fallback="error") as video:
        for k, frame in enumerate(frames(20)):
            video.frame(frame, PROMPTS.get(k) if k == 0 else None)
        with crossing() as crossed:
            video.frame(frames(1)[0])
        small = crossed[0] - frames(1)[0].nbytes
        assert 0 <= small < 1024  # the numbers of rows; the mask is read by its tensor
        masks = video.frame(frames(1)[0], device="gpu")
        assert masks["a"].numpy().shape == (1, 1, EDGE // 4, EDGE // 4)


def test_memory_does_not_grow(folder: Path) -> None:
    with VideoObjects(folder, fallback="error") as video:
        followed(video)
        before = video.sessions["image_encoder"].memory().arena.bytes_in_use
        frame = frames(1)[0]
        for _ in range(60):
            video.frame(frame)
        assert video.sessions["image_encoder"].memory().arena.bytes_in_use == before
        assert growth(lambda: [video.frame(frame) for _ in range(10)], rounds=5) < 0.5
        video.forget("b")
        video.forget("c")
        assert video.names == ["a"] and video.sessions["image_encoder"].memory().arena.bytes_in_use < before


def test_a_video_begins_again(folder: Path) -> None:
    with VideoObjects(folder) as video:
        first = followed(video, 12)
        video.reset()
        assert video.names == []
        assert apart(followed(video, 12), first) == 0
        given = video.sessions["image_encoder"].device_tensor(frames(1)[0])
        video.reset()
        assert apart([video.frame(given, PROMPTS[0])], first[:1]) == 0


@pytest.mark.parametrize("part", PARTS)
def test_a_frame_that_failed_is_read_again(folder: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first run of a part fails, or the second one, of the next object: nothing of the frame is remembered."""
    own, runs, failures = VideoObjects._run, list[str](), 0

    def failing(self: VideoObjects, name: str, *rest: Any) -> Any:
        runs.append(name)
        if runs.count(part) > (number % 4 == 0) and name == part:
            raise ConnectionError(part)
        return own(self, name, *rest)

    shown = {**PROMPTS, 5: {"d": Prompt(mask=square(9, 9))}, 7: {"e": Prompt(mask=square(30, 9))}}
    with VideoObjects(folder, memories=4, pointers=5) as video:
        expected = followed(video, 14, shown)
        video.reset()
        made = []
        for number, frame in enumerate(frames(14)):
            names, prompts = video.names, shown.get(number)
            runs.clear()
            with monkeypatch.context() as patch:
                patch.setattr(VideoObjects, "_run", failing)
                try:
                    made.append(video.frame(frame, prompts))
                    continue
                except ConnectionError:
                    failures += 1
            assert video.names == names
            made.append(video.frame(frame, prompts))
        assert failures >= 2 and apart(made, expected) == 0


def test_masks_as_prompts_and_the_other_way(folder: Path, tmp_path: Path) -> None:
    expected = both_ways(CpuVideo(folder), again=True)
    with VideoObjects(folder, fallback="error", both_ways=True, most_prompts=2) as video:
        made = both_ways(video, again=True)
        assert apart(made, expected) < 1e-5
        assert [list(masks) for masks in made[30:32]] == [["c"], ["a", "b", "c"]] and list(made[39]) == ["b", "c"]
        before = video.sessions["image_encoder"].memory().arena.bytes_in_use
        with pytest.raises(
            InvalidInputError, match=r"frame is 5, expected one with a prompt of each object .*: \[29\]"
        ):
            video.turn(5)
        video.forget("c")
        with pytest.raises(InvalidInputError, match=r": \[9, 29\]"):
            video.turn(0)
        video.turn(9)
        with pytest.raises(InvalidInputError, match="object 'b' was followed in frame 9 before"):
            video.frame(frames(1)[0], {"b": Prompt([(1, 2)])})
        assert list(video.frame(frames(1)[0])) == []
        assert video.sessions["image_encoder"].memory().arena.bytes_in_use < before
    # what was before the turn is read: without it masks differ
    other = CpuVideo(folder)
    followed(other, 10, SHOWN)
    other.turn(9)
    shots = frames(30)
    other.frame(shots[9])
    without = {name: mask for name, mask in expected[31].items() if name != "c"}
    assert apart([other.frame(shots[8])], [without]) > 1e-4
    with VideoObjects(folder) as video:
        with pytest.raises(InvalidInputError, match="both_ways=True"):
            video.turn(0)
        for wrong in (
            Prompt(mask=np.zeros((4, 4))),
            Prompt([(1, 2)], mask=square(1, 1)),
            Prompt(mask=np.full((EDGE, EDGE), "a")),
        ):
            with pytest.raises(InvalidInputError, match="a prompt has a mask"):
                video.frame(frames(1)[0], {"a": wrong})
    for name in PARTS:
        if name != "mask_reader":
            (tmp_path / f"{name}.onnx").write_bytes((folder / f"{name}.onnx").read_bytes())
    with VideoObjects(tmp_path) as video, pytest.raises(InvalidInputError, match=r"no mask_reader\.onnx"):
        video.frame(frames(1)[0], SHOWN[0])


def test_what_is_wrong_is_refused(folder: Path, tmp_path: Path) -> None:
    frame = frames(1)[0]
    with VideoObjects(folder, most_prompts=2) as video:
        with pytest.raises(InvalidInputError, match="no object is followed"):
            video.frame(frame)
        for wrong in (Prompt([]), Prompt([(1, 2)], [1, 1]), Prompt([(1, 2, 3)]), Prompt([(1, 2)], [7])):  # type: ignore[list-item]
            with pytest.raises(InvalidInputError, match="a prompt has points"):
                video.frame(frame, {"a": wrong})
        with pytest.raises(InvalidInputError, match="a prompt has points"):
            video.frame(frame, {"a": Prompt([(float("nan"), 2)])})
        assert video.names == []
        for _ in range(2):
            video.frame(frame, PROMPTS[0])
        with pytest.raises(InvalidInputError, match="object 'a' has 2 prompts"):
            video.frame(frame, PROMPTS[0])
        with pytest.raises(InvalidInputError):
            video.frame(frame[:, :, :5])
        video.frame(frame)
        with pytest.raises(KeyError):
            video.forget("b")
        assert video.size == (EDGE, EDGE)
    few: tuple[dict[str, Any], ...] = ({"memories": 1}, {"pointers": 1}, {"most_prompts": 0})
    for numbers in few:
        with pytest.raises(InvalidInputError, match="expected 2, 2 and 1 or more"):
            VideoObjects(folder, **numbers)
    with pytest.raises(FileNotFoundError):
        VideoObjects(tmp_path)
    for name in PARTS:
        (tmp_path / f"{name}.onnx").write_bytes((folder / "mask_decoder.onnx").read_bytes())
    with pytest.raises(InvalidModelError, match=r"image_encoder.onnx has inputs .* expected"):
        VideoObjects(tmp_path)


@pytest.mark.parametrize(
    ("present", "changed"),
    [
        (1.0, {}),
        (0.0, {"enable_temporal_pos_encoding_for_object_pointers": True, "enable_occlusion_spatial_embedding": True}),
        (-1.0, {"enable_occlusion_spatial_embedding": True}),
    ],
)
def test_masks_are_those_of_transformers(present: float, changed: dict[str, Any], tmp_path: Path) -> None:
    """SAM 2 with random weights, exported by the example; with and without the object in frames."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers.models.sam2_video")
    from examples.export_sam2 import export
    from tools.sam2_video import masks_of, small_model

    model = small_model(present, **changed)
    export(model, tmp_path)
    order = {"a": 1, "b": 2, "c": 3}
    asked = {
        k: {order[n]: (p.points, list(p.labels) or [1] * len(p.points)) for n, p in given.items()}
        for k, given in PROMPTS.items()
    }
    found = masks_of(model, frames(30), asked)
    expected = [dict(zip(order, (mask[None] for mask in masks), strict=False)) for masks in found]
    with VideoObjects(tmp_path, fallback="error") as video:
        made = followed(video)
        assert apart(made, expected) < 2e-5
        plans = {name: session._parts.graph.plan_count for name, session in video.sessions.items()}
        assert max(plans.values()) <= 3, plans
        video.reset()
        shown = {
            k: {
                order[n]: p.mask if p.mask is not None else (p.points, list(p.labels) or [1] * len(p.points))
                for n, p in given.items()
            }
            for k, given in SHOWN.items()
        }
        found = masks_of(model, frames(30), shown, back_from=9)
        whole = [dict(zip(order, (mask[None] for mask in masks), strict=False)) for masks in found]
    with VideoObjects(tmp_path, fallback="error", both_ways=True) as video:
        made = both_ways(video)
        assert [set(masks) - set(other) for masks, other in zip(whole[30:], made[30:], strict=True)] == [
            {"a", "b"},
            *[set()] * 8,
            {"a"},
        ]  # transformers gives the masks of the first time, too
        kept = [{n: masks[n] for n in other} for masks, other in zip(whole, made, strict=True)]
        assert apart(made, kept) < 2e-5
    absent = {bool((mask == -1024).all()) for masks in expected for mask in masks.values()}
    assert absent == {present < 0}
    if present == 1:
        with VideoObjects(tmp_path, memories=3) as video:
            assert apart(followed(video), expected) > 1e-3
