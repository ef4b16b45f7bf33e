"""Programs for ONNX Runtime with ``import vkep as ort``: each prints what it prints with onnxruntime, or what is given."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

import vkep

pytestmark = pytest.mark.gpu

MODEL = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "tests", model_version: 3, doc_string: "scales and shifts",
 metadata_props: ["author": "somebody"]>
shift (float[batch, 3] x) => (float[batch, 3] y, float[batch, 3] z) <float[1] two = {2.0}> { y = Mul(x, two) z = Add(y, two) }
"""
WEIGHTED = """
<ir_version: 8, opset_import: ["" : 17]>
weighted (float[2, 3] x, float[3] w) => (float[2, 3] y) <float[3] w = {1.0, 2.0, 3.0}> { y = Mul(x, w) }
"""
#: programs that print the same with both libraries
SAME = {
    "a session and a run": """
session = ort.InferenceSession("model.onnx", providers=ort.get_available_providers())
name = session.get_inputs()[0].name
for result in session.run(None, {name: x}):
    print(result.tolist())
""",
    "inputs and outputs": """
session = ort.InferenceSession("model.onnx")
for value in session.get_inputs() + session.get_outputs():
    print(value.name, value.shape, value.type)
print([o.name for o in session.get_outputs()], session.run(["z"], {"x": x})[0].dtype)
""",
    "session options": """
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.intra_op_num_threads = 2
options.log_severity_level = 3
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
options.add_free_dimension_override_by_name("batch", 2)
session = ort.InferenceSession("model.onnx", sess_options=options)
print(session.get_inputs()[0].shape, session.get_session_options().intra_op_num_threads)
print(options.get_session_config_entry("session.intra_op.allow_spinning"), session.run(["y"], {"x": x})[0].tolist())
""",
    "metadata": """
session = ort.InferenceSession("model.onnx")
meta = session.get_modelmeta()
print(meta.producer_name, meta.graph_name, meta.description, meta.version, meta.custom_metadata_map, meta.domain)
""",
    "run options": """
session = ort.InferenceSession("model.onnx")
options = ort.RunOptions()
options.logid = "first"
options.log_severity_level = 2
options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
print(session.run(["y"], {"x": x}, run_options=options)[0].tolist())
options.terminate = True
try:
    session.run(["y"], {"x": x}, options)
except Exception as error:
    print("terminate" in str(error))
options.terminate = False
print(session.run([], {"x": x}, options)[1].tolist())
""",
    "a run in another thread": """
import threading
session, done, data = ort.InferenceSession("model.onnx"), threading.Event(), {}
def callback(results, user_data, error):
    user_data["y"], user_data["error"] = results[0].tolist() if results else None, bool(error)
    done.set()
session.run_async(["y"], {"x": x}, callback, data)
print(done.wait(120), data)
""",
    "values": """
session = ort.InferenceSession("model.onnx")
value = ort.OrtValue.ortvalue_from_numpy(x)
print(value.shape(), value.data_type(), value.device_name(), value.is_tensor(), value.has_value(), value.element_type())
y, z = session.run_with_ort_values(["y", "z"], {"x": value})
print(y.numpy().tolist(), z.shape(), z.data_type(), z.tensor_size_in_bytes())
value.update_inplace(-x)
print(session.run_with_ort_values(["y"], {"x": value})[0].numpy().tolist())
""",
    "arguments by name": """
session = ort.InferenceSession(
    path_or_bytes="model.onnx", sess_options=ort.SessionOptions(), providers=ort.get_available_providers(), provider_options=None,
    enable_fallback=0, disabled_optimizers=["ConstantFolding"],
)
print(session.run(output_names=["y"], input_feed={"x": x}, run_options=None)[0].tolist())
value = ort.OrtValue.ortvalue_from_numpy(x, device_type="cpu", device_id=0)
print(session.run_with_ort_values(output_names=["y"], input_dict_ort_values={"x": value})[0].numpy().tolist())
binding = session.io_binding()
binding.bind_cpu_input(name="x", arr_on_cpu=x)
binding.bind_output(name="z", device_type="cpu")
session.run_with_iobinding(iobinding=binding, run_options=None)
print(binding.copy_outputs_to_cpu()[0].tolist())
binding.bind_ortvalue_input(name="x", ortvalue=value)
session.run_with_iobinding(binding)
print(binding.get_outputs()[0].numpy().tolist())
value.update_inplace(data=-x)
print(value.numpy().tolist())
out = ort.OrtValue.ortvalue_from_shape_and_type(shape=[2, 3], element_type=np.float32, device_type="cpu", device_id=0)
print(out.shape(), out.device_name())
""",
    "module functions": """
ort.set_seed(7)
ort.set_default_logger_severity(3)
ort.set_default_logger_verbosity(0)
ort.disable_telemetry_events()
ort.preload_dlls(cuda=False, cudnn=False)
print(ort.has_collective_ops(), isinstance(ort.get_version_string(), str), isinstance(ort.get_build_info(), str))
print(ort.OrtDevice.make("cpu", 0).device_type(), ort.OrtDevice.make("cuda", 1).device_id(), ort.OrtMemType.CPU.value)
messages = []
ort.set_default_logger_callback(lambda *message: messages.append(message), severity=2)
ort.set_default_logger_callback(None)
ort.set_default_logger_severity(2)
""",
    "devices": """
device = ort.get_ep_devices()[0]
print(isinstance(device.ep_name, str), isinstance(device.device.vendor_id, int), dict(device.ep_options) is not None)
options = ort.SessionOptions()
print(options.has_providers())
options.add_provider_for_devices([device], {})
print(options.has_providers())
session = ort.InferenceSession("model.onnx", sess_options=options)
print(device.ep_name in session.get_providers(), session.run(["y"], {"x": x})[0].tolist())
session.disable_fallback()
session.enable_fallback()
print(len(session.get_input_epdevices()))
""",
    "values of other libraries": """
value = ort.OrtValue.from_dlpack(x)
print(value.shape(), value.data_ptr() == x.ctypes.data, value.numpy().tolist())
half = np.array([0x3F80, 0x4000], np.uint16)
print(ort.OrtValue.ortvalue_from_numpy_with_onnx_type(half, 16).data_type())
""",
    "lists": """
session = ort.InferenceSession("model.onnx")
print(session.run(["y"], {"x": x.tolist()})[0].tolist(), session.run(["y"], {"x": [[1, 2, 3]]})[0].dtype)
""",
    "arrays bound by address": """
session = ort.InferenceSession("model.onnx")
y = np.empty((2, 3), np.float32)
binding = session.io_binding()
binding.bind_input(name="x", device_type="cpu", device_id=0, element_type=np.float32, shape=x.shape, buffer_ptr=x.ctypes.data)
binding.bind_output(name="y", device_type="cpu", device_id=0, element_type=np.float32, shape=y.shape, buffer_ptr=y.ctypes.data)
binding.bind_output("z")
session.run_with_iobinding(binding)
binding.synchronize_outputs()
print(y.tolist(), binding.copy_outputs_to_cpu()[1].tolist(), binding.get_outputs()[0].shape())
binding.clear_binding_outputs()
binding.clear_binding_inputs()
print(binding.get_outputs())
""",
    "weights that a run replaces": """
session = ort.InferenceSession("weighted.onnx")
print([(v.name, v.shape) for v in session.get_overridable_initializers()])
print(session.run(None, {"x": x})[0].tolist())
print(session.run(None, {"x": x, "w": np.array([0, 1, 0], np.float32)})[0].tolist())
""",
    "a profile": """
import json
options = ort.SessionOptions()
options.enable_profiling = True
options.profile_file_prefix = "mine"
session = ort.InferenceSession("model.onnx", options)
session.run(None, {"x": x})
print(session.get_profiling_start_time_ns() > ort.InferenceSession("model.onnx").get_profiling_start_time_ns() == 0)
events = json.load(open(session.end_profiling()))
print(sum(e["name"] == "model_run" for e in events), {"Session", "Node"} <= {e["cat"] for e in events})
print(any("provider" in e["args"] and "op_name" in e["args"] for e in events if e["cat"] == "Node"))
""",
}
#: programs for a GPU, and what they print
ON_A_GPU = {
    "values on the device": (
        """
session = ort.InferenceSession("model.onnx", providers=["VulkanExecutionProvider", "CPUExecutionProvider"])
value = ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
out = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, "cuda", 0)
binding = session.io_binding()
binding.bind_input("x", value.device_name(), 0, np.float32, value.shape(), value.data_ptr())
binding.bind_output("y", out.device_name(), 0, np.float32, out.shape(), out.data_ptr())
binding.bind_output("z", "cuda")
session.run_with_iobinding(binding)
print(out.numpy().tolist())
z = binding.get_outputs()[1]
print(z.device_name(), z.numpy().tolist())
binding.bind_ortvalue_input("x", z)
binding.bind_ortvalue_output("y", out)
session.run_with_iobinding(binding)
print(out.numpy().tolist())
""",
        [
            "[[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]",
            "cuda [[4.0, 6.0, 8.0], [10.0, 12.0, 14.0]]",
            "[[8.0, 12.0, 16.0], [20.0, 24.0, 28.0]]",
        ],
    ),
    "options of the provider": (
        """
print(ort.get_device(), ort.get_available_providers())
options = {"arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": 1 << 31, "token": "programs"}
session = ort.InferenceSession("model.onnx", providers=[("VulkanExecutionProvider", options), "CPUExecutionProvider"])
print(session.get_providers())
mine = session.get_provider_options()["VulkanExecutionProvider"]
print(mine["arena.max_mem"], mine["arena.extend_strategy"], mine["token"], session.run(None, {"x": x})[0].shape)
""",
        [
            "GPU ['VulkanExecutionProvider', 'CPUExecutionProvider']",
            "['VulkanExecutionProvider', 'CPUExecutionProvider']",
            "2147483648 kSameAsRequested programs (2, 3)",
        ],
    ),
}


