"""Programs for another provider's memory under ``python -m vkep.ort --as NAME``: each form of IO binding of ONNX Runtime's
documentation, with that provider's name of the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import vkep.ort
from vkep.ort import python_sessions
from vkep.ort.memory import values

ROOT = Path(__file__).resolve().parents[2]
MODEL = (
    '<ir_version: 8, opset_import: ["" : 17]> g (float[n,3] x) => (float[n,3] y) <float k = {2.0}> { y = Mul(x, k) }'
)
PROGRAM = """
import itertools, json, sys
import numpy as np
import onnxruntime as ort

provider, device = sys.argv[1:]
x = np.arange(12, dtype=np.float32).reshape(4, 3)
session = ort.InferenceSession("model.onnx", providers=[(provider, {"device_id": 0}), "CPUExecutionProvider"])


def value(array=x):
    return ort.OrtValue.ortvalue_from_numpy(array, device, 0)


def empty(kind=np.float32):
    return ort.OrtValue.ortvalue_from_shape_and_type([4, 3], kind, device, 0)


def cpu_input(binding):
    binding.bind_cpu_input("x", x)


def value_input(binding):
    kept = value()
    binding.bind_ortvalue_input("x", kept)
    return kept


def pointer_input(binding):
    kept = value()
    binding.bind_input("x", kept.device_name(), 0, np.float32, kept.shape(), kept.data_ptr())
    return kept


def named_pointer_input(binding):
    kept = value()
    binding.bind_input(
        name="x", device_type=device, device_id=0, element_type=1, shape=kept.shape(), buffer_ptr=kept.data_ptr())
    return kept


def named_output(binding):
    binding.bind_output("y", device)


def cpu_output(binding):
    binding.bind_output("y")


def value_output(binding, kind=np.float32):
    kept = empty(kind)
    binding.bind_ortvalue_output("y", kept)
    return kept


def typed_output(binding):
    return value_output(binding, 1)


def pointer_output(binding):
    kept = empty()
    binding.bind_output("y", kept.device_name(), 0, np.float32, kept.shape(), kept.data_ptr())
    return kept


found = {}
inputs = (cpu_input, value_input, pointer_input, named_pointer_input)
outputs = (named_output, cpu_output, value_output, typed_output, pointer_output)
for read, write in itertools.product(inputs, outputs):
    binding = session.io_binding()
    kept = read(binding)
    result = write(binding)
    session.run_with_iobinding(binding)
    results = [binding.copy_outputs_to_cpu()[0], binding.get_outputs()[0].numpy()] + ([result.numpy()] if result else [])
    found[f"{read.__name__}, {write.__name__}"] = all(np.array_equal(y, 2 * x) for y in results)
found["run_with_ort_values"] = np.array_equal(session.run_with_ort_values(None, {"x": value()})[0].numpy(), 2 * x)
changed = value(np.zeros_like(x))
changed.update_inplace(x)
found["update_inplace"] = np.array_equal(changed.numpy(), x)
copied = empty()
ort.copy_tensors([value()], [copied])
found["copy_tensors"] = np.array_equal(copied.numpy(), x)
found["OrtDevice"] = ort.OrtDevice.make(device, 0).device_id() == ort.OrtDevice.make("gpu", 0).device_id() == 0
found["the host"] = ort.OrtValue.ortvalue_from_numpy(x).device_name() == "cpu"
try:
    ort.OrtValue.ortvalue_from_numpy(x, device, 77)
except Exception as error:
    found["another device"] = "no usable device matches" in str(error)
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("provider", "device"),
    [
        ("CUDAExecutionProvider", "cuda"),
        ("CUDAExecutionProvider", "gpu"),
        ("TensorrtExecutionProvider", "cuda"),
        ("DmlExecutionProvider", "dml"),
        ("OpenVINOExecutionProvider", "gpu"),
        ("CANNExecutionProvider", "npu"),
    ],
)
def test_each_form_of_binding(tmp_path: Path, vulkan: object, provider: str, device: str) -> None:
    onnx.save(parser.parse_model(MODEL), tmp_path / "model.onnx")
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
    command = [sys.executable, "-m", "vkep.ort", "--as", provider, "program.py", provider, device]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 26 and [title for title, right in found.items() if not right] == []


def test_names_are_those_of_the_replaced_providers() -> None:
    assert values.replaced_names([], ()) == values.replaced_names(["CPUExecutionProvider"], ()) == set()
    assert values.replaced_names(["CUDAExecutionProvider", "CPUExecutionProvider"], ()) == {"cuda", "gpu"}
    assert values.replaced_names(["DmlExecutionProvider"], ["CUDAExecutionProvider"]) == {"dml", "gpu"}
    assert values.replaced_names(["QNNExecutionProvider"], ()) == {"cuda", "gpu", "npu"}
    assert values.replaced_names(["SomeNewExecutionProvider"], ()) == {"cuda", "gpu"}


def test_own_memory_keeps_its_number(vulkan: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """`to_device` names a device by number and vendor: that is not another provider's device."""
    vkep.ort.register()
    monkeypatch.setattr(python_sessions, "replaced", {"CUDAExecutionProvider"})
    seen = []
    made = values.device_maker(onnxruntime, lambda *device: seen.append(device), lambda: {"gpu", "cuda"})
    (memory, *_) = values._memories(onnxruntime).values()
    made("gpu", *memory)
    made("cuda", 0)
    made("gpu", 0, int(onnxruntime.OrtDeviceVendorId.MICROSOFT))
    made("cpu", 0)
    assert seen == [("gpu", *memory)] * 3 + [("cpu", 0, -1)]
    np.testing.assert_array_equal(vkep.ort.to_device(np.ones(3)).numpy(), np.ones(3))
