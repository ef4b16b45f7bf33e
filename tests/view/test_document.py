"""What a page tells: nodes with their places, dispatches with their nodes, times on one clock, what lies in the slab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.session.models import model
from tests.view.conftest import FEEDS
from tools import view_vendor
from vkep.graph.weights import ArrayWeight, ExternalWeight, ProtoWeight
from vkep.plan.records import Dispatch, PipelineKey, Plan, Range, ShaderVariant, Space
from vkep.view import Page, read_document
from vkep.view.memory import slab_buffers
from vkep.view.modules import NAME_SCOPES, module_of
from vkep.view.weights import weight_statistics


def dispatch(label: str, reads: list[tuple[int, int]], writes: list[tuple[int, int]]) -> Dispatch:
    def ranges(spans: list[tuple[int, int]]) -> tuple[Range, ...]:
        return tuple(Range(Space.ACTIVATION, 0, start, end) for start, end in spans)

    return Dispatch(0, b"", (), (1, 1, 1), True, label, ranges(reads), ranges(writes))


def test_a_slab_s_buffers_live_from_their_writer_to_their_last_reader() -> None:
    dispatches = (
        dispatch("a", [], [(0, 256)]),
        dispatch("b", [(0, 256)], [(256, 512)]),
        dispatch("in place", [(256, 512)], [(256, 512)]),
        dispatch("d", [(0, 128), (256, 512)], [(512, 768)]),
        dispatch("reuses a", [(512, 768)], [(0, 512)]),
    )
    plan = Plan((), (), 768, (), (PipelineKey(ShaderVariant("k.comp")),), dispatches)
    assert [(b.label, b.offset, b.nbytes, b.first, b.last) for b in slab_buffers(plan)] == [
        ("a", 0, 256, 0, 3),
        ("b", 256, 256, 1, 3),
        ("d", 512, 256, 3, 4),
        ("reuses a", 0, 512, 4, 4),
    ]


def test_nodes_say_who_runs_them_and_why(page: Page) -> None:
    nodes = {n["name"]: n for n in page.document["nodes"]}
    by_op = {n["op"]: n for n in nodes.values() if n["where"] != "folded"}
    assert by_op["StringConcat"]["where"] == "cpu"
    assert by_op["StringConcat"]["reason"].startswith("no Vulkan kernel for StringConcat")
    assert {by_op[op]["where"] for op in ("MatMul", "Relu", "Softmax", "Sigmoid")} == {"vulkan"}
    assert sum(n["where"] == "folded" for n in nodes.values()) == 2
    values = {v["name"]: v for v in page.document["values"]}
    assert (values["soft"]["dtype"], values["soft"]["shape"]) == ("float32", [4, 8])
    assert [values[n]["kind"] for n in ("x", "y", "w")] == ["input", "output", "weight"]


@pytest.mark.parametrize(
    ("name", "scopes", "module"),
    [
        ("/encoder/layers.0/MatMul", "", "encoder/layers.0"),
        ("addmm", "['', 'encoder', 'encoder.layers.0', 'encoder.layers.0.linear', 'addmm']", "encoder/layers.0/linear"),
        ("block/conv/Conv2D", "", "block/conv"),
        ("Conv_3", "", ""),
        ("addmm", "['', 'addmm']", ""),
        ("addmm", "[" * 5000, ""),
        ("addmm", "{'a': open}", ""),
    ],
)
def test_modules_are_read_from_names_and_metadata(name: str, scopes: str, module: str) -> None:
    assert module_of(name, {NAME_SCOPES: scopes} if scopes else {}) == module


def test_weights_have_statistics() -> None:
    values = np.array([0, 1, 2, -1, np.nan, np.inf], np.float32)
    found = weight_statistics(ArrayWeight("w", values))
    assert (found["elements"], found["nonfinite"], found["min"], found["max"]) == (6, 2, -1, 2)
    assert (found["mean"], found["zeros"], sum(found["histogram"])) == (0.5, 0.25, 4)
    assert weight_statistics(ArrayWeight("w", np.full(3, 7, np.int64)))["histogram"] == [3]
    assert weight_statistics(ArrayWeight("w", np.array([1.0, np.nextafter(1, 2)])))["histogram"] == [2]
    assert weight_statistics(ArrayWeight("w", np.array([1, -8], ml_dtypes.int4)))["min"] == -8
    assert weight_statistics(ArrayWeight("w", np.array([1e300, -1e300])))["max"] == 1e300
    texts = onnx.TensorProto(name="w", dims=[1], data_type=onnx.TensorProto.STRING, string_data=[b"a"])
    assert weight_statistics(ProtoWeight(texts)) == {}
    assert weight_statistics(ArrayWeight("w", np.zeros((0, 3), np.float32))) == {}
    assert weight_statistics(ArrayWeight("w", np.full(2, np.nan, np.float32))) == {"elements": 2, "nonfinite": 2}


def test_of_a_large_weight_in_a_file_a_part_is_read(tmp_path: Path) -> None:
    values = np.arange(1 << 18, dtype=np.float32)
    proto = onnx.numpy_helper.from_array(values, "w")
    onnx.external_data_helper.set_external_data(proto, "w.bin")
    (tmp_path / "w.bin").write_bytes(proto.raw_data)
    proto.ClearField("raw_data")
    found = weight_statistics(ExternalWeight(proto, tmp_path))
    assert (found["elements"], found["min"], found["max"]) == (1 << 16, 0, (1 << 18) - 1)
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-3)


def test_a_model_s_metadata_is_kept(page: Page) -> None:
    assert page.document["model"] == {"graph": "branches", "IR version": 10, "opsets": {"ai.onnx": 21}}


def test_dispatches_name_their_nodes_and_were_measured(page: Page) -> None:
    document = page.document
    covered = {document["nodes"][n]["op"] for d in document["dispatches"] for n in d["nodes"]}
    assert {"MatMul", "Relu", "Softmax", "Add"} <= covered
    assert all(d["ns"] > 0 and d["limit_ns"] > 0 for d in document["dispatches"])
    [slab] = document["memory"]["slabs"]
    assert max(b["offset"] + b["nbytes"] for b in slab["buffers"]) <= slab["bytes"]


def test_host_and_gpu_lie_on_one_clock(page: Page) -> None:
    dispatches = page.document["dispatches"]
    assert len(page.document["runs"]) == 2
    for run in page.document["runs"]:
        [whole] = [s for s in run["host"] if s["depth"] == 0]
        assert all(whole["start"] <= s["start"] <= s["end"] <= whole["end"] for s in run["host"])
        assert {"write inputs", "submit", "wait", "read outputs"} <= {s["name"] for s in run["host"]}
        assert [s["dispatch"] for s in run["gpu"]] == list(range(len(dispatches)))
        slack = run["uncertainty"]
        [submit] = [s for s in run["host"] if s["name"] == "submit"]
        [wait] = [s for s in run["host"] if s["name"] == "wait"]
        for span in run["gpu"]:
            assert submit["start"] - slack <= span["start"] <= span["end"] <= wait["end"] + slack
        for one, following in zip(run["gpu"], run["gpu"][1:], strict=False):
            if dispatches[following["dispatch"]]["barrier"]:
                assert following["start"] >= one["end"]


def test_a_page_carries_all_that_it_needs(page: Page, tmp_path: Path) -> None:
    written = page.save(tmp_path / "new" / "run.html")
    text = written.read_text(encoding="utf-8")
    assert "http" not in text.replace("http://www.w3.org", "").split("<script id=")[0], (
        "no style or image from elsewhere"
    )
    assert read_document(written) == json.loads(json.dumps(page.document, default=list))
    assert view_vendor.problems() == []
    assert "srcdoc=" in page._repr_html_()


def test_names_of_a_model_cannot_leave_the_data(page: Page) -> None:
    document = {**page.document, "title": "</script><script>evil()</script>"}
    assert "<script>evil" not in Page([document]).html()


@pytest.mark.parametrize("text", ["", "<html></html>", "{}", '{"format": 99}', "[]"])
def test_another_file_is_no_document(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.html"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"other\.html"):
        read_document(path)


def test_a_session_without_inputs_shows_its_plan(open_session: Any) -> None:
    session = open_session(model("t (float[N] x) => (float[N] y) { y = Relu(x) }"))
    waiting = session.view().document
    assert [n["where"] for n in waiting["nodes"]] == ["unplanned"]
    session.plan({"x": (4,)})
    planned = session.view().document
    assert [n["where"] for n in planned["nodes"]] == ["vulkan"]
    assert planned["runs"] == []
    compared = session.view({"x": FEEDS["x"][0]}, 1, against=Page([planned]))
    assert len(compared.documents) == 2


def test_a_loop_s_steps_are_seen(open_session: Any) -> None:
    text = """g (float[4] x, int64 n, bool go) => (float[4] y) {
        y = Loop (n, go, x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {
            d = Identity(c)
            t = Mul(s, s)
        }>
    }"""
    feeds = {"x": FEEDS["x"][0, :4], "n": np.array(3), "go": np.array(True)}
    document = open_session(model(text)).view(feeds, 1).document
    assert [s["dispatch"] for s in document["runs"][0]["gpu"]] == [*range(len(document["dispatches"]))] * 3
    assert all(d["ns"] > 0 for d in document["dispatches"])


def test_a_vgf_file_shows_its_operations() -> None:
    from tests.vgf.harness import DATA, need_vgf

    need_vgf()
    from vkep.vgf import decode
    from vkep.view.vgf import vgf_document

    document = vgf_document(decode((DATA / "executorch_trig.vgf").read_bytes()), "trig.vgf")
    assert [n["op"] for n in document["nodes"]] == ["SIN", "COS", "RECIPROCAL", "MUL", "TRANSPOSE"]
    made = {v for n in document["nodes"] for v in n["outputs"]}
    given = {k for k, v in enumerate(document["values"]) if v.get("kind") in ("input", "weight")}
    assert all(n["inputs"] and set(n["inputs"]) <= made | given for n in document["nodes"])
    weights = [v for v in document["values"] if v.get("kind") == "weight"]
    assert all(v["stats"]["elements"] for v in weights)
    assert all("shape" in document["values"][v] for v in made)
    [result] = [v for v in document["values"] if v.get("kind") == "output"]
    assert document["values"][document["nodes"][-1]["outputs"][0]] == result
