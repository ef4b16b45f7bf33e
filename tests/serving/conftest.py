"""One `vkep serve` of the tests: a language model, an encoder and two models, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.session.models import model
from vkep.models.language import write_language
from vkep.models.starters import STARTERS

ROOT = Path(__file__).resolve().parents[2]
#: a template that tells the model of its tools, in the form of Hermes
TOOLS = (
    "{% if tools %}<system>Answer with <tool_call>{'name': ..., 'arguments': ...}</tool_call>: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% for c in m['tool_calls'] %}"
    "<tool_call>{{ c['function'] | tojson }}</tool_call>{% endfor %}\n{% endfor %}<assistant>"
)


def write_models(folder: Path) -> None:
    """The models that `running` serves."""
    write_language(folder / "llama")
    write_language(folder / "caller", context=1024)
    config = json.loads((folder / "caller" / "tokenizer_config.json").read_text())
    (folder / "caller" / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TOOLS}))
    STARTERS["sentences"].write(folder / "encoder")
    STARTERS["images"].write(folder / "images")
    square = model("g (float[n,s] x) => (float[n,s] y) { y = Mul(x, x) }")
    pick = model("g (float[n,3] x, int64[n,1] i) => (float[n,1] y) { y = GatherElements <axis = 1> (x, i) }")
    for name, proto in (("square", square), ("pick", pick)):
        (folder / f"{name}.onnx").write_bytes(proto.SerializeToString())


@dataclass(frozen=True)
class Running:
    """A server: its address, and its process, whose log goes to a file."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def get(self, path: str) -> Any:
        """The body of an answer, read as JSON where it is."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as answer:
            text = answer.read().decode()
            return json.loads(text) if "json" in answer.headers.get("content-type", "") else text


@contextlib.contextmanager
def serving(folder: Path, models: Sequence[str], *options: str) -> Iterator[Running]:
    """`vkep serve` with some options, in ``folder``; ended after the block where it runs still."""
    log = folder / f"log{len(list(folder.glob('log*')))}.txt"
    command = [sys.executable, "-m", "vkep", "serve", *models, "--port", "0", "--json", *options]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "registry"), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
        )
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or lines[-1] != "}\n":
                line = process.stdout.readline()
                assert line, f"the server ended: {log.read_text()}"
                lines.append(line)
            yield Running(json.loads("".join(lines))["url"], process, log)
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                assert process.stdout is not None
                process.stdout.close()


@pytest.fixture(scope="session")
def running(vulkan: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of `write_models`."""
    for package in ("fastapi", "uvicorn", "prometheus_client", "tokenizers", "llguidance"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("served")
    write_models(folder)
    models = ("llama", "caller", "encoder", "images", "square.onnx", "pick.onnx")
    with serving(folder, models, "--max-sequences", "4", "--log", "json") as found:
        yield found
