"""EPContext models: compiled once, saved, loaded without planning, and refused where they do not fit."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as state

from tests.ort.conftest import OpenSession, device_number, device_of, graph, reference, where

KEY = "ep_compatibility_info.VulkanExecutionProvider"
WEIGHT = np.random.default_rng(4).standard_normal((16, 8)).astype(np.float32)
X = np.random.default_rng(5).standard_normal((4, 16)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> '
        "g (float[4,16] x) => (float[4,8] y, float[4,8] z) { m = MatMul(x, w) y = Relu(m) z = Neg(m) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    onnx.save(proto, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def compile_(session: OpenSession, model: Any, target: Path, embed: bool) -> None:
    entries = {
        "ep.context_enable": "1",
        "ep.context_file_path": str(target),
        "ep.context_embed_mode": str(int(embed)),
    }
    session(model if isinstance(model, bytes) else str(model), entries=entries)


@pytest.mark.parametrize("embed", [True, False])
def test_a_compiled_model_gives_the_same_without_planning(
    session: OpenSession, model: Path, embed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkep.ort.graphs import subgraph
    from vkep.placement import partition

    target = model.with_name("compiled.onnx")
    compile_(session, model, target, embed)
    proto = onnx.load(target)
    assert [n.op_type for n in proto.graph.node] == ["EPContext"]
    assert not proto.graph.initializer
    assert len(list(model.parent.glob("*.vkep"))) == (0 if embed else 1)

    def no_planning(*args: Any) -> Any:
        raise AssertionError("a compiled model is not planned again")

    monkeypatch.setattr(partition, "lower", no_planning)
    monkeypatch.setattr(subgraph, "lower", no_planning)
    made = session(str(target))
    assert where(made) == {"VulkanExecutionProvider": {"EPContext": 1}}
    y, z = made.run(None, {"x": X})
    np.testing.assert_allclose(y, np.maximum(X @ WEIGHT, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(z, -(X @ WEIGHT), rtol=1e-4, atol=1e-5)


def test_the_model_compiler_api(session: OpenSession, registered: Any, model: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([device_of(registered)], {})
    target = model.with_name("by_api.onnx")
    onnxruntime.ModelCompiler(options, str(model), embed_compiled_data_into_model=True).compile_to_file(str(target))
    np.testing.assert_allclose(session(str(target)).run(["z"], {"x": X})[0], -(X @ WEIGHT), rtol=1e-4, atol=1e-5)


def test_a_compiled_island_beside_a_cpu_node(session: OpenSession, tmp_path: Path) -> None:
    # texts never go to a GPU
    model = graph("g (float[6] x) => (float[6] y, string[6] z) { r = Relu(x) y = Neg(r) z = Cast<to=8>(r) }")
    (tmp_path / "m.onnx").write_bytes(model)
    target = tmp_path / "c.onnx"
    entries = {"ep.context_enable": "1", "ep.context_file_path": str(target)}
    session(str(tmp_path / "m.onnx"), entries=entries, all_on_vulkan=False)
    made = session(str(target), all_on_vulkan=False)
    assert where(made) == {"VulkanExecutionProvider": {"EPContext": 1}, "CPUExecutionProvider": {"Cast": 1}}
    x = np.array([3, -1, 2, 2, 0, 3], np.float32)
    y, z = made.run(None, {"x": x})
    np.testing.assert_array_equal(y, -np.maximum(x, 0))
    np.testing.assert_array_equal(z.astype(np.float32), np.maximum(x, 0))


def test_compatibility_is_reported_and_validated(session: OpenSession, registered: Any, model: Path) -> None:
    target = model.with_name("compiled.onnx")
    compile_(session, model, target, True)
    info = {p.key: p.value for p in onnx.load(target).metadata_props}[KEY]
    devices = [device_of(registered)]

    def ask(text: str) -> Any:
        return state.get_model_compatibility_for_ep_devices(devices, text).name

    assert ask(info) == "EP_SUPPORTED_OPTIMAL"
    assert ask(info.replace("driver=", "driver=older ")) == "EP_SUPPORTED_PREFER_RECOMPILATION"
    for part in ("vkep=", "shaders=", "device=", "limits="):
        assert ask(info.replace(part, part + "f")) == "EP_UNSUPPORTED"
    assert ask("another provider's text") == "EP_NOT_APPLICABLE"


@pytest.mark.parametrize("embed", [True, False])
def test_open_shapes_are_compiled_as_nodes_to_plan_from(session: OpenSession, tmp_path: Path, embed: bool) -> None:
    model = tmp_path / "open.onnx"
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[n,16] x, int64[2] s) => (float[n,8] y, float[a,b] z) '
        "{ m = MatMul(x, w) y = LeakyRelu<alpha=0.25>(m) z = Reshape(y, s) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    onnx.save(proto, model)
    target = tmp_path / "compiled.onnx"
    compile_(session, model, target, embed)
    compiled = onnx.load(target)
    assert [n.op_type for n in compiled.graph.node] == ["EPContext"]
    assert not compiled.graph.initializer
    model.unlink()
    made = session(str(target))
    for rows in (4, 2, 4):
        y, z = made.run(None, {"x": X[:rows], "s": np.array([-1, 4])})
        product = X[:rows] @ WEIGHT
        np.testing.assert_allclose(y, np.where(product > 0, product, product / 4), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(z, y.reshape(-1, 4))


def test_data_with_weights_in_a_body_is_refused(session: OpenSession) -> None:
    from vkep.errors import InvalidModelError
    from vkep.graph.load import load_model
    from vkep.ort.graphs import context_data

    text = "g (float[n] x, bool c) => (float[n] y) { y = If<then_branch = t () => (float[n] o) <float w = {3}> { o = Mul(x, w) }"
    read = load_model(graph(text + ", else_branch = e () => (float[n] o) { o = Neg(x) }>(c) }"))
    nodes = context_data.Nodes(read.graph, read.opsets, read.ir_version)
    data = context_data.encode(nodes, context_data.compatibility(_device()))
    with pytest.raises(InvalidModelError, match="carry weights of their own"):
        context_data.decode(data, _device())


@pytest.mark.parametrize("what", ["cut", "nodes"])
def test_damaged_nodes_are_refused(session: OpenSession, what: str) -> None:
    from vkep.errors import InvalidModelError
    from vkep.graph.load import load_model
    from vkep.ort.graphs import context_data

    read = load_model(graph("g (float[n] x) => (float[n] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }"))
    nodes = context_data.Nodes(read.graph, read.opsets, read.ir_version)
    data = context_data.encode(nodes, context_data.compatibility(_device()))
    broken = data[:-70] if what == "cut" else data.replace(b'"graph": "', b'"graph": "//8A')
    with pytest.raises(InvalidModelError, match="the data is damaged"):
        context_data.decode(broken, _device())


#: If and Scan that read ``x`` or ``t`` and the weight ``w``; those with a sequence in a body are run by ONNX Runtime
BODIES = {
    "If": "y = If(c) <then_branch = a () => (float[2,2] p) {{ p = Add({0}, w) }}, "
    "else_branch = b () => (float[2,2] q) {{ r = Neg({0}) {1} }}>",
    "Scan": "y = Scan<num_scan_inputs = 1, body = s (float[2] e) => (float[2] q) {{ m = Add(w, e) r = Relu(m) {1} }}>({0})",
}
WHOLE = "q = Identity(r)"
IN_PARTS = "i = Constant<value = int64 {0}>() l = SequenceConstruct(r) q = SequenceAt(l, i)"
OUTER_WEIGHT = (
    "g (float[2,2] x, bool c) => (float[2,2] y, seq(float[2]) z) <float[2] w = {{3, 3}}> {{ t = Relu(x) {} {} }}"
)


@pytest.mark.parametrize("op_type", BODIES)
@pytest.mark.parametrize("rest", [WHOLE, IN_PARTS], ids=["whole", "in parts"])
@pytest.mark.parametrize("island", [False, True])
def test_weights_that_only_bodies_read(
    session: OpenSession, op_type: str, rest: str, island: bool, tmp_path: Path
) -> None:
    """They are in the data of a node that is compiled whole. Otherwise ONNX Runtime's writer leaves them out, and then
    refuses its own model."""
    body = BODIES[op_type].format("t" if island else "x", rest)
    first = "t = Relu(x) " if island else ""
    model = graph(f"g (float[2,2] x, bool c) => (float[2,2] y) <float[2] w = {{3, 3}}> {{ {first}{body} }}")
    target = tmp_path / "c.onnx"
    entries = {"ep.context_enable": "1", "ep.context_file_path": str(target), "ep.context_embed_mode": "1"}
    if rest is IN_PARTS:
        with pytest.raises(
            Exception, match=r"read the weights \['w'\], which no other node that stays in the compiled model"
        ):
            session(model, entries=entries, all_on_vulkan=False)
        return
    session(model, entries=entries)
    compiled = session(str(target))
    for c in (True, False):
        feeds = {"x": np.array([[1, -2], [3, -4]], np.float32), "c": np.array(c)}
        np.testing.assert_array_equal(compiled.run(None, feeds)[0], reference(model, feeds)[0])


def test_constants_of_bodies_that_stay_are_written(session: OpenSession, tmp_path: Path) -> None:
    model = graph("""g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] r) <float[2] v = {3, 3}> { r = Add(x, v) },
                   else_branch = e () => (float[2] r) <float[2] v = {5, 5}> { r = Sub(x, v) }> }""")
    target = tmp_path / "c.onnx"
    entries = {"ep.context_enable": "1", "ep.context_file_path": str(target), "ep.context_embed_mode": "1"}
    entries["ep.vulkanexecutionprovider.min_partition_size"] = "100"
    session(model, entries=entries, all_on_vulkan=False)


@pytest.mark.parametrize("op_type", BODIES)
@pytest.mark.parametrize("rest", [WHOLE, IN_PARTS], ids=["whole", "in parts"])
def test_weights_that_other_nodes_read_too_are_written(
    session: OpenSession, op_type: str, rest: str, tmp_path: Path
) -> None:
    target = tmp_path / "c.onnx"
    entries = {"ep.context_enable": "1", "ep.context_file_path": str(target), "ep.context_embed_mode": "1"}
    text = OUTER_WEIGHT.format(BODIES[op_type].format("t", rest), "z = SequenceConstruct(w, w)")
    session(graph(text), entries=entries, all_on_vulkan=False)
    x = np.ones((2, 2), np.float32)
    feeds = {"x": x, "c": np.array(True)}
    y = session(str(target), all_on_vulkan=False).run(["y"], feeds)[0]
    np.testing.assert_array_equal(y, x + 3)


def test_kernels_of_the_registry_have_nothing_to_compile(session: OpenSession, model: Path) -> None:
    entries = {"ep.context_enable": "1", "ep.context_file_path": str(model.with_name("c.onnx"))}
    with pytest.raises(Exception, match="option 'kernels' is 'registry'"):
        session(str(model), entries=entries, kernels="registry")


def test_data_for_another_device_is_refused(session: OpenSession, model: Path) -> None:
    from vkep.ort.graphs import context_data

    target = model.with_name("compiled.onnx")
    compile_(session, model, target, False)
    data = next(model.parent.glob("*.vkep"))
    device = _device()
    step = context_data.decode(data.read_bytes(), device)
    elsewhere = dataclasses.replace(device, subgroup_size=device.subgroup_size * 2)
    data.write_bytes(context_data.encode(step, context_data.compatibility(elsewhere)))
    with pytest.raises(Exception, match=r"EPContext: compiled for .* compile the model again here"):
        session(str(target))


def signed(data: bytes) -> bytes:
    """With the digest of its header, as somebody who means harm would write it."""
    length = int.from_bytes(data[8:16], "little")
    header = data[32 : 32 + length]
    return data[:16] + hashlib.blake2b(header, digest_size=16).digest() + data[32:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: b"something else", "the data is not vkep's"),
        (lambda d: d[: len(d) // 2], "the data is damaged"),
        (lambda d: d[:8] + b"\xff" * 8 + d[16:], "the data is damaged"),
        (lambda d: d.replace(b'"plan"', b'"plum"'), "the data is damaged"),
        (lambda d: signed(d.replace(b"matmul", b"../mat", 1)), "names a shader outside vkep's own"),
    ],
)
def test_damaged_data_is_refused(session: OpenSession, model: Path, damage: Any, message: str) -> None:
    target = model.with_name("compiled.onnx")
    compile_(session, model, target, False)
    data = next(model.parent.glob("*.vkep"))
    data.write_bytes(damage(data.read_bytes()))
    with pytest.raises(Exception, match=f"file '{data.name}'.*{message}"):
        session(str(target))


def test_missing_data_is_named(session: OpenSession, model: Path) -> None:
    target = model.with_name("compiled.onnx")
    compile_(session, model, target, False)
    next(model.parent.glob("*.vkep")).unlink()
    with pytest.raises(Exception, match=r"no data file of com\.microsoft\.EPContext .* at .*\.vkep"):
        session(str(target))


def test_plans_survive_the_round_trip(registered: Any, shared_context: Any) -> None:
    import vkep
    from vkep.dtypes import DTYPES
    from vkep.graph import load_model
    from vkep.ir.infer import Known
    from vkep.ir.program import IslandStep, ValueSpec
    from vkep.ort.graphs import context_data
    from vkep.placement.partition import lower

    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[4,16] x) => (float[4,8] y) { m = MatMul(x, w) y = Softmax(m) }'
    )
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    model = load_model(proto)
    caps = shared_context.capabilities
    known: dict[str, Known] = {**model.graph.weights, "x": ValueSpec(DTYPES["float32"], (4, 16))}
    step = lower(model.graph.nodes, known, ["y"], model.opsets, caps).steps[0]
    assert isinstance(step, IslandStep)
    again = context_data.decode(context_data.encode(step, context_data.compatibility(caps)), caps)
    assert isinstance(again, IslandStep)
    assert again.plan == step.plan
    assert {k: w.key for k, w in again.weights.items()}.keys() == {c.key for c in step.plan.constants}
    for key, weight in again.weights.items():
        np.testing.assert_array_equal(weight.array(), step.weights[key].array())
    assert vkep.__version__ in context_data.compatibility(caps)


def _device() -> Any:
    import gpu_shared

    return gpu_shared.select_device(gpu_shared.list_devices()).capabilities


def test_the_best_of_several_compiled_models(registered: Any) -> None:
    """As ONNX Runtime asks for a model package: by the factory's member."""
    from vkep.ort.boundary import NULL, ffi, live
    from vkep.ort.graphs.context_data import compatibility

    factory = live("OrtEpFactory")[0]
    ort, here = factory.ort, compatibility(_device())
    driver = here.replace("driver=", "driver=another ")
    foreign = here.replace("vkep=", "other=")
    if not factory.devices._virtual:
        pytest.skip("the device is one that ONNX Runtime lists itself")
    hardware = factory.devices._virtual[min(device_number(registered), len(factory.devices._virtual) - 1)]

    def best(*texts: str) -> int:
        made = [ort.make_pairs({"ep_compatibility_info": text} if text else {}) for text in texts]
        out = ffi.new("size_t *", 99)
        try:
            array = ffi.new("OrtKeyValuePairs const *[]", made)
            ort.check(factory.pointer.SelectBestModelCandidate(factory.pointer, hardware, array, len(made), NULL, out))
        finally:
            for pairs in made:
                ort.api.ReleaseKeyValuePairs(pairs)
        return int(out[0])

    assert best(foreign, driver, here) == 2
    assert best(here, driver) == 0
    assert best("", foreign, driver) == 2
    with pytest.raises(Exception, match="none of 2 compiled models was made for this device"):
        best(foreign, "")
