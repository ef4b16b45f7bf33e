"""Compare vkep with ONNX Runtime on models as ONNX Runtime saves them after its optimization (`optimized_model_filepath`).

    python -m tools.optimized_forms [names] [--catalog]

For each model of `tools.models.fusions`, and with ``--catalog`` of `tools.models.catalog` (without one-operator models), as it is
and optimized at each level. The expected results are those of ONNX Runtime's CPU provider without optimization.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tools.models.catalog import BENCHMARKS, build_model, reference_inputs
from tools.models.fusions import FUSIONS
from tools.ort_cpu import cpu_session

Array = np.ndarray[Any, Any]
LEVELS = ("BASIC", "EXTENDED", "ALL")
#: the greatest difference, relative to the largest result and at least to 1; of quantized models a step more, where a tie rounds
NEAR, STEP = 1e-4, 0.05


def forms(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The model as it is, and as ONNX Runtime saves it at each level."""
    import onnxruntime

    yield "as it is", model
    with tempfile.TemporaryDirectory() as folder:
        for level in LEVELS:
            path = Path(folder) / f"{level}.onnx"
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
            options.optimized_model_filepath = str(path)
            options.log_severity_level = 4
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            yield level, onnx.load(path)


def own_operators(model: onnx.ModelProto) -> set[str]:
    """The operators outside of ONNX's domain."""
    return {node.op_type for node in model.graph.node if node.domain not in ("", "ai.onnx")}


def is_for_cpu_kernels(model: onnx.ModelProto) -> bool:
    """Whether it has operators in the layouts of ONNX Runtime's CPU kernels, which its level ALL writes."""
    return any(node.domain == "com.microsoft.nchwc" for node in model.graph.node)


def difference(model: onnx.ModelProto, feeds: Mapping[str, Array], expected: list[Array], context: Any) -> str:
    """How vkep's results differ from the expected ones, or which nodes Vulkan declines; "" where they are near."""
    from vkep import InferenceSession

    steps = any(
        node.op_type == "QuantizeLinear" or node.op_type.startswith(("QLinear", "QGemm")) for node in model.graph.node
    )
    more = STEP if steps or own_operators(model) & {"DynamicQuantizeMatMul", "MatMulNBits"} else 0
    with InferenceSession(model, context=context, save_plans=False) as session:
        if not (report := session.report()).all_on_vulkan:
            return f"not all on Vulkan: {report}"
        results = session.run(None, dict(feeds))
    for got, want in zip(results, expected, strict=True):
        off = np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0)
        if got.shape != want.shape or not off <= more + NEAR * max(1, np.abs(want.astype(np.float64)).max(initial=0)):
            return f"up to {off:.3g} off, of values up to {np.abs(want).max(initial=0):.3g}"
    return ""


def main() -> int:
    """Compare, and print what differs."""
    from gpu_shared import SharedGpuContext
    from vkep import UnsupportedModelError

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="models of tools.models.fusions (default: all)")
    parser.add_argument("--catalog", action="store_true", help="also the models of tools.models.catalog")
    args = parser.parse_args()
    context = SharedGpuContext.create({"gpu_shared_context_token": "optimized forms"})
    cases = {name: (FUSIONS[name].model(), FUSIONS[name].feeds()) for name in args.names or FUSIONS}
    for name in BENCHMARKS if args.catalog else ():
        model = build_model(name)
        cases[name] = model, reference_inputs(name, model)
    bad = 0
    for name, (model, feeds) in cases.items():
        expected = cpu_session(model, optimized=False).run(None, feeds)
        for level, form in forms(model):
            try:
                why = difference(form, feeds, expected, context)
            except UnsupportedModelError as error:
                why = "" if is_for_cpu_kernels(form) else str(error)
            bad += bool(why)
            shown = why or ("refused, for ONNX Runtime's CPU kernels" if is_for_cpu_kernels(form) else "equal")
            print(f"{name}, {level}: {shown} {sorted(own_operators(form)) or ''}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
