"""A model on Vulkan through ONNX Runtime: from numpy, and with tensors that stay on the GPU.

    python examples/onnxruntime_ep.py [model.onnx]

Without a model it makes a small one. Needs `pip install vkep[ort]` and, at the first use, a C compiler.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime

import vkep.ort


def small_model() -> bytes:
    text = """<ir_version: 9, opset_import: ["": 18]>
    small (float[64, 256] x, float[256, 128] w) => (float[64, 128] y) { m = MatMul(x, w) y = Relu(m) }"""
    return bytes(onnx.parser.parse_model(text).SerializeToString())


def feeds_for(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    """Random values for inputs of floats; sizes that the model leaves open become 1."""
    rng = np.random.default_rng(0)
    feeds = {}
    for value in session.get_inputs():
        if value.type != "tensor(float)":
            raise SystemExit(f"this example feeds floats only; the input {value.name!r} is a {value.type}")
        shape = [d if isinstance(d, int) else 1 for d in value.shape]
        feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds


def main() -> None:
    vkep.ort.register()
    name = vkep.ort.get_ep_name()
    device = next(d for d in onnxruntime.get_ep_devices() if d.ep_name == name)
    print("device:", device.ep_metadata["vulkan_device_name"])

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    model = sys.argv[1] if len(sys.argv) > 1 else small_model()
    session = onnxruntime.InferenceSession(model, options, providers=[name], enable_fallback=0)
    for part in session.get_provider_graph_assignment_info():
        print(f"{part.ep_name}: {len(part.get_nodes())} nodes")

    feeds = feeds_for(session)
    results = session.run(None, feeds)
    print("from numpy:", [r.shape for r in results])

    on_gpu = {
        k: onnxruntime.OrtValue.ortvalue_from_numpy(v, "gpu", 0, device.device.vendor_id) for k, v in feeds.items()
    }
    gpu = onnxruntime.OrtDevice.make("gpu", 0, vendor_id=device.device.vendor_id)
    binding = session.io_binding()
    for key, value in on_gpu.items():
        binding.bind_ortvalue_input(key, value)
    for output in session.get_outputs():
        binding._iobinding.bind_output(output.name, gpu._get_c_device())
    session.run_with_iobinding(binding)
    for result, again in zip(results, binding.copy_outputs_to_cpu(), strict=True):
        np.testing.assert_allclose(again, result, rtol=1e-5, atol=1e-5)
    print("with tensors on the GPU: the same")


if __name__ == "__main__":
    main()
