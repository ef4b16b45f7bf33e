"""What type checkers find in programs. Each line with an ignored error has that error, or mypy reports the comment
(`tools/lint.sh`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import parser

import vkep
from vkep.session.options import SessionFields

if TYPE_CHECKING:
    from typing_extensions import assert_type

MODEL = parser.parse_model('<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }')
X = np.ones((2, 3), np.float32)


def test_keywords_are_the_fields_of_the_options() -> None:
    fields = vkep.SessionOptions.__dataclass_fields__
    assert SessionFields.__annotations__.keys() == fields.keys()
    for name, kind in SessionFields.__annotations__.items():
        assert kind.__forward_arg__ == fields[name].type, name


#: each line raises an error, and has one for type checkers
WRONG: list[Callable[[vkep.InferenceSession], Any]] = [
    lambda s: vkep.InferenceSession(MODEL, devcie=0),  # type: ignore[call-arg]
    lambda s: vkep.InferenceSession(MODEL, plan_cache_size="8"),  # type: ignore[arg-type]
    lambda s: vkep.InferenceSession(MODEL, providers="VulkanExecutionProvider", enable_fallback="no"),  # type: ignore[arg-type]
    lambda s: vkep.Replicas(MODEL, fallbak="error"),  # type: ignore[call-arg]
    lambda s: vkep.SessionOptions(max_run_byte=5),  # type: ignore[call-arg]
    lambda s: s.run(["y"]),  # type: ignore[call-arg]
    lambda s: s.run(["y"], {"x": X}, run_option=None),  # type: ignore[call-arg]
    lambda s: s.run(["y"], [X]),  # type: ignore[arg-type]
    lambda s: s.import_memory(5),  # type: ignore[call-overload]
    lambda s: s.io_binding().bind_input("x", "cpu"),  # type: ignore[call-overload]
    lambda s: s.io_binding().bind_input("x", X),  # type: ignore[call-overload]
    lambda s: s.io_binding().bind_output("y", device="cuda"),  # type: ignore[call-overload]
    lambda s: s.get_inputs()[0].shapes,  # type: ignore[attr-defined]
]


@pytest.mark.gpu
@pytest.mark.parametrize("call", WRONG)
def test_wrong_calls(open_session: Callable[..., vkep.InferenceSession], call: Callable[..., Any]) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        call(open_session(MODEL))


def test_attributes() -> None:
    options, run = vkep.SessionOptions(), vkep.RunOptions()
    options.graph_optimization_level = vkep.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = 2
    run.log_severity_level = 3
    with pytest.raises(AttributeError, match="did you mean 'intra_op_num_threads'"):
        options.intra_op_num_thread = 2  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no 'terminat'"):
        run.terminat = True  # type: ignore[attr-defined]


if TYPE_CHECKING:

    def types(session: vkep.InferenceSession, path: Path, value: vkep.OrtValue, descriptor: int) -> None:
        """Calls that are right, and the types of what they give."""
        vkep.InferenceSession(
            path, vkep.SessionOptions(), ["VulkanExecutionProvider"], device="llvmpipe", enable_fallback=0
        )
        y, probabilities, words = session.run(None, {"x": X, "y": [1.0], "z": value})
        best = int(y.reshape(-1).argmax())
        y.argmx()  # type: ignore[union-attr]
        y + best, np.asarray(y), [row["cat"] for row in probabilities]
        if isinstance(words, list):
            words.append(best)
        session.run_async(
            ["y"], {"x": X}, lambda results, user_data, error: print(results[0].dtype, user_data, error + "")
        )
        assert_type(session.run_with_ort_values(["y"], {"x": value}), list[vkep.OrtValue])
        assert_type(session.get_providers(), list[str])
        binding = session.io_binding()
        binding.bind_input("x", value)
        binding.bind_input("x", "cuda", 0, np.float32, (2, 3), value.data_ptr())
        binding.bind_input("x", device_type="cuda", device_id=0, element_type=1, shape=[2, 3], buffer_ptr=5)
        binding.bind_output("y")
        binding.bind_output("y", "cuda")
        binding.bind_output("y", device_type="cpu", element_type=np.float32, shape=(2, 3), buffer_ptr=5)
        session.import_memory(X)
        session.import_memory(descriptor, 64)
