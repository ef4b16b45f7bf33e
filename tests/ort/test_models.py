"""Whole models through ONNX Runtime with the CPU provider's fallback disabled: the answers of the CPU provider, every node on
Vulkan by ONNX Runtime's own assignment and by its profile.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.nightly import nightly_but
from tests.ort.conftest import ASSIGNMENT, OpenSession, reference, where
from tools.models.catalog import BENCHMARKS, Options, build_model, reference_inputs

EP = "VulkanExecutionProvider"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NO_CPU = {"session.disable_cpu_ep_fallback": "1"}
BY_DEFAULT = ("conv3x3", "light_squeezenet", "light_shufflenet", "mobilenetv2", "gpt2step")
NAMES = [*BENCHMARKS, *sorted(p.stem for p in LIGHT.glob("light_*.onnx"))]


def model_and_feeds(name: str, options: Options | None = None) -> tuple[bytes, dict[str, Any]]:
    options = options or Options()
    if not name.startswith("light_"):
        proto = build_model(name, options)
        return proto.SerializeToString(), reference_inputs(name, proto, options)
    model = (LIGHT / f"{name}.onnx").read_bytes()
    graph = onnx.load_from_string(model).graph
    weights = {t.name for t in graph.initializer}
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input if v.name not in weights}
    rng = np.random.default_rng(1)
    return model, {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def hold(got: list[Any], expected: list[Any]) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.shape == theirs.shape
        scale = max(1.0, float(np.abs(theirs).max()))
        assert np.abs(ours - theirs).max() <= 1e-3 * scale


@pytest.mark.parametrize("name", nightly_but(BY_DEFAULT, NAMES))
def test_every_node_runs_on_vulkan(session: OpenSession, name: str) -> None:
    model, feeds = model_and_feeds(name)
    made = session(model, entries=NO_CPU)
    hold(made.run(None, feeds), reference(model, feeds))


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_but(("gpt2step",), ("mobilenetv2", "bert_enc", "gpt2step")))
def test_with_open_dimensions(session: OpenSession, name: str) -> None:
    model, feeds = model_and_feeds(name, Options(dynamic=True))
    made = session(model, all_on_vulkan=False)
    parts = where(made)
    assert parts.get("CPUExecutionProvider", {}).keys() <= {"Shape"}, parts
    hold(made.run(None, feeds), reference(model, feeds))


def test_the_profile_too_says_that_vulkan_ran_them(registered: Any, tmp_path: Path) -> None:
    model, feeds = model_and_feeds("light_squeezenet")
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    for key in (ASSIGNMENT, *NO_CPU):
        options.add_session_config_entry(key, "1")
    made = onnxruntime.InferenceSession(model, options, providers=[EP], enable_fallback=0)
    made.disable_fallback()
    made.run(None, feeds)
    events = json.loads(Path(made.end_profiling()).read_text())
    providers = {e["args"]["provider"] for e in events if e["cat"] == "Node" and "provider" in e["args"]}
    assert providers == {EP}
