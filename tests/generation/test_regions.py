"""Florence-2's tasks: prompts, and regions of answers as transformers' processor reads them."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkep.errors import InvalidInputError
from vkep.generation import Generator
from vkep.generation.regions import TASKS, Region, regions_of, task_of, task_prompt
from vkep.models.language import write_language
from vkep.models.vision_language import LOCATIONS, write_florence

SIZE = (640, 427)


def test_prompts_are_words() -> None:
    assert task_prompt("<OD>") == "Locate the objects with category name in the image."
    assert task_prompt("<OPEN_VOCABULARY_DETECTION> a green car") == "Locate a green car in the image."
    assert task_prompt("What is {this}?") == "What is {this}?"
    assert task_prompt("<REGION_TO_OCR>a {0} b") == "What text is in the region a {0} b?"


@pytest.mark.parametrize("prompt", ["<OD>cars", "<CAPTION> of it", "<REGION_TO_OCR>", "<OPEN_VOCABULARY_DETECTION>  "])
def test_prompts_of_another_form_are_refused(prompt: str) -> None:
    with pytest.raises(InvalidInputError, match=r"expected of the task <\w+> (nothing|words)"):
        task_prompt(prompt)


def test_a_region_is_asked_about() -> None:
    assert task_of("<REGION_TO_CATEGORY>", "", (0, 0, 640, 427), SIZE) == (
        "<REGION_TO_CATEGORY><loc_0><loc_0><loc_999><loc_999>"
    )
    assert task_of("<REGION_TO_OCR>", "", (64, 42.7, 320, 213.5), SIZE) == (
        "<REGION_TO_OCR><loc_100><loc_100><loc_500><loc_500>"
    )


@pytest.mark.parametrize(
    ("task", "text", "box"),
    [
        ("<SEE>", "", ()),
        ("<REGION_TO_OCR>", "", (0, 0, 9)),
        ("<REGION_TO_OCR>", "", (0, 0, 700, 9)),
        ("<REGION_TO_OCR>", "", (9, 0, 8, 9)),
        ("<REGION_TO_OCR>", "a", (0, 0, 8, 9)),
        ("<OD>", "a", ()),
        ("<OD>", "", (0, 0, 8, 9)),
        ("<REGION_TO_OCR>", "", (0, 0, float("nan"), 9)),
    ],
)
def test_wrong_tasks_are_refused(task: str, text: str, box: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"task|box"):
        task_of(task, text, box, SIZE)


def test_regions_by_hand() -> None:
    answer = "</s><s>green car<loc_100><loc_200><loc_300><loc_400>door<loc_0><loc_0><loc_999><loc_999></s>"
    assert regions_of("<OD>", answer, (1000, 2000)) == (
        Region("green car", box=(100, 401, 300, 801)),
        Region("door", box=(0, 1, 999, 1999)),
    )
    assert regions_of("<CAPTION_TO_PHRASE_GROUNDING>", answer, (1000, 1000), ["door"]) == (
        Region("green car", box=(100, 200, 300, 400)),
    )
    assert regions_of("<CAPTION>", answer, SIZE) == ()
    corners = "Café<loc_1><loc_2><loc_3><loc_4><loc_5><loc_6><loc_7><loc_8>"
    assert regions_of("<OCR_WITH_REGION>", corners, (1000, 1000)) == (
        Region("Café", polygons=((1, 2, 3, 4, 5, 6, 7, 8),)),
    )
    groups = "cat<poly><loc_1><loc_2><loc_3><loc_4><sep><loc_5><loc_6><loc_7></poly><poly><loc_8><loc_9></poly>"
    assert regions_of("<OPEN_VOCABULARY_DETECTION>", groups, (1000, 1000)) == (
        Region("cat", polygons=((1, 2, 3, 4), (5, 6))),
        Region("cat", polygons=((8, 9),)),
    )
    with pytest.raises(InvalidInputError, match="the task is '<SEE>'"):
        regions_of("<SEE>", "", SIZE)


# ---- against transformers


def _theirs(name: str, answer: str, size: tuple[int, int]) -> list[Region]:
    """The regions that transformers' processor reads."""
    florence = pytest.importorskip("transformers.models.florence2.processing_florence2")
    banned = {"phrase_grounding": {"banned_grounding_tokens": ["it", "the image"]}}
    kinds = ("ocr", "pure_text", "description_with_bboxes", "polygons", "bboxes", "description_with_bboxes_or_polygons")

    class Tokenizer:
        all_special_tokens = ["<s>", "</s>", "<pad>"]

    processor = florence.Florence2Processor.__new__(florence.Florence2Processor)
    processor.post_processor = florence.Florence2PostProcessor({**{kind: {} for kind in kinds}, **banned}, Tokenizer())
    processor.tasks_answer_post_processing_type = KINDS
    found = processor.post_process_generation(text=answer, task=name, image_size=size)[name]
    if isinstance(found, str):
        return []
    labels = found.get("labels", found.get("bboxes_labels", []))
    boxes = [Region(label, box=tuple(box)) for label, box in zip(labels, found.get("bboxes", []), strict=False)]
    corners = [
        Region(label, polygons=(tuple(q),)) for label, q in zip(labels, found.get("quad_boxes", []), strict=False)
    ]
    named = found.get("polygons_labels", labels)
    parts = [tuple(tuple(p) for p in polygons if p) for polygons in found.get("polygons", [])]
    polygons = [Region(label, polygons=p) for label, p in zip(named, parts, strict=True) if p] if parts else []
    return boxes + corners + polygons


