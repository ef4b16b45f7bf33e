"""ONNX Runtime's CPU provider, which tests and fuzzers compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx


def cpu_session(model: onnx.ModelProto | bytes | Path, *, optimized: bool = True) -> Any:
    """A session of one thread. By default each session starts a thread for each core, also for cores that the process may not
    use; these threads go on taking processor time for a while after a run.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
