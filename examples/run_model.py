"""Run a model on Vulkan and print where its nodes ran.

    python examples/run_model.py MODEL.onnx

Makes random inputs for a model with fixed shapes, runs it twice and prints the report.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import vkep

NUMPY_TYPES = {
    **{f"tensor({name})": np.dtype(name) for name in ("float16", "double", "bool", "uint8", "int8", "int32", "int64")},
    "tensor(float)": np.dtype(np.float32),
}


def main(model: str) -> None:
    random = np.random.default_rng(0)
    with vkep.InferenceSession(model) as session:
        feeds = {}
        for argument in session.get_inputs():
            print(f"input  {argument.name}: {argument.type} {list(argument.shape or ())}")
            shape = [size for size in argument.shape or () if isinstance(size, int)]
            if argument.shape is None or len(shape) < len(argument.shape):
                sys.exit("this example makes inputs for fixed shapes only; see dynamic_shapes.py")
            if argument.type not in NUMPY_TYPES:
                sys.exit(
                    f"this example makes numbers only, and {argument.name} is {argument.type}; see `vkep run --help`"
                )
            feeds[argument.name] = random.integers(0, 2, shape).astype(NUMPY_TYPES[argument.type])
        for what in ("first run", "second run"):  # the first also takes memory and records the commands
            start = time.perf_counter()
            outputs = session.run(None, feeds)
            print(f"{what}: {(time.perf_counter() - start) * 1e3:.2f} ms")
        for argument, value in zip(session.get_outputs(), outputs, strict=True):
            print(f"output {argument.name}: {value.dtype} {list(value.shape)}, mean {value.mean():.6g}")
        print(session.report())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