#: the kind of answer by task, as transformers has it
KINDS = {
    "<OCR>": "pure_text",
    "<OCR_WITH_REGION>": "ocr",
    "<OD>": "description_with_bboxes",
    "<DENSE_REGION_CAPTION>": "description_with_bboxes",
    "<CAPTION_TO_PHRASE_GROUNDING>": "phrase_grounding",
    "<REFERRING_EXPRESSION_SEGMENTATION>": "polygons",
    "<REGION_TO_SEGMENTATION>": "polygons",
    "<OPEN_VOCABULARY_DETECTION>": "description_with_bboxes_or_polygons",
    "<REGION_PROPOSAL>": "bboxes",
}


def _drawn(draw: random.Random) -> str:
    """An answer of labels, locations and marks."""
    parts = []
    for _ in range(draw.randint(0, 12)):
        kind = draw.random()
        if kind < 0.3:
            parts.append("".join(draw.choice("abc de.,'") for _ in range(draw.randint(1, 6))))
        elif kind < 0.4:
            parts.append(draw.choice([" it", "the image", "</s>", "<s>", "<pad>"]))
        elif kind < 0.9:
            parts += [f"<loc_{draw.randint(0, 999)}>" for _ in range(draw.choice([1, 2, 4, 5, 7, 8, 8, 9, 12]))]
        else:
            parts.append(draw.choice(["<sep>", "<poly>", "</poly>"]))
    return "".join(parts)


def test_regions_are_those_of_transformers() -> None:
    pytest.importorskip("torch")
    draw, found = random.Random(0), 0
    for _ in range(4000):
        size, answer = (draw.randint(1, 2000), draw.randint(1, 2000)), _drawn(draw)
        name = draw.choice(list(KINDS))
        expected = _theirs(name, answer, size)
        made = list(regions_of(name, answer, size, ["it", "the image"]))
        if KINDS[name] == "polygons":  # its labels may be marks
            expected = [Region("", polygons=region.polygons) for region in expected]
        if (
            KINDS[name] != "ocr"
        ):  # transformers takes parts of marks around a label for parts of it, also where there is no label
            expected = [
                replace(region, label=re.sub("^[a-z_0-9/]+>|</?(sep|poly)>", ">", region.label)) for region in expected
            ]
            expected = [
                replace(region, label=region.label.strip(">").strip()) for region in expected if region.label != ">"
            ]
        if KINDS[name] == "phrase_grounding":
            expected = [region for region in expected if region.label not in ("it", "the image")]
        if KINDS[name] not in ("bboxes", "polygons"):
            made, expected = ([region for region in regions if region.label] for regions in (made, expected))
        assert made == expected, (name, answer, size)
        found += len(made)
    assert found > 4000


