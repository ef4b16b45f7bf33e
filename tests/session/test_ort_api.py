"""vkep has the public names of the newest onnxruntime, with their parameters and defaults, or a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

import vkep
from tests.processes import python
from tools import ort_api
from vkep.device import fresh

onnxruntime = pytest.importorskip("onnxruntime")
Open = Callable[..., vkep.InferenceSession]
MODEL = '<ir_version: 9, opset_import: ["": 18]> g (float[n,3] x) => (float[n,3] y) { y = Relu(x) }'
RANDOM = '<ir_version: 9, opset_import: ["": 18]> g () => (float[4] y) { y = RandomNormal<shape = [4]>() }'
X = np.ones((2, 3), np.float32)


def test_each_name_is_there_or_has_a_reason() -> None:
    found = {name: how for name, how in ort_api.differences(onnxruntime, vkep) if name not in ort_api.DIFFERENT}
    absent = {name for name, how in found.items() if how == "absent"}
    assert {name: how for name, how in found.items() if name not in ort_api.ABSENT} == {}
    newest = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) >= (1, 32)
    if newest:  # a reason for a name that vkep has
        assert absent == set(ort_api.ABSENT)


def test_the_comparison_sees_what_differs() -> None:
    def theirs(a: int, b: int = 1, *, c: int = 2) -> None: ...

    def fewer(a: int) -> None: ...

    def renamed(a: int, x: int = 1, *, c: int = 2) -> None: ...

    def other(a: int, b: int = 3, *, c: int = 2) -> None: ...

    def moved(b: int, a: int, *, c: int = 2) -> None: ...

    def more(a: int, b: int = 1, d: int = 5, *, c: int = 2) -> None: ...

    assert ort_api.unlike(theirs, theirs) == ort_api.unlike(theirs, more) == ""
    assert ort_api.unlike(theirs, fewer) == ort_api.unlike(theirs, renamed) == "no parameter 'b'"
    assert ort_api.unlike(theirs, other) == "'b' is 3 by default, not 1"
    assert ort_api.unlike(theirs, moved) == "'a' has another position"


@pytest.mark.parametrize("kind", ["SessionOptions", "RunOptions"])
def test_attributes_have_the_same_values_at_first(kind: str) -> None:
    theirs, ours = getattr(onnxruntime, kind)(), getattr(vkep, kind)()
    for name in ort_api.members(getattr(onnxruntime, kind)):
        value = getattr(theirs, name)
        if not callable(value) and f"{kind}.{name}" not in ort_api.DIFFERENT:
            expected = int(value) if hasattr(value, "value") else value
            assert getattr(ours, name) == expected, name


@pytest.mark.gpu
def test_onnxruntimes_own_options_are_read(open_session: Open, tmp_path: Path) -> None:
    proto = parser.parse_model(MODEL)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = 3
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    options.add_session_config_entry("ep.vulkanexecutionprovider.concurrency", "1")
    options.add_session_config_entry("ep.vulkanexecutionprovider.arena.max_mem", "1073741824")
    session = open_session(proto, sess_options=options, fallback="error")
    mine = session.get_session_options()
    assert (mine.intra_op_num_threads, mine.graph_optimization_level, mine.enable_profiling) == (3, 1, True)
    assert (mine.concurrency, mine.fallback, mine.arena) == (1, "error", {"arena.max_mem": "1073741824"})
    run = onnxruntime.RunOptions()
    np.testing.assert_array_equal(session.run(None, {"x": X}, run)[0], X)
    run.terminate = True
    with pytest.raises(vkep.RunTerminatedError):
        session.run(None, {"x": X}, run)
    assert Path(session.end_profiling()).parent == tmp_path
    for name, value in (("optimized_model_filepath", "a.onnx"), ("ep.context_enable", "1")):
        refused = onnxruntime.SessionOptions()
        if "." in name:
            refused.add_session_config_entry(name, value)
        else:
            setattr(refused, name, value)
        with pytest.raises(NotImplementedError, match=name):
            open_session(proto, sess_options=refused)
    with pytest.raises(TypeError, match=r"sess_options is of .*, expected vkep\.SessionOptions or onnxruntime"):
        open_session(proto, sess_options=run)


@pytest.mark.gpu
def test_providers_of_an_open_session(open_session: Open) -> None:
    session = open_session(parser.parse_model(MODEL))
    caps = session.context.capabilities
    session.set_providers(["VulkanExecutionProvider"], [{"device_id": caps.index}])
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        session.set_providers(["CUDAExecutionProvider"])
    with pytest.raises(NotImplementedError, match=r"'fallback': 'error'.* open another"):
        session.set_providers([("VulkanExecutionProvider", {"fallback": "error"})])
    device = next(d for d in vkep.get_ep_devices() if d.ep_options == {"device": str(caps.index)})
    assert session.get_input_epdevices() == [device] and device.device.type == vkep.OrtHardwareDeviceType.GPU
    options = vkep.SessionOptions()
    options.add_provider_for_devices([device], {"fallback": "error"})
    assert (options.device, options.fallback, options.has_providers()) == (caps.index, "error", True)
    session.run(None, {"x": X})
    (part,) = session.get_provider_graph_assignment_info()
    assert (part.ep_name, [n.op_type for n in part.get_nodes()]) == ("VulkanExecutionProvider", ["Relu"])


@pytest.mark.gpu
def test_sizes_by_denotation(open_session: Open) -> None:
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[n,c,3] x) => (float[n,c,3] y) { y = Relu(x) }'
    )
    for axis, meaning in enumerate(("DATA_BATCH", "DATA_CHANNEL")):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].denotation = meaning
    proto.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    options = vkep.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    options.add_free_dimension_override_by_name("c", 4)
    assert open_session(proto, sess_options=options).get_inputs()[0].shape == [2, 4, 3]


@pytest.mark.gpu
def test_where_values_are(open_session: Open) -> None:
    session = open_session(parser.parse_model(MODEL))
    assert [info.name for info in session.get_input_memory_infos() + session.get_output_memory_infos()] == [
        "Cpu",
        "Cpu",
    ]
    (device,) = session.get_input_epdevices()
    there = device.memory_info(vkep.OrtDeviceMemoryType.DEFAULT)
    assert there is not None and there.device_id == session.context.capabilities.index
    assert device.memory_info(vkep.OrtDeviceMemoryType.HOST_ACCESSIBLE) is None
    value = vkep.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, memory_info=there)
    assert value.device_name() == "vulkan"
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output("y", value)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(value.numpy(), X)
    for name in ("cuda", "dml"):  # a value has the name that the program gave the device
        binding.bind_output("y", name)
        session.run_with_iobinding(binding)
        assert binding.get_outputs()[0].device_name() == name


def test_settings_of_arenas_and_entries() -> None:
    settings = vkep.OrtArenaCfg({"max_mem": 16, "initial_chunk_size_bytes": 8})
    assert (settings.max_mem, settings.initial_chunk_size_bytes, settings.max_dead_bytes_per_chunk) == (16, 8, -1)
    assert vkep.OrtArenaCfg(8, 0, 4, 2).max_dead_bytes_per_chunk == 2
    with pytest.raises(ValueError, match="OrtArenaCfg has no 'max_men'"):
        vkep.OrtArenaCfg({"max_men": 16})
    with pytest.raises(RuntimeError, match="does not have configuration with key: a"):
        vkep.SessionOptions().get_session_config_entry("a")
    with pytest.raises(RuntimeError, match="does not have configuration with key: a"):
        vkep.RunOptions().get_run_config_entry("a")
    with pytest.raises(AttributeError, match="has no 'OrtValue'"):  # there it is the class below the package's
        vkep.capi.onnxruntime_pybind11_state.OrtValue  # noqa: B018
    assert vkep.capi._pybind_state.RunOptions is vkep.RunOptions
    x = vkep.OrtValue.ortvalue_from_numpy(X)
    assert vkep.OrtValue.from_dlpack(x.__dlpack__()).data_ptr() == x.data_ptr()


@pytest.mark.gpu
def test_a_seed_repeats_random_numbers(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "_source", fresh._source)  # restored afterwards
    session = open_session(parser.parse_model(RANDOM))

    def draws() -> list[list[float]]:
        return [session.run(None, {})[0].tolist() for _ in range(3)]

    vkep.set_seed(5)
    first = draws()
    vkep.set_seed(5)
    assert draws() == first and len({tuple(numbers) for numbers in first}) == 3
    for other in (6, -5):
        vkep.set_seed(other)
        assert draws() != first
    with pytest.raises(TypeError):
        vkep.set_seed("five")  # type: ignore[arg-type]


def test_log_messages_go_to_a_callback() -> None:
    done = python("""
        import logging, vkep
        seen = []
        vkep.set_default_logger_callback(lambda *message: seen.append(message), 1)
        logging.getLogger("vkep.session").info("a %s", "text")
        logging.getLogger("vkep.session").debug("less")
        vkep.set_default_logger_callback(None)
        logging.getLogger("vkep.session").error("later")
        (message,) = seen
        print(message[:3], message[4])
    """)
    assert done.stdout == "(1, 'vkep.session', '') a text\n", done.stderr
