"""Options and arguments of the wrong kind: said by name, with what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

from tests.session.models import ADD_RELU, DYNAMIC
from vkep import InferenceSession, InvalidInputError, SessionOptions, dtypes
from vkep.memory import ArenaConfig

FEEDS = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
Open = Callable[..., InferenceSession]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("arena", 5, "arena is 5, expected a dict of settings"),
        ("arena", None, "arena is None, expected a dict of settings"),
        ("cache_dir", 5, "cache_dir is 5, expected a path or None"),
        ("base_dir", b"x", "base_dir is b'x', expected a path or None"),
        ("save_plans", "yes", "save_plans is 'yes', expected True or False"),
        ("validation", "x", "validation is 'x', expected True, False or None"),
        ("progress", 5, "progress is 5, expected a function or None"),
        ("tuned", 5, "tuned is 5, expected a dict from problems to tilings, or None"),
        ("tuned", {"a": 1}, "tuned['a'] is 1, expected a tuple of integers"),
        ("tuned", {"a": ("1",)}, "tuned['a'] is ('1',), expected a tuple of integers"),
    ],
)
def test_options_of_the_wrong_kind(name: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        SessionOptions(**{name: value})


def test_an_empty_cache_dir_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_dir is empty, expected the path of a folder"):
        SessionOptions(cache_dir="")


def test_the_arenas_settings_with_and_without_their_prefix() -> None:
    assert SessionOptions().arena_config() is None
    for key in ("max_mem", "arena.max_mem"):
        assert SessionOptions(arena={key: 1 << 20}).arena_config() == ArenaConfig(max_mem=1 << 20)
    for key in ("max_mems", "session.threads"):
        with pytest.raises(ValueError, match=f"unknown arena option '{key}'"):
            SessionOptions(arena={key: 1}).arena_config()


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(
        TypeError, match=r"'fallbak' of InferenceSession \(did you mean 'fallback'\?\); known: context, "
    ):
        InferenceSession(ADD_RELU, fallbak="cpu")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unknown option 'no_such_thing' of InferenceSession; known: "):
        InferenceSession(ADD_RELU, no_such_thing=1)  # type: ignore[call-arg]
    options = SessionOptions()
    with pytest.raises(
        AttributeError, match=r"SessionOptions has no 'intra_op_num_thread' \(did you mean 'intra_op_num_threads'\?\)"
    ):
        options.intra_op_num_thread = 4  # type: ignore[attr-defined]
    with pytest.raises(NotImplementedError, match="vkep writes no model"):
        options.optimized_model_filepath = "x.onnx"
    with pytest.raises(
        ValueError, match=r"unknown option 'fallbak' of VulkanExecutionProvider \(did you mean 'fallback'\?\)"
    ):
        options.add_session_config_entry("ep.vulkanexecutionprovider.fallbak", "error")
    options.add_session_config_entry("ep.vulkanexecutionprovider.fallback", "error")
    assert options.fallback == "error"


@pytest.mark.parametrize(
    ("providers", "options", "message"),
    [
        ("VulkanExecutionProvider", None, "expected a list of names"),
        ([5], None, "providers has 5, expected a name"),
        (["VulkanExecutionProvider"], [{}, {}], "expected a dict for each of 1 providers"),
        (["VulkanExecutionProvider"], [{"concurency": 1}], "did you mean 'concurrency'"),
        (
            ["VulkanExecutionProvider"],
            [{"group_id": "first"}],
            "option 'group_id' is 'first', expected a whole number",
        ),
        (["VulkanExecutionProvider"], [{"user_compute_stream": "140000"}], "a CUDA stream orders no Vulkan work"),
        (["VulkanExecutionProvider"], [{"gpu_mem_limit": 1, "arena.max_mem": 2}], "'arena.max_mem' by another name"),
        (None, [{}], "provider_options without providers"),
    ],
)
def test_providers_of_the_wrong_kind(providers: Any, options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        InferenceSession(ADD_RELU, providers=providers, provider_options=options)


def test_options_of_cuda_without_a_meaning_are_said(caplog: pytest.LogCaptureFixture) -> None:
    from vkep.session.ort_interface.options import session_overrides

    with caplog.at_level("WARNING", logger="vkep.session"):
        made = session_overrides({"use_tf32": "1", "gpu_mem_limit": str(2**64 - 1), "has_user_compute_stream": "0"})
    assert made == {"arena": {"arena.max_mem": "0"}}
    assert "option use_tf32=1 has no effect on Vulkan: float32 is computed in float32" in caplog.text


@pytest.mark.parametrize("options", [{"fallback": "cpu"}, {}, object()])
def test_options_of_another_library(options: Any) -> None:
    expected = rf"options is of {re.escape(str(type(options)))}, expected vkep\.SessionOptions"
    with pytest.raises(TypeError, match=expected):
        InferenceSession(ADD_RELU, options)


def test_arguments_of_the_wrong_kind(open_session: Open) -> None:
    session: Any = open_session(ADD_RELU)
    arrays = list(FEEDS.values())
    for feeds in (None, arrays, arrays[0]):
        kind = type(feeds).__name__
        for use in (lambda f: session.run(None, f), session.profile, session.profile_regions):
            with pytest.raises(TypeError, match=f"feeds is a {kind}, expected a dict from input names to arrays"):
                use(feeds)
    for names in ("y", 5):  # the first would be an output for each letter
        with pytest.raises(TypeError, match=f"output_names is a {type(names).__name__}, expected a list of names"):
            session.run(names, FEEDS)
    (y,) = session.run((name for name in ["y"]), FEEDS)
    np.testing.assert_array_equal(y, np.full((2, 3), 2))
    dynamic: Any = open_session(DYNAMIC)
    with pytest.raises(TypeError, match="shapes is a list, expected a dict from input names to shapes"):
        dynamic.plan([(2, 3), (3,)])


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        ((2, -3), ValueError, r"shape is \(2, -3\), expected sizes of 0 or more"),
        ((-2, -3), ValueError, r"shape is \(-2, -3\)"),
        (5, TypeError, "shape is 5, expected a sequence of integers"),
        ("12", TypeError, "shape is '12'"),
        ((2.7,), TypeError, r"shape is \(2\.7,\)"),
    ],
)
def test_shapes_that_no_tensor_has(open_session: Open, shape: Any, error: type[Exception], message: str) -> None:
    session = open_session(ADD_RELU)
    with pytest.raises(error, match=message):
        session.empty_device_tensor(shape)
    with session.empty_device_tensor([np.int64(2), 0]) as tensor:
        assert tensor.shape == (2, 0)


IDENTITY = '<ir_version: 10, opset_import: ["" : 21]> g ({type}[n] x) => ({type}[n] y) {{ y = Identity(x) }}'


@pytest.mark.parametrize(
    "name", ["float", "float16", "double", "bfloat16", "int8", "int32", "int64", "uint8", "uint64", "bool"]
)
def test_lists_of_numbers_take_the_inputs_type(open_session: Open, name: str) -> None:
    session = open_session(parser.parse_model(IDENTITY.format(type=name)))
    expected = np.array([0, 1, 1], helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name.upper())))
    for numbers in ([0.0, 1.0, 1.0], [0, 1, 1], (False, True, True), [np.int64(0), 1, 1.0]):
        (y,) = session.run(None, {"x": numbers})
        assert y.dtype == expected.dtype and y.tolist() == expected.tolist()
    assert session.run(None, {"x": []})[0].shape == (0,)
    wrong: list[Any] = [["1"], [None], [[1], [2, 3]], [1j], [1 << 70]]
    if dtypes.DTYPES[expected.dtype.name].kind != "float":
        wrong += [[0.5], [300.5], [float("nan")]]
    for numbers in wrong:
        with pytest.raises(InvalidInputError, match="input 'x'"):
            session.run(None, {"x": numbers})
    other = np.zeros(3, np.uint16)  # an array has a type, which nothing converts
    with pytest.raises(InvalidInputError, match="got dtype uint16"):
        session.run(None, {"x": other})
