"""Profiles, dynamic options, resources, and why a device would not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

from tests.ort.conftest import OpenSession, device_of, graph

MODEL = graph(
    "g (float[8,4] x) => (float[8,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> "
    "{ [product] a = MatMul(x, w) [soft] y = Softmax(a) }"
)


def test_the_profile_has_each_dispatch_with_its_node_and_correlation(registered: Any, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    made = onnxruntime.InferenceSession(MODEL, options, providers=[registered.EP_NAME], enable_fallback=0)
    x = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    with_profile = [made.run(None, {"x": x})[0] for _ in range(3)]
    events = json.loads(Path(made.end_profiling()).read_text())
    gpu = [e for e in events if e["cat"] == "Kernel"]
    assert {e["name"] for e in gpu} == {"product", "soft"}
    assert len(gpu) == 6
    nodes = {e["name"]: e for e in events if e["cat"] == "Node"}
    for event in gpu:
        arguments = event["args"]
        parent = nodes[arguments["ort_event"]]
        assert parent["args"]["provider"] == registered.EP_NAME
        assert int(arguments["correlation_id"]) > 0
        assert float(arguments["gpu_ns"]) > 0
        assert arguments["shader"].endswith(".comp")
    correlations = list(dict.fromkeys(e["args"]["correlation_id"] for e in gpu))
    assert len(correlations) == 3
    # the first dispatch of a run is inside its node, with one offset for all runs: vkep's zero is read after ONNX Runtime's
    first = [min(e["ts"] for e in gpu if e["args"]["correlation_id"] == c) for c in correlations]
    runs = [n for n in events if n["cat"] == "Node" and n["name"] == gpu[0]["args"]["ort_event"]]
    least = max(n["ts"] - ts for n, ts in zip(runs, first, strict=True))
    most = min(n["ts"] + n["dur"] - ts for n, ts in zip(runs, first, strict=True))
    assert max(0, least) <= most
    assert all((result == with_profile[0]).all() for result in with_profile)


def test_after_the_profile_nothing_is_measured(session: OpenSession, registered: Any, tmp_path: Path) -> None:
    from vkep.ort.boundary import live

    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    made = onnxruntime.InferenceSession(MODEL, options, providers=[registered.EP_NAME], enable_fallback=0)
    x = np.ones((8, 4), np.float32)
    made.run(None, {"x": x})
    mine = [ep for ep in live("OrtEp") if ep.runtime.profilers]
    assert len(mine) == 1
    made.end_profiling()
    assert mine[0].runtime.profilers == []
    made.run(None, {"x": x})


def test_dynamic_options(session: OpenSession) -> None:
    made = session(MODEL)
    made.set_ep_dynamic_options({"fallback": "error"})
    with pytest.raises(Exception, match="option 'token' cannot change while a session lives; these can: fallback"):
        made.set_ep_dynamic_options({"token": "x"})
    made.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})  # ONNX Runtime's own: a hint
    with pytest.raises(Exception, match="option 'fallback' is 'never'"):
        made.set_ep_dynamic_options({"fallback": "never"})


def test_the_free_device_memory_is_reported(session: OpenSession) -> None:
    from vkep.ort.boundary import ffi, lib, live

    session(MODEL)
    ep = live("OrtEp")[0]
    out = ffi.new("OrtResourceCount *")
    assert ep.pointer.GetAvailableResource == lib.vkep_ep_GetAvailableResource
    assert ep.pointer.GetAvailableResource(ep.pointer, out) == ffi.NULL
    heaps = [h for h in ep.runtime.context.memory_budget() if h.device_local]
    assert out.kind == 1
    assert 0 < out.words[0] <= max(h.size for h in heaps)


def test_why_a_device_would_not_do(registered: Any) -> None:
    details = state.get_hardware_device_ep_incompatibility_details
    mine = device_of(registered)
    assert not details(registered.EP_NAME, mine.device).get("notes")
    cpu = next(d for d in onnxruntime.get_ep_devices() if d.ep_name == "CPUExecutionProvider")
    assert "no Vulkan 1.3 driver lists this device" in details(registered.EP_NAME, cpu.device)["notes"]


def test_every_member_is_implemented_or_explained(registered: Any, session: OpenSession) -> None:
    """docs/ort.md has a table of all members; what it says of each is what the structures hold."""
    from vkep.ort.boundary import ffi, live

    session(MODEL)
    text = (Path(__file__).parents[2] / "docs" / "ort.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `Ort")]
    said = {(row[1].strip().strip("`")): row[2].strip() for row in rows}
    held: dict[str, str] = {}
    for struct, pointer in [(name, live(name)[-1].pointer) for name in ("OrtEp", "OrtEpFactory")]:
        for name, _field in ffi.typeof(struct).fields:
            if name != "ort_version_supported":
                held[f"{struct}.{name}"] = "NULL" if getattr(pointer, name) == ffi.NULL else "yes"
    assert said == held
