"""Florence-2's tasks: prompts by their names, and the regions of an image that answers name (arXiv:2311.06242, section 3.1).

An answer has the locations of a region as tokens ``<loc_0>`` to ``<loc_999>``, thousandths of the image's width and height. The
names of tasks, their prompts and the forms of answers are those of `Florence2Processor` of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from vkep.errors import InvalidInputError, InvalidModelError
from vkep.generation.folder import Record
from vkep.text import shown

#: x and y of corners in pixels, one after the other
Points: TypeAlias = tuple[int, ...]
#: width and height of an image in pixels
Size: TypeAlias = tuple[int, int]

#: steps of a location in each direction
_BINS = 1000
_LOCATION = re.compile(r"<loc_([0-9]{1,4})>")
_LOCATIONS = r"(?:<loc_[0-9]{1,4}>)"
_LABEL = "(?:^|(?<=>))([^<]*)"  # not a part of a mark
#: a label, and the locations after it: of boxes, of corners, of polygons
_BOXES = re.compile(rf"{_LABEL}({_LOCATIONS}{{4,}})")
_CORNERS = re.compile(rf"(.+?)({_LOCATIONS}{{8,8}})")
_POLYGONS = re.compile(rf"{_LABEL}((?:{_LOCATIONS}|<sep>|<poly>|</poly>){{4,}})")
_GROUP = re.compile(r"<poly>(.*?)</poly>")
_POLYGON = re.compile(rf"({_LOCATIONS}+)(?:<sep>|$)")
_ENDS = re.compile("<s>|</s>|<pad>")


@dataclass(frozen=True)
class Region:
    """A part of an image, in pixels from its upper left corner, x before y.

    Either ``box`` (left, top, right, bottom), or ``polygons``, each the corners x, y, x, y ... one after the other: one polygon
    of four corners around a text. ``label`` is "" where the task gives none.
    """

    label: str
    box: Points = ()
    polygons: tuple[Points, ...] = ()


@dataclass(frozen=True)
class TaskAnswer:
    """The answer to a task: its text, in which regions are ``<loc_...>``, and these regions."""

    text: str
    regions: tuple[Region, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class _Task:
    prompt: str  #: {} stands for what is asked about
    form: str = "text"


_TASKS = {
    "<CAPTION>": _Task("What does the image describe?"),
    "<DETAILED_CAPTION>": _Task("Describe in detail what is shown in the image."),
    "<MORE_DETAILED_CAPTION>": _Task("Describe with a paragraph what is shown in the image."),
    "<OCR>": _Task("What is the text in the image?"),
    "<OCR_WITH_REGION>": _Task("What is the text in the image, with regions?", "corners"),
    "<OD>": _Task("Locate the objects with category name in the image.", "boxes"),
    "<DENSE_REGION_CAPTION>": _Task("Locate the objects in the image, with their descriptions.", "boxes"),
    "<REGION_PROPOSAL>": _Task("Locate the region proposals in the image.", "bare boxes"),
    "<CAPTION_TO_PHRASE_GROUNDING>": _Task("Locate the phrases in the caption: {}", "phrases"),
    "<OPEN_VOCABULARY_DETECTION>": _Task("Locate {} in the image.", "boxes or polygons"),
    "<REFERRING_EXPRESSION_SEGMENTATION>": _Task("Locate {} in the image with mask", "bare polygons"),
    "<REGION_TO_SEGMENTATION>": _Task("What is the polygon mask of region {}", "bare polygons"),
    "<REGION_TO_CATEGORY>": _Task("What is the region {}?"),
    "<REGION_TO_DESCRIPTION>": _Task("What does the region {} describe?"),
    "<REGION_TO_OCR>": _Task("What text is in the region {}?"),
}
#: the names of tasks
TASKS = tuple(_TASKS)
#: files that may have what a processor reads of answers
_SETTINGS = ("processor_config.json", "preprocessor_config.json")


def task_prompt(prompt: str) -> str:
    """What the model reads of a prompt: of ``<OD>``, or ``<OPEN_VOCABULARY_DETECTION>a green car``, the words for it; another
    prompt itself. Raises `InvalidInputError` where a task has words and takes none, or has none and needs some."""
    name = next((name for name in TASKS if name in prompt), "")
    if not name:
        return prompt
    task, words = _TASKS[name], prompt.replace(name, "").strip()
    if ("{}" in task.prompt) != bool(words):
        expected = "words, or a region, after it" if "{}" in task.prompt else "nothing else in the prompt"
        raise InvalidInputError(f"the prompt is {shown(prompt)}; expected of the task {name} {expected}")
    return task.prompt.replace("{}", words)


def task_of(name: str, text: str, box: Sequence[float], size: Size) -> str:
    """The prompt of a task about words, or about a ``box`` (left, top, right, bottom) in pixels of an image. Raises
    `InvalidInputError` as `task_prompt`, and for an unknown task and a box outside the image."""
    if name not in _TASKS:
        raise InvalidInputError(f"the task is {shown(name)}; known are {', '.join(TASKS)}")
    if len(box) not in (0, 4) or (text and len(box)):
        raise InvalidInputError(
            f"box is {shown(box)}, and text {shown(text)}; expected one of them, a box of 4 numbers"
        )
    if len(box):
        left, top, right, bottom = box
        if not (0 <= left <= right <= size[0] and 0 <= top <= bottom <= size[1]):
            raise InvalidInputError(
                f"box is {shown(box)}; expected left, top, right and bottom in an image of {size} pixels"
            )
        text = "".join(f"<loc_{_bin(value, size[k % 2])}>" for k, value in enumerate(box))
    prompt = f"{name}{text}"
    task_prompt(prompt)
    return prompt


def regions_of(name: str, answer: str, size: Size, unnamed: Sequence[str] = ()) -> tuple[Region, ...]:
    """The regions in a task's answer, whose text has its special tokens, in an image of ``size``; none of a task of texts.
    ``unnamed``: phrases that are none in `<CAPTION_TO_PHRASE_GROUNDING>`. Raises `InvalidInputError` for an unknown task."""
    if name not in _TASKS:
        raise InvalidInputError(f"the task is {shown(name)}; known are {', '.join(TASKS)}")
    form, text = _TASKS[name].form, _ENDS.sub("", answer)
    if form == "text":
        return ()
    if form == "corners":
        return tuple(Region(m[1].strip(), polygons=(_points(m[2], size),)) for m in _CORNERS.finditer(text))
    bare = form.startswith("bare ")
    if form.endswith("polygons") and ("<poly>" in text or bare):
        return tuple(_polygons(text, size, bare))
    found = _boxes(text, size, bare)
    return tuple(region for region in found if form != "phrases" or region.label not in unnamed)


def unnamed_phrases(folder: Path) -> tuple[str, ...]:
    """The phrases of a folder's processor that name no region. Raises `InvalidModelError`."""
    for name in _SETTINGS:
        settings = Record.read(folder, name, needed=False).record("post_processor_config", needed=False)
        found = settings.record("phrase_grounding", needed=False)
        phrases = found.values.get("banned_grounding_tokens")
        if phrases is not None and not (isinstance(phrases, list) and all(isinstance(p, str) for p in phrases)):
            raise InvalidModelError(f"{found.where}: banned_grounding_tokens is {shown(phrases)}, expected texts")
        if phrases:
            return tuple(phrases)
    return ()


