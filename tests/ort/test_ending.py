"""Programs that end with sessions, values and threads of ONNX Runtime's still there: no word on stderr, and their own status."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vkep.models.language import write_language

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys, threading, time
import numpy as np
import onnxruntime
import vkep.ort
from onnx import parser

vkep.ort.register()
vkep.ort.ending._PATIENCE = 300  # on a busy machine a run may take longer than a program's end waits
MODEL = parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[64,64] x) => (float[64,64] y) { a = MatMul(x,x) y = Relu(a) }'
).SerializeToString()
X = np.ones((64, 64), np.float32)

def opened(options=None):
    made = onnxruntime.InferenceSession(MODEL, options, providers=["VulkanExecutionProvider"], enable_fallback=0)
    made.run(None, {"x": X})
    return made

session, value, mode = opened(), vkep.ort.to_device(X), sys.argv[1]
if mode == "bound":
    binding = vkep.ort.bind(session, {"x": value})
    session.run_with_iobinding(binding)
if mode == "profile":
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    profiled = opened(options)
if mode == "cycle":
    session.itself = session
if mode in ("logging", "codecs", "atexit"):  # what holds the program's names beyond its modules
    import atexit, codecs, logging
    class Holder(logging.Handler):
        def emit(self, record):
            session
        def find(self, name):
            value
    holder = Holder()
    if mode == "logging":
        logging.getLogger("vkep").addHandler(holder)
    elif mode == "codecs":
        codecs.register(holder.find)
    else:
        atexit.register(lambda: session.run(None, {"x": X}))
if mode == "daemons":
    plain = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    def forever(one):
        while True:
            one.run(None, {"x": X})
    def bound_forever():
        binding = vkep.ort.bind(session, {"x": value})
        while True:
            session.run_with_iobinding(binding)
    for work in (lambda: forever(session), lambda: forever(session), bound_forever, lambda: forever(plain)):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.5)
print("end")
if mode == "status":
    sys.exit(3)
"""
GENAI = """
import sys, threading, time
import onnxruntime_genai as og
import vkep.ort

og.register_execution_provider_library("vkep", vkep.ort.get_library_path())

def generator(provider):
    config = og.Config(".")
    config.clear_providers()
    if provider:
        config.append_provider(provider)
    model = og.Model(config)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=24, batch_size=1)
    made = og.Generator(model, params)
    made.append_tokens([[1, 5, 7, 9]])
    return made

def tokens(made):
    while not made.is_done():
        made.generate_next_token()
    return [int(t) for t in made.get_sequence(0)]

vulkan, cpu = generator("VulkanExecutionProvider"), generator("")
expected, got = tokens(cpu), tokens(vulkan)
assert len(got) > 8 and got == expected, (got, expected)
print("end")
"""


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    "mode", ["open", "bound", "profile", "cycle", "status", "daemons", "logging", "codecs", "atexit"]
)
def test_a_program_ends_with_everything_open(registered: Any, tmp_path: Path, mode: str) -> None:
    for _ in range(3 if mode == "daemons" else 1):
        result = run(tmp_path, PROGRAM, mode)
        assert (result.returncode, result.stdout, result.stderr) == (3 if mode == "status" else 0, "end\n", "")
    if mode == "profile":
        (profile,) = tmp_path.glob("onnxruntime_profile_*.json")
        assert "gpu_ns" in profile.read_text(), "the profile is written when the session goes, with what the GPU did"


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_genai") is None, reason="needs onnxruntime-genai")
def test_onnxruntime_genai(registered: Any, tmp_path: Path) -> None:
    write_language(tmp_path)
    result = run(tmp_path, GENAI)
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")
