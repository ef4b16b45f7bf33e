"""One model on all devices of a machine, without Ray.

python examples/replicas.py
"""

from __future__ import annotations

import numpy as np
import onnx.parser

import vkep

MODEL = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 64] x) => (float[n, 64] y) { y = Softmax(x) }'


def main() -> None:
    batches = [np.full((4, 64), at, np.float32) for at in range(20)]
    with vkep.Replicas(onnx.parser.parse_model(MODEL)) as replicas:
        print(f"{len(replicas)} device(s): {[s.context.capabilities.name for s in replicas.sessions]}")
        sums = [y.sum() for (y,) in replicas.map({"x": batch} for batch in batches)]  # in order, on all devices at once
    print(f"{len(sums)} batches, sums {min(sums):.1f} to {max(sums):.1f}")


if __name__ == "__main__":
    main()
