"""Every example, and the code on documentation pages, runs as its text says; the pages name what there is."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from tools.models.catalog import write_model
from vkep.models.starters import STARTERS

ROOT = Path(__file__).resolve().parents[1]
#: example: the model it takes (of tools/models; None: it brings its own), and what it must print
EXAMPLES = {
    "run_model.py": ("op_softmax_512x128", ["output y: float32 [4, 128, 128], mean 0.0078125", "nodes: 1 vulkan"]),
    "shared_context.py": (
        "op_matmul_256",
        ["one context: True", "the context owns the device: False", "'device': 1", "the device is open still: True"],
    ),
    "io_binding.py": (None, ["largest difference from numpy"]),
    "dynamic_shapes.py": (None, ["not planned yet", "batch 32: (32, 10)", "refused: input 'x': got shape (8, 63)"]),
    "onnxruntime_ep.py": (None, ["VulkanExecutionProvider"]),
    "mixed_delegates.py": (None, ["vgf", "vulkan"]),
    "kompute_region.py": (
        None,
        ["nodes: 2 vulkan, 1 kompute", "through the host 1048576 bytes in", "in ONNX operators: "],
    ),
    "run_pte.py": (
        None,
        ["delegate 1: VulkanBackend", "in numpy: aten::reciprocal.out", "output 0: float32 [1, 3, 4, 4]"],
    ),
    "replicas.py": (None, ["20 batches, sums 4.0 to 4.0"]),
    "ray_batch.py": (None, ["1000 rows, 1000 of them right"]),
    "ray_service.py": (None, ["version 2: [9.0, 16.0]", "version 1: [6.0, 8.0]"]),
    "chat.py": (None, ["characters)"]),
    "chat_image.py": (None, ["characters)"]),
    "generate_image.py": (None, ["step 20 of 20, ", "image.png: 64 by 64 pixels"]),
    "transcribe.py": (None, [" to ", " s: "]),
    "voice_activity.py": (None, ["sound 1: 62 chunks of 32 ms, speech in "]),
    "speak.py": (None, ["0.wav: ", " symbols in ", "2.wav: "]),
    "semantic_search.py": (None, [" Rice is cooked in", " Bread is baked"]),
    "detect.py": (None, ["frame 9: ", "  class "]),
    "video.py": (None, ["frame 29: ", "30 frames: "]),
    "follow_objects.py": (None, ["frame 0: ", "frame 29: ", " of 256 pixels"]),
    "own_shader.py": (None, ["uvec2 x at 0, uvec2 y at 8, uint n at 16, float a at 20", "right"]),
}
#: need torch: run by tests/executorch/export/test_example.py and tests/session/test_video_objects.py
EXPORTING = {"export_unified_vgf_vulkan_e2e.py", "export_sam2.py"}
#: packages that an example needs and that are no part of the test extra
NEEDS = {
    "kompute_region.py": "kp",
    "ray_batch.py": "ray",
    "ray_service.py": "ray",
    "chat.py": "jinja2",
    "chat_image.py": "PIL",
    "follow_objects.py": "PIL",
    "generate_image.py": "diffusers",
    "transcribe.py": "tokenizers",
    "semantic_search.py": "tokenizers",
}
#: examples that take a model of `vkep model`, which their text names, and further arguments
STARTED: dict[str, tuple[str, list[str]]] = {
    "chat.py": ("decoder", ["Name three rivers."]),
    "chat_image.py": ("images", []),
    "generate_image.py": ("diffusion", []),
    "transcribe.py": ("whisper", []),
    "voice_activity.py": ("vad", []),
    "speak.py": ("voice", []),
    "semantic_search.py": ("sentences", []),
    "detect.py": ("detector", []),
    "video.py": ("detector", []),
    "follow_objects.py": ("objects", []),
}


#: what an example is given besides its model
ARGUMENTS = {
    "run_pte.py": [str(ROOT / "tests" / "executorch" / "data" / "given" / f) for f in ("vk.pte", "input0.npy")]
}


def test_every_example_is_run() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES) | EXPORTING


@pytest.mark.gpu
@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: str, tmp_path: Path) -> None:
    if example in NEEDS and importlib.util.find_spec(NEEDS[example]) is None:
        pytest.skip(f"needs {NEEDS[example]}")
    model, expected = EXAMPLES[example]
    arguments = [str(write_model(model, tmp_path))] if model else ARGUMENTS.get(example, [])
    if example in STARTED:
        name, more = STARTED[example]
        assert f"\n    vkep model {name} " in (ROOT / "examples" / example).read_text(encoding="utf-8")
        STARTERS[name].write(tmp_path / STARTERS[name].path)
        arguments = [STARTERS[name].path, *more]
    path = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example), *arguments],
        env={**os.environ, "PYTHONPATH": path, "PORT": str(free_port())},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    if NEEDS.get(example) not in ("ray", "diffusers"):  # which log there
        assert result.stderr == ""  # the validation layers, where they are on, log there
    for text in expected:
        assert text in result.stdout


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("example", [name for name, (model, _) in EXAMPLES.items() if model or name in STARTED])
def test_an_example_without_its_model_says_how_to_call_it(example: str) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 1
    assert re.search(rf"python examples/{example} (MODEL\.onnx|FOLDER)", result.stderr)


#: pages whose Python blocks are run, each block by itself
PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            *(
                "index",
                "quickstart",
                "python-api",
                "contexts",
                "generation",
                "pipelines",
                "streaming",
                "scaling",
                "view",
                "executorch",
            ),
            *("guides/troubleshooting", "guides/migrating"),
        )
    ),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "tutorials").glob("*.md")),
]
#: packages that a page needs
PAGE_NEEDS = {"docs/generation.md": ("tokenizers", "jinja2")}
DYNAMIC = (
    '<ir_version: 8, opset_import: ["" : 17]> any_batch (float[batch, 64] x) => (float[batch, 64] y) { y = Tanh(x) }'
)
#: runs the blocks of one page, each with names of its own, and its lines of the shell that call vkep
RUNNER = """
import json, shlex, sys
from vkep.cli import app
for number, (kind, block) in enumerate(json.load(sys.stdin), 1):
    try:
        if kind == "sh":
            for line in block.splitlines():
                if line.startswith("vkep "):
                    status = app(shlex.split(line, comments=True)[1:], standalone_mode=False)
                    assert not status, (line, status)
            continue
        exec(compile(block, f"block {number}", "exec"), {"__name__": "__main__"})
    except BaseException as error:
        error.add_note(block) if hasattr(error, "add_note") else print(block, file=sys.stderr)
        raise