def _boxes(text: str, size: Size, bare: bool) -> Iterator[Region]:
    """Boxes after their labels; of ``bare`` ones the labels do not count."""
    for found in _BOXES.finditer(text):
        label, points = found[1].strip(), _points(found[2], size)
        if bare or found[1]:
            for k in range(0, len(points) - 3, 4):
                yield Region("" if bare else label, box=points[k : k + 4])


def _polygons(text: str, size: Size, bare: bool) -> Iterator[Region]:
    """Polygons after their labels, apart by ``<sep>``; those of one region are in ``<poly>``."""
    for found in _POLYGONS.finditer(text):
        if not bare and not found[1]:
            continue
        groups = _GROUP.findall(found[2]) if "<poly>" in found[2] and "</poly>" in found[2] else [found[2]]
        for group in groups:
            points = (_points(polygon[1], size) for polygon in _POLYGON.finditer(group))
            polygons = tuple(corners for corners in points if corners)
            if polygons:
                yield Region("" if bare else found[1].strip(), polygons=polygons)


def _points(locations: str, size: Size) -> Points:
    """Pixels of locations, x before y; a last x alone is left out."""
    bins = [int(found) for found in _LOCATION.findall(locations)]
    pairs = bins[: len(bins) // 2 * 2]
    # the middle of a step, in float32 as transformers computes it
    return tuple(int((np.float32(n) + np.float32(0.5)) * np.float32(size[k % 2] / _BINS)) for k, n in enumerate(pairs))


def _bin(value: float, length: int) -> int:
    return min(int(value / (length / _BINS)), _BINS - 1)
