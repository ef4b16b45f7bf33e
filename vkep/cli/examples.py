"""Examples of each command, which its help prints at the end. `tests/cli/test_conventions.py` parses them."""

from __future__ import annotations

from collections.abc import Mapping

import typer

#: examples by the words of a command
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "devices": ("vkep devices", "vkep devices --json"),
    "doctor": ("vkep doctor", "vkep doctor > report.txt"),
    "model": (
        "vkep model",
        "vkep model cnn -o model.onnx",
        "vkep model decoder --architecture qwen3 --precision int4 --size layers=4",
    ),
    "run": (
        "vkep run model.onnx --dim batch=4 --check-cpu",
        "vkep run model.onnx -i image=photo.npy -o outputs/ --device nvidia",
        "vkep run hf:OWNER/NAME --dim batch_size=1",
        "vkep run model.onnx --import my_operators --prefer vgf_first --set plan_cache_size=64",
    ),
    "bench": (
        "vkep bench model.onnx --dim batch=8 -n 200 --vs cpu",
        "vkep bench model.onnx --dim batch=1 --concurrency 4",
        "vkep bench language/ -p 512 -g 64",
    ),
    "generate": (
        'vkep generate language/ -p "Once upon a time" --temperature 0.8 --seed 1',
        'vkep generate language/ --chat --system "Be brief." -p "Name three rivers."',
    ),
    "transcribe": ("vkep transcribe whisper/ SOUND.wav", "vkep transcribe whisper/ SOUND.wav -l de --task translate"),
    "chat": ('vkep chat language/ --system "Be brief." --temperature 0.7',),
    "serve": (
        "vkep serve language/ model.onnx --port 8000",
        "vkep serve chat=language/ --host 0.0.0.0 --max-sequences 32 --log json",
    ),
    "compare": (
        "vkep compare model.onnx --dim batch=1",
        "vkep compare model.onnx model-float16.onnx --tolerance 0.01",
        "vkep compare model.onnx results.npz",
    ),
    "explain": (
        "vkep explain model.onnx --dim batch=1 --nodes",
        "vkep explain model.onnx --dim batch=1 --time --top 10",
    ),
    "view": (
        "vkep view model.onnx --dim batch=1 -o run.html",
        "vkep view after.html --against before.html -o both.html",
        'vkep view language/ --prompt "Once upon"',
    ),
    "tune": ("vkep tune model.onnx --dim batch=32", "vkep tune model.onnx --dim batch=32 --dry-run"),
    "cache list": ("vkep cache list",),
    "cache clear": ("vkep cache clear", "vkep cache clear plans spirv"),
    "ort enable": ("vkep ort enable", "VKEP_ORT=1 python program.py"),
    "ort disable": ("vkep ort disable",),
    "ort status": ("vkep ort status",),
    "shaders compile": (
        "vkep shaders compile saxpy.comp -D T=float --out saxpy.spv",
        "vkep shaders compile -k softmax",
    ),
    "shaders list": ("vkep shaders list",),
    "shaders check": ("vkep shaders check -k softmax",),
    "shaders reflect": ("vkep shaders reflect saxpy.comp -D T=float",),
    "vgf convert": ("vkep vgf convert model.onnx -o model.vgf",),
    "vgf dump": ("vkep vgf dump model.vgf --spirv spirv/",),
    "vgf run": ("vkep vgf run model.vgf -i x.npy -o out/",),
}
#: commands by what they are for, in the order of the help
PANELS: Mapping[str, tuple[str, ...]] = {
    "Start": ("devices", "doctor", "model"),
    "Run models": ("run", "generate", "transcribe", "chat", "serve", "bench"),
    "Understand a run": ("compare", "explain", "view", "tune"),
    "Files and integration": ("cache", "ort", "shaders", "vgf"),
}


def add_examples(app: typer.Typer, words: str = "") -> None:
    """Add its examples to each command's help, and its panel to each command of the top level."""
    panels = {name: panel for panel, names in PANELS.items() for name in names}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        name = str(group.typer_instance.info.name)
        group.rich_help_panel = panels.get(name)
        add_examples(group.typer_instance, f"{name} ")
    for command in app.registered_commands:
        examples = EXAMPLES.get(f"{words}{command.name}", ())
        command.epilog = "\n\n".join(["Examples:", *(f"  {line}" for line in examples)]) if examples else None
        if not words:
            command.rich_help_panel = panels.get(str(command.name))