def test_prompts_are_those_of_transformers() -> None:
    florence = pytest.importorskip("transformers.models.florence2.processing_florence2")
    pytest.importorskip("torch")
    named = {"image_token": "<image>", "image_token_id": 0, "all_special_tokens": []}
    tokenizer = type("Tokenizer", (), named)()
    processor = florence.Florence2Processor.__new__(florence.Florence2Processor)
    checked = florence.Florence2Processor.check_argument_for_proper_class
    try:
        florence.Florence2Processor.check_argument_for_proper_class = lambda *given: None
        processor.__init__(type("Images", (), {"image_seq_length": 1})(), tokenizer)
    finally:
        florence.Florence2Processor.check_argument_for_proper_class = checked
    assert {*processor.tasks_answer_post_processing_type} == {*TASKS}
    assert {
        k: v for k, v in processor.tasks_answer_post_processing_type.items() if v != "pure_text"
    }.items() <= KINDS.items()
    for name in TASKS:
        prompt = name + (" a green car" if name in processor.task_prompts_with_input else "")
        assert [task_prompt(prompt)] == processor._construct_prompts(prompt)


# ---- in a folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("florence")
    write_florence(path)
    banned = {"phrase_grounding": {"banned_grounding_tokens": ["it"]}}
    (path / "processor_config.json").write_text(json.dumps({"post_processor_config": banned}))
    return path


@pytest.mark.gpu
def test_a_task_about_an_image(folder: Path) -> None:
    pytest.importorskip("PIL")
    image = np.full((40, 60, 3), 90, np.uint8)
    with Generator(folder, fallback="error") as generator:
        words = generator.generate("Locate the region proposals in the image.", images=[image], max_tokens=12)
        assert generator.generate("<REGION_PROPOSAL>", images=[image], max_tokens=12).tokens == words.tokens
        made = generator.vision_task("<REGION_PROPOSAL>", image, max_tokens=12)
        shown = {token: text for text, token in LOCATIONS.items()}
        text = "".join(shown.get(t, chr(t)) for t in words.tokens)
        assert made.tokens == tuple(words.tokens) and made.regions == regions_of("<REGION_PROPOSAL>", text, (60, 40))
        asked = generator.vision_task("<REGION_TO_CATEGORY>", image, box=(0, 0, 30, 20), max_tokens=4)
        region = "What is the region <loc_0><loc_0><loc_500><loc_500>?"
        assert asked.tokens == tuple(generator.generate(region, images=[image], max_tokens=4).tokens)
        # what an answer with locations becomes
        tokens = [*b"it", *range(261, 265), *b"car", *range(270, 274)]
        phrases = generator.read_task("<CAPTION_TO_PHRASE_GROUNDING>", tokens, (1000, 1000))
        assert phrases.regions == (Region("car", box=(160, 176, 192, 208)),)
        assert phrases.text == "it<loc_16><loc_32><loc_48><loc_64>car<loc_160><loc_176><loc_192><loc_208>"
        with pytest.raises(InvalidInputError, match="expected of the task <OD> nothing"):
            generator.generate("<OD> cars", images=[image])


@pytest.mark.gpu
def test_other_models_have_no_tasks(tmp_path: Path) -> None:
    write_language(tmp_path, layers=1)
    with Generator(tmp_path) as generator:
        assert generator.tokens("<OD>x") == generator.text.encode("<OD>x")
        with pytest.raises(InvalidInputError, match="'llama' has no tasks"):
            generator.vision_task("<OD>", np.zeros((4, 4, 3), np.uint8))
