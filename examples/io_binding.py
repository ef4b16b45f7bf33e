"""Chain two sessions over a tensor that stays on the device.

    python examples/io_binding.py

The first session writes a device tensor, the second reads it. Nothing is downloaded in between, and the host does not
wait: the shared context's timeline keeps the order on the GPU.
"""

from __future__ import annotations

import numpy as np
import onnx.parser

import vkep

ENCODER = '<ir_version: 8, opset_import: ["" : 17]> encoder (float[4, 256] x) => (float[4, 256] h) { h = Tanh(x) }'
DECODER = '<ir_version: 8, opset_import: ["" : 17]> decoder (float[4, 256] h) => (float[4, 256] y) { y = Softmax(h) }'


def main() -> None:
    x = np.random.default_rng(0).standard_normal((4, 256), np.float32)
    with (  # sessions with the same token (here: the default) share one context, and so one device
        vkep.InferenceSession(onnx.parser.parse_model(ENCODER)) as encoder,
        vkep.InferenceSession(onnx.parser.parse_model(DECODER)) as decoder,
        encoder.device_tensor(x) as on_device,  # uploaded once
        encoder.empty_device_tensor((4, 256)) as hidden,
    ):
        encode = encoder.io_binding()
        encode.bind_input("x", on_device)
        encode.bind_output("h", hidden)

        decode = decoder.io_binding()
        decode.bind_input("h", hidden)
        decode.bind_output("y", device="cpu")  # only this comes back

        for _ in range(3):
            encoder.run_with_iobinding(encode)  # returns without waiting for the GPU
            decoder.run_with_iobinding(decode)
        (y,) = decode.copy_outputs_to_cpu()

    powers = np.exp(np.tanh(x))
    error = np.abs(y - powers / powers.sum(axis=1, keepdims=True)).max()
    print(f"largest difference from numpy: {error:.1e}")
    if error > 1e-6:
        raise SystemExit("the results differ")


if __name__ == "__main__":
    main()