def printed(library: Any, program: str) -> list[str]:
    import numpy as np

    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {"ort": library, "np": np, "x": x})
    return out.getvalue().splitlines()


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vulkan: object) -> None:
    onnx.save(parser.parse_model(MODEL), tmp_path / "model.onnx")
    onnx.save(parser.parse_model(WEIGHTED), tmp_path / "weighted.onnx")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("title", SAME)
def test_a_program_prints_the_same_with_both(models: None, title: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    mine = printed(vkep, SAME[title])
    assert mine
    assert mine == printed(onnxruntime, SAME[title])


@pytest.mark.parametrize("title", ON_A_GPU)
def test_a_program_for_a_gpu(models: None, title: str) -> None:
    program, expected = ON_A_GPU[title]
    assert printed(vkep, program) == expected


def test_another_provider_is_warned_of(models: None) -> None:
    with pytest.warns(UserWarning, match="options of CUDAExecutionProvider are left out"):
        session = vkep.InferenceSession(
            "model.onnx", providers=[("CUDAExecutionProvider", {"user_compute_stream": "1"})]
        )
    assert session.get_providers()[0] == "VulkanExecutionProvider"
    with pytest.warns(UserWarning, match=r"providers are \['CPUExecutionProvider'\].* runs on VulkanExecutionProvider"):
        vkep.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])


def test_a_profile_has_the_dispatches_and_the_tag(models: None) -> None:
    session = vkep.InferenceSession("model.onnx", enable_profiling=True)
    import numpy as np

    session.run(None, {"x": np.ones((2, 3), np.float32)}, vkep.RunOptions(logid="warm"))
    name = session.end_profiling()
    assert session.end_profiling() == name
    events = json.loads(Path(name).read_text())
    nodes = [e for e in events if e["cat"] == "Node"]
    (run,) = [e for e in events if e["name"] == "model_run"]
    assert run["args"]["tag"] == "warm" and run["dur"] > 0
    assert len(nodes) == session.report().islands[0].dispatches
    assert all(e["dur"] > 0 and e["args"]["shader"] for e in nodes)
