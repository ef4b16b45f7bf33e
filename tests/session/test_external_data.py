"""Weights in files of their own: uploaded in pieces with progress, never held twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from vkep import InferenceSession, SharedGpuContext

ROOT = Path(__file__).resolve().parents[2]


def _write(folder: Path, matrices: int, size: int) -> Path:
    """x @ W0 @ W1 ...: each weight is the identity times its number plus one, in one file, written row by row."""
    tensors, nodes, value = [], [], "x"
    with open(folder / "weights.bin", "wb") as file:
        for k in range(matrices):
            start = file.tell()
            for row in range(size):
                line = np.zeros(size, np.float32)
                line[row] = k + 1
                file.write(line.tobytes())
            tensor = TensorProto(name=f"w{k}", data_type=TensorProto.FLOAT, dims=[size, size])
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in (("location", "weights.bin"), ("offset", str(start)), ("length", str(4 * size * size))):
                tensor.external_data.add(key=key, value=text)
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [value, f"w{k}"], [f"y{k}"]))
            value = f"y{k}"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])]
    outputs = [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, size])]
    graph = helper.make_graph(nodes, "external", inputs, outputs, tensors)
    path = folder / "m.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    )
    return path


_MEASURE = """
    import json, sys
    import numpy as np
    import vkep

    def anonymous():
        with open("/proc/self/status") as file:
            return 1024 * int(next(l.split()[1] for l in file if l.startswith("RssAnon")))

    peak = 0
    pieces = []

    def progress(phase, done, total, what):
        global peak
        if phase == "weights":
            peak = max(peak, anonymous())
            pieces.append((done, total))

    warm = vkep.InferenceSession(sys.argv[1] + "/small/m.onnx")
    before = anonymous()
    with vkep.InferenceSession(sys.argv[1] + "/m.onnx", progress=progress) as session:
        after = anonymous()
        size = session.get_inputs()[0].shape[1]
        y = session.run(None, {"x": np.ones((1, size), np.float32)})[0]
        report = session.report()
    warm.close()
    json.dump({"peak": peak - before, "after": after - before, "pieces": pieces, "on_vulkan": report.all_on_vulkan,
               "y": [float(y.min()), float(y.max())], "weights": report.islands[0].constant_bytes}, sys.stdout)
"""


def _measure(folder: Path) -> dict[str, Any]:
    import json

    paths = [str(ROOT), str(ROOT / "registry")]
    code = f"import sys; sys.path[:0] = {paths!r}\n" + textwrap.dedent(_MEASURE)
    env = {**os.environ, "MALLOC_ARENA_MAX": "2"}  # on many cores the threads' arenas take tens of megabytes
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=600, env=env
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc/self/status")
def test_weights_are_held_once(vulkan: object, tmp_path: Path) -> None:
    """On a CPU driver device memory is this process's: one copy there, and no second one on the host."""
    (tmp_path / "small").mkdir()
    _write(tmp_path / "small", 1, 64)
    _write(tmp_path, 12, 2048)
    got = _measure(tmp_path)
    weights = 12 * 4 * 2048**2
    assert got["on_vulkan"] and got["weights"] == weights > 128 << 20
    assert got["y"] == [479001600.0, 479001600.0]
    pieces = [tuple(p) for p in got["pieces"]]
    assert len(pieces) >= 12 and pieces[-1] == (weights, weights) and pieces == sorted(pieces)
    limit = 1.5 * weights  # the copy on the device, one matrix being rearranged, and the staging ring
    assert got["after"] < limit and got["peak"] < limit, got


@pytest.mark.slow
def test_more_than_two_gigabytes(vulkan: object, needs_gigabytes: None, tmp_path: Path) -> None:
    """Beyond what one protobuf message holds."""
    (tmp_path / "small").mkdir()
    _write(tmp_path / "small", 1, 64)
    _write(tmp_path, 9, 8192)
    assert (tmp_path / "weights.bin").stat().st_size > 2**31
    got = _measure(tmp_path)
    assert got["on_vulkan"] and got["y"] == [362880.0, 362880.0]
    assert got["peak"] < 1.5 * 9 * 4 * 8192**2


def test_equal_weights_are_on_the_device_once(own_context: SharedGpuContext, tmp_path: Path) -> None:
    path = _write(tmp_path, 2, 256)
    with InferenceSession(path, context=own_context) as one:
        resident = one._parts.delegate.constants.resident
        assert sum(resident.values()) == 2 * 4 * 256**2
        with InferenceSession(path, context=own_context) as two:
            assert two._parts.delegate.constants.resident == resident
        assert one._parts.delegate.constants.resident == resident
        inside = onnx.load(path)
        with InferenceSession(inside, context=own_context) as three:
            assert len(three._parts.delegate.constants.resident) == 4, "a file's identity, not its content, is its key"


def test_the_weights_may_be_a_safetensors_file(tmp_path: Path) -> None:
    """A file of 8 bytes with the length of a JSON header, the header, and the tensors, which external data point into; the
    package onnx-safetensors writes them so (https://huggingface.co/docs/safetensors)."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    header = json.dumps({"w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, weight.nbytes]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + weight.tobytes())
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[n, 3] x) => (float[n, 4] y) <float[3, 4] w> { y = MatMul(x, w) }'
    )
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[3, 4])
    tensor.data_location = TensorProto.EXTERNAL
    places = {"location": "m.safetensors", "offset": str(8 + len(header)), "length": str(weight.nbytes)}
    for key, text in places.items():
        tensor.external_data.add(key=key, value=text)
    onnx.save(model, tmp_path / "m.onnx")
    x = np.ones((2, 3), np.float32)
    with InferenceSession(tmp_path / "m.onnx", fallback="error") as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weight)
