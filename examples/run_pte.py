"""An ExecuTorch program without ExecuTorch or torch: delegates on one Vulkan device, operators outside them in numpy.

    python examples/run_pte.py PROGRAM.pte [INPUT.npy ...]

Where no inputs are given, floats are random and integers are 0. The names are those of ``executorch.runtime``: a user of
that changes the import.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from vkep.executorch import MethodMeta, Runtime


def make_inputs(meta: MethodMeta) -> list[np.ndarray]:
    """Arrays as the method takes them, of the largest shape where it is dynamic."""
    rng = np.random.default_rng(0)
    inputs = []
    for index in range(meta.num_inputs()):
        info = meta.input_tensor_meta(index)
        kind = np.dtype(info.numpy_dtype)
        inputs.append(
            rng.standard_normal(info.sizes()).astype(kind) if kind.kind == "f" else np.zeros(info.sizes(), kind)
        )
    return inputs


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/run_pte.py PROGRAM.pte [INPUT.npy ...]")
    runtime = Runtime.get()
    with runtime.load_program(sys.argv[1]) as program:
        print("methods:", ", ".join(sorted(program.method_names)))
        print(program.metadata("forward"))
        method = program.load_method("forward")
        print(method.report())

        inputs = [np.load(path) for path in sys.argv[2:]] or make_inputs(method.metadata)
        outputs = method.execute(inputs)
        start = time.perf_counter()
        for _ in range(10):
            outputs = method.execute(inputs)
        print(f"{(time.perf_counter() - start) * 100:.2f} ms a run")
        for index, output in enumerate(outputs):
            print(f"output {index}: {output.dtype} {list(output.shape)}, mean {output.mean():.6g}")
        for memory in program.memory():
            print(f"weights on the device: {sum(memory.constants.values())} bytes in {len(memory.constants)} constants")


if __name__ == "__main__":
    main()