"""


def blocks_of(page: str) -> list[tuple[str, str]]:
    """The kind (python or sh) and the lines of each block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(python|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.gpu
@pytest.mark.parametrize("page", PAGES)
def test_each_block_of_a_page_runs_by_itself(page: str, tmp_path: Path) -> None:
    """In a folder with model.onnx, dynamic.onnx and program.pte, and what the page's earlier blocks wrote."""
    missing = [name for name in PAGE_NEEDS.get(page, ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    blocks = blocks_of(page)
    assert blocks
    write_model("op_softmax_512x128", tmp_path).rename(tmp_path / "model.onnx")
    onnx.save(onnx.parser.parse_model(DYNAMIC), tmp_path / "dynamic.onnx")
    shutil.copy(ROOT / "tests" / "executorch" / "data" / "given" / "vk.pte", tmp_path / "program.pte")
    path = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
    result = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(blocks),
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_the_links_of_a_page_are_not_broken(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    broken = [link for link in links if not ((ROOT / page).parent / link.partition("#")[0]).exists()]
    assert not broken


def test_the_options_of_the_page_are_those_of_the_session() -> None:
    from vkep.session import SessionOptions

    page = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    table = page[page.index("| option |") : page.index("`InferenceSession(model, context=c)`")]
    named = set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if "|" in line)))
    assert named == {field.name for field in dataclasses.fields(SessionOptions)}


def test_every_command_and_its_options_are_on_their_page() -> None:
    from typer.core import TyperGroup
    from typer.main import get_command

    from vkep.cli import app

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    assert [name for name in group.commands if f"\n## vkep {name}" not in page] == []
    options = [
        [*parameter.opts, *parameter.secondary_opts]
        for command in group.commands.values()
        for parameter in command.params
        if parameter.opts[0].startswith("-")
    ]
    assert [names for names in options if not any(re.search(rf"`{name}[` ,]", page) for name in names)] == []


@pytest.mark.parametrize("package", ["vkep", "gpu_shared"])
def test_every_public_name_is_in_the_reference(package: str) -> None:
    """mkdocstrings shows an object that a page names, and all public ones of a module that it names."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)", pages, re.MULTILINE))
    module = importlib.import_module(package)
    public = {name: getattr(module, name) for name in module.__all__}
    objects = {name: value for name, value in public.items() if hasattr(value, "__name__")}  # not values such as lists
    missing = [
        name
        for name, value in objects.items()
        if value.__module__ not in shown and f"{value.__module__}.{value.__name__}" not in shown
    ]
    assert len(objects) > 20 and missing == []
