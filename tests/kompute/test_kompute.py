"""Kompute regions in models: results, placement, copies through the host, threads, ends of life, errors. kp itself runs here."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkep import InferenceSession, UnsupportedModelError
from vkep.kompute import KpDispatch, KpTensor, available, register_kp_operator, unregister_kp_operator
from vkep.plan.records import ShaderVariant
from vkep.session.execution.kompute import KomputeError, KpDevice
from vkep.shaders import ShaderLibrary

pytestmark = [
    pytest.mark.usefixtures("vulkan"),
    pytest.mark.skipif(not available(), reason="needs kp (tools/build_kp.sh builds it)"),
]
DATA = Path(__file__).parent / "data"
DOMAIN = "com.example.kp"
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
W = np.array([0.5, 0.25, 2.0, 1.0], np.float32)


def swirl_outputs(inputs: Any, attributes: Mapping[str, Any]) -> list[KpTensor]:
    return [KpTensor("float32", inputs[0].shape)]


def swirl_dispatch(inputs: Any, outputs: Any, attributes: Mapping[str, Any]) -> KpDispatch:
    return KpDispatch((outputs[0].size, 1, 1), push_constants=(attributes.get("gain", 1.0), inputs[1].size))


def split_dispatch(inputs: Any, outputs: Any, attributes: Mapping[str, Any]) -> KpDispatch:
    return KpDispatch((-(-inputs[0].size // 16), 1, 1), spec_constants=(16, attributes["limit"]))


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    """Swirl(x, w): gain * x + w, repeated; Split(x): the sign against a limit, and twice x in float64."""
    register_kp_operator(
        "Swirl", domain=DOMAIN, shader=DATA / "swirl.comp", outputs=swirl_outputs, dispatch=swirl_dispatch
    )
    register_kp_operator(
        "Split",
        domain=DOMAIN,
        shader=DATA / "split.comp",
        outputs=lambda inputs, _: [KpTensor("int32", inputs[0].shape), KpTensor("float64", inputs[0].shape)],
        dispatch=split_dispatch,
    )
    yield
    unregister_kp_operator("Swirl", domain=DOMAIN)
    unregister_kp_operator("Split", domain=DOMAIN)


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    domain = DOMAIN if op in ("Swirl", "Split", "Other") else ""
    return helper.make_node(op, inputs, outputs, name=f"{op} {outputs[0]}", domain=domain, **attributes)


def model(nodes: list[onnx.NodeProto], outputs: Mapping[str, int], shape: Any = X.shape) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)], ir_version=8
    )


MIDDLE = [
    node("Exp", ["x"], ["a"]),
    node("Swirl", ["a", "w"], ["b"], gain=0.5),
    node("Sin", ["b"], ["y"]),
]


def want(x: np.ndarray) -> np.ndarray:
    return np.sin(np.float32(0.5) * np.exp(x) + W)


def places(session: InferenceSession) -> dict[str, str]:
    return {n.op_type: n.where for n in session.report().nodes}


def test_a_region_between_two_vulkan_regions(open_session: Callable[..., InferenceSession]) -> None:
    session = open_session(model(MIDDLE, {"y": TensorProto.FLOAT}))
    assert places(session) == {"Exp": "vulkan", "Swirl": "kompute", "Sin": "vulkan"}
    for scale in (1.0, -0.5, 0.25):  # replays with new content
        x = X * np.float32(scale)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], want(x), rtol=1e-5, atol=1e-6)


def test_the_report_tells_whose_device_and_the_cost(open_session: Callable[..., InferenceSession]) -> None:
    session = open_session(model(MIDDLE, {"y": TensorProto.FLOAT}))
    (before,) = session.report().kompute
    assert (before.nodes, before.submits, before.bytes_in, before.bytes_out, before.runs) == (1, 1, 96, 96, 0)
    session.run(None, {"x": X})
    report = session.report()
    (after,) = report.kompute
    assert after.runs == 1 and all(ns > 0 for ns in after.last_ns)
    assert after.device == session.context.capabilities.name
    assert "kp's own instance and device; through the host 96 bytes in and 96 out a run" in str(report)
    assert "declined by vulkan: com.example.kp.Swirl is no operator" in str(report)
    assert report.to_dict()["kompute"][0]["bytes_in"] == 96


def test_a_chain_in_one_region_sees_what_came_before(open_session: Callable[..., InferenceSession]) -> None:
    """Each link reads what the last one wrote: kp puts no barrier between dispatches, so they are submits of their own."""
    links = [node("Swirl", [f"v{k}" if k else "x", "w"], [f"v{k + 1}"], gain=1.5) for k in range(6)]
    session = open_session(model(links, {"v6": TensorProto.FLOAT, "v3": TensorProto.FLOAT}))
    (region,) = session.report().kompute
    assert (region.nodes, region.submits, region.bytes_in, region.bytes_out) == (6, 6, 96, 192)
    expected = [X]
    for _ in range(6):
        expected.append(np.float32(1.5) * expected[-1] + W)
    sixth, third = session.run(None, {"x": X})
    np.testing.assert_allclose(sixth, expected[6], rtol=1e-5)
    np.testing.assert_allclose(third, expected[3], rtol=1e-5)


def test_types_outputs_and_specialization(open_session: Callable[..., InferenceSession]) -> None:
    nodes = [node("Split", ["x"], ["sign", "twice"], limit=0.25), node("Neg", ["sign"], ["turned"])]
    session = open_session(model(nodes, {"turned": TensorProto.INT32, "twice": TensorProto.DOUBLE}))
    turned, twice = session.run(None, {"x": X})
    np.testing.assert_array_equal(turned, np.where(X < 0.25, 1, -1))
    np.testing.assert_array_equal(twice, X.astype(np.float64) * 2)
    assert turned.dtype == np.int32 and twice.dtype == np.float64


def test_spirv_instead_of_glsl(open_session: Callable[..., InferenceSession], tmp_path: Path) -> None:
    code = ShaderLibrary().spirv(ShaderVariant(str(DATA / "swirl.comp"))).words
    (tmp_path / "swirl.spv").write_bytes(code)
    for shader in (code, tmp_path / "swirl.spv"):
        unregister_kp_operator("Swirl", domain=DOMAIN)
        register_kp_operator("Swirl", domain=DOMAIN, shader=shader, outputs=swirl_outputs, dispatch=swirl_dispatch)
        session = open_session(model(MIDDLE, {"y": TensorProto.FLOAT}))
        np.testing.assert_allclose(session.run(None, {"x": X})[0], want(X), rtol=1e-5, atol=1e-6)


def test_dynamic_shapes(open_session: Callable[..., InferenceSession]) -> None:
    session = open_session(model(MIDDLE, {"y": TensorProto.FLOAT}, shape=["n", 4]))
    for n in (1, 5, 2, 5):
        x = np.random.default_rng(n).uniform(-1, 1, (n, 4)).astype(np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], want(x), rtol=1e-5, atol=1e-6)
        assert places(session)["Swirl"] == "kompute"


def test_threads_share_a_session(open_session: Callable[..., InferenceSession]) -> None:
    session = open_session(model(MIDDLE, {"y": TensorProto.FLOAT}))
    errors: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for i in range(8):
                x = X * np.float32((k * 8 + i + 1) / 32)
                np.testing.assert_allclose(session.run(None, {"x": x})[0], want(x), rtol=1e-5, atol=1e-6)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_sessions_share_kps_device_and_the_last_ends_it(open_session: Callable[..., InferenceSession]) -> None:
    assert not KpDevice._shared
    first, second = (open_session(model(MIDDLE, {"y": TensorProto.FLOAT})) for _ in range(2))
    (device,) = KpDevice._shared.values()
    assert device.users == 2
    first.close()
    np.testing.assert_allclose(second.run(None, {"x": X})[0], want(X), rtol=1e-5, atol=1e-6)
    second.close()
    assert not KpDevice._shared


def test_the_applications_logging_stays_as_it_is(open_session: Callable[..., InferenceSession]) -> None:
    before = list(logging.getLogger().handlers)
    open_session(model(MIDDLE, {"y": TensorProto.FLOAT}))
    assert logging.getLogger().handlers == before


def test_between_a_data_graph_and_vulkan(vulkan: Any) -> None:
    """VGF -> kp -> VGF -> Vulkan: each other region reads its input on the device that they share."""
    from tests.vgf.harness import need_vgf

    need_vgf()
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Swirl", ["a", "w"], ["b"], gain=0.5),
        node("Abs", ["b"], ["c"]),
        node("Add", ["c", "w"], ["d"]),
        node("Exp", ["d"], ["e"]),
        node("Acosh", ["e"], ["f"]),
        node("Sin", ["f"], ["y"]),
    ]
    with InferenceSession(model(nodes, {"y": TensorProto.FLOAT}), prefer="vgf_first", token="kp and vgf") as session:
        if session.report().why_no_graphs:
            pytest.skip(session.report().why_no_graphs)
        where = [n.where for n in session.report().nodes]
        assert where == ["vgf", "kompute", "vgf", "vgf", "vgf", "vulkan", "vgf"]
        for scale in (1.0, -0.5):
            x = X * np.float32(scale)
            swirled = np.float32(0.5) * np.exp(x) + W
            expected = np.sin(np.arccosh(np.exp(np.abs(swirled) + W)))
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=2e-4, atol=1e-4)


# ---- refusals


def test_without_kp_the_node_is_refused_with_what_to_do(
    open_session: Callable[..., InferenceSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkep.placement import kompute

    monkeypatch.setattr(kompute, "available", lambda: False)
    with pytest.raises(UnsupportedModelError, match=r"kompute: the package kp is not installed: .*build_kp\.sh"):
        open_session(model(MIDDLE, {"y": TensorProto.FLOAT}))


@pytest.mark.parametrize(
    ("outputs", "dispatch", "message"),
    [
        (lambda i, a: [], swirl_dispatch, "tells of 0 outputs; the node has 1"),
        (lambda i, a: [KpTensor("float16", (3,))], swirl_dispatch, "output 0 is float16; kp has tensors of float32"),
        (lambda i, a: [KpTensor("float32", (0, 3))], swirl_dispatch, "output 0 is empty"),
        (lambda i, a: [KpTensor("float32", (a["missing"],))], swirl_dispatch, "does not fit the node: KeyError"),
        (swirl_outputs, lambda i, o, a: KpDispatch((0, 1, 1)), r"workgroups are \(0, 1, 1\)"),
        (swirl_outputs, lambda i, o, a: KpDispatch((1, 1, 1), (2**40,)), "push constants: 1099511627776 is no 32-bit"),
    ],
)
def test_a_registration_that_does_not_fit(
    open_session: Callable[..., InferenceSession], outputs: Any, dispatch: Any, message: str
) -> None:
    register_kp_operator("Other", domain=DOMAIN, shader=DATA / "swirl.comp", outputs=outputs, dispatch=dispatch)
    try:
        with pytest.raises(UnsupportedModelError, match=message):
            open_session(model([node("Other", ["x", "w"], ["y"])], {"y": TensorProto.FLOAT}))
    finally:
        unregister_kp_operator("Other", domain=DOMAIN)


@pytest.mark.parametrize(
    ("inputs", "dispatch", "message"),
    [
        (["x"], lambda i, o, a: KpDispatch((1, 1, 1), (1.0, 1)), r"bindings .*\(0, 2\).*kp binds set 0, 0 to 1"),
        (
            ["x", "w"],
            lambda i, o, a: KpDispatch((1, 1, 1)),
            "reads 8 bytes of push constants; the registration gives 0",
        ),
    ],
)
def test_a_shader_that_does_not_fit(
    open_session: Callable[..., InferenceSession], inputs: list[str], dispatch: Any, message: str
) -> None:
    register_kp_operator("Other", domain=DOMAIN, shader=DATA / "swirl.comp", outputs=swirl_outputs, dispatch=dispatch)
    try:
        with pytest.raises(KomputeError, match=message):
            open_session(model([node("Other", inputs, ["y"])], {"y": TensorProto.FLOAT}))
        assert not KpDevice._shared
    finally:
        unregister_kp_operator("Other", domain=DOMAIN)


def test_bad_registrations(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"com\.example\.kp\.Swirl is registered already"):
        register_kp_operator("Swirl", domain=DOMAIN, shader=DATA / "swirl.comp", outputs=swirl_outputs)
    with pytest.raises(ValueError, match="a domain of its own"):
        register_kp_operator("Relu", domain="", shader=DATA / "swirl.comp", outputs=swirl_outputs)
    with pytest.raises(ValueError, match="expected an identifier"):
        register_kp_operator("a b", domain=DOMAIN, shader=DATA / "swirl.comp", outputs=swirl_outputs)
    with pytest.raises(ValueError, match="are no SPIR-V"):
        register_kp_operator("New", domain=DOMAIN, shader=b"#version 450", outputs=swirl_outputs)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.comp"):
        register_kp_operator("New", domain=DOMAIN, shader=tmp_path / "nowhere.comp", outputs=swirl_outputs)
