"""`vkep.streaming`: states stay on the device between chunks, and the results are ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import vkep
from tests.session.models import model
from tools.ort_cpu import cpu_session
from vkep.graph.load import load_model
from vkep.models.streams import CHUNKS, FEATURES, FRAMES, recognizer, voice_activity
from vkep.streaming import StreamingSession, pairs_by_name

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(7)
Array = np.ndarray[Any, Any]
#: a GRU, whose state is named as DeepFilterNet's and silero-vad's older models name theirs
GRU = model(
    "g (float[frames,batch,8] x, float[1,batch,6] h, float[1,18,8] w, float[1,18,6] r)"
    " => (float[frames,1,batch,6] y, float[1,batch,6] hn) { y, hn = GRU<hidden_size=6>(x, w, r, , , h) }"
)
WEIGHTS = {"w": RNG.normal(size=(1, 18, 8)).astype(np.float32), "r": RNG.normal(size=(1, 18, 6)).astype(np.float32)}
COUNTER = model("g (int64[1] total, int64[1] step) => (int64[1] total_out, int64[1] y)"
                " { total_out = Add(total, step) y = Mul(total_out, step) }")  # fmt: skip


class Reference:
    """ONNX Runtime's CPU, with the states on the host."""

    def __init__(self, proto: onnx.ModelProto, states: Mapping[str, str], streams: int) -> None:
        self._session = cpu_session(proto.SerializeToString())
        self._states, self._outputs = states, [o.name for o in self._session.get_outputs()]
        kinds = {i.name: (i.shape, np.int64 if "int64" in i.type else np.float32) for i in self._session.get_inputs()}
        self.state: dict[str, Array] = {
            name: np.zeros([d if isinstance(d, int) else streams for d in kinds[name][0]], kinds[name][1])
            for name in states.values()
        }

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        results = dict(zip(self._outputs, self._session.run(None, {**feeds, **self.state}), strict=True))
        self.state = {name: results.pop(output) for output, name in self._states.items()}
        return results

    def by_stream(self, name: str) -> Array:
        """A view of a state, stream by stream."""
        return np.moveaxis(self.state[name], 1 if "key" in name or "val" in name else 0, 0)


def compare(session: StreamingSession, reference: Reference, feeds: Mapping[str, Any], extra: Any = None) -> None:
    expected = reference.run({**feeds, **(extra or {})})
    for name, mine in zip(expected, session.run(list(expected), feeds), strict=True):
        np.testing.assert_allclose(mine, expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("streams", [1, 3])
def test_a_gru_goes_on_where_the_last_chunk_ended(streams: int) -> None:
    reference = Reference(GRU, {"hn": "h"}, streams)
    with StreamingSession(GRU, streams=streams, constants=WEIGHTS, fallback="error") as session:
        assert session.states == {"hn": "h"}
        for frames in (5, 5, 2, 7):  # chunks of several lengths
            compare(session, reference, {"x": RNG.normal(size=(frames, streams, 8)).astype(np.float32)}, WEIGHTS)


@pytest.mark.parametrize("rate", CHUNKS)
def test_voice_activity_runs_the_branch_of_its_sampling_rate(rate: int) -> None:
    proto, given = voice_activity(), {"sr": np.array(rate)}
    reference, other = (Reference(proto, {"stateN": "state"}, 2) for _ in range(2))
    with (
        StreamingSession(proto, streams=2, constants={"sr": rate}, fallback="error") as session,
        StreamingSession(proto, streams=2, fallback="error") as fed,
    ):
        for _ in range(3):
            chunk = {"input": RNG.normal(size=(2, CHUNKS[rate])).astype(np.float32)}
            compare(session, reference, chunk, given)
            compare(fed, other, {**chunk, **given})
        assert len(session.session.islands()) == 1  # one submit: the branch is part of the plan


@pytest.fixture(scope="module")
def recognized() -> Iterator[StreamingSession]:
    with StreamingSession(recognizer(), streams=3, fallback="error") as session:
        yield session


def chunk(streams: int = 3) -> dict[str, Array]:
    return {"x": RNG.normal(size=(streams, FRAMES, FEATURES)).astype(np.float32)}


def test_thirty_states_of_three_streams(recognized: StreamingSession) -> None:
    assert len(recognized.states) == 30
    recognized.reset()
    reference = Reference(recognizer(), recognized.states, 3)
    for _ in range(3):
        compare(recognized, reference, chunk())
    with recognized.copy() as state:
        for name, tensor in state.tensors.items():
            np.testing.assert_allclose(tensor.numpy(), reference.state[name], rtol=1e-4, atol=1e-4)


def test_a_copy_of_the_state_brings_all_streams_back(recognized: StreamingSession) -> None:
    recognized.run(None, chunk())
    again = chunk()
    with recognized.copy() as state:
        (first,) = recognized.run(None, again)
        recognized.run(None, chunk())
        recognized.restore(state)
        np.testing.assert_array_equal(recognized.run(None, again)[0], first)


def test_streams_begin_and_change_places_one_by_one(recognized: StreamingSession) -> None:
    recognized.reset()
    reference = Reference(recognizer(), recognized.states, 3)
    compare(recognized, reference, chunk())
    recognized.reset([1])
    for name in reference.state:
        reference.by_stream(name)[1] = 0
    compare(recognized, reference, chunk())
    with recognized.copy() as state:
        recognized.restore(state, [0, 1], of=[1, 2])
    for name in reference.state:
        reference.by_stream(name)[:2] = reference.by_stream(name)[1:].copy()
    compare(recognized, reference, chunk())


def test_results_stay_on_the_device(recognized: StreamingSession) -> None:
    recognized.reset()
    given = chunk()
    (there,) = recognized.run(["log_probs"], given, device="gpu")
    recognized.reset()
    (here,) = recognized.run(["log_probs"], given)
    assert isinstance(there, vkep.DeviceTensor)
    np.testing.assert_array_equal(there.numpy(), here)


def test_first_values_and_whole_numbers() -> None:
    with StreamingSession(COUNTER, initial={"total": np.array([40])}) as session:
        assert [int(session.run(["y"], {"step": np.array([1])})[0][0]) for _ in range(2)] == [41, 42]
        session.reset([0])
        assert int(session.run(["y"], {"step": np.array([1])})[0][0]) == 41


def test_after_an_error_of_the_data_the_states_are_reset() -> None:
    proto = model(
        "g (int64[1] at, float[4] x, float[1] s) => (float[1] s_out, float[1] y)"
        " { y = Gather(x, at) s_out = Add(s, y) }"
    )
    x = np.arange(4, dtype=np.float32)
    with StreamingSession(proto, {"s_out": "s"}) as session:
        session.run(None, {"at": np.array([2]), "x": x})
        with pytest.raises(vkep.InvalidInputError, match="Gather"):
            session.run(None, {"at": np.array([9]), "x": x})
        session.reset()
        assert session.run(None, {"at": np.array([1]), "x": x})[0] == [1]
        with session.copy() as state:
            assert state.tensors["s"].numpy() == [1]


def test_pairs_are_found_by_name_type_and_shape() -> None:
    def found(text: str) -> dict[str, str]:
        return pairs_by_name(load_model(model(text)))

    assert found(
        "g (float[2] cache_in, float[2] c, float[2] x) => (float[2] cache_out, float[2] cn, float[2] x_next)"
        " { cache_out = Neg(cache_in) cn = Neg(c) x_next = Neg(x) }"
    ) == {"cache_out": "cache_in", "cn": "c", "x_next": "x"}
    with pytest.raises(vkep.InvalidModelError, match=r"states=\{output: input\}"):
        found("g (float[2] x) => (float[1,2] x_out) { a = Constant<value_ints=[0]>() x_out = Unsqueeze(x, a) }")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"streams": 0}, "streams is 0"),
        ({"states": {"hn": "x"}}, "output 'hn' is float32"),
        ({"states": {"h": "hn"}}, "expected pairs of the outputs"),
        ({"initial": {"x": np.zeros(1)}}, "'x' is no state"),
        ({"initial": {"h": np.zeros((1, 4, 6))}}, r"shape \(1, 4, 6\), expected \(1, 2, 6\)"),
        ({"constants": {"rate": 1}}, "'rate' is no input"),
        ({"constants": {**WEIGHTS, "w": np.ones((1, 18, 9))}}, r"'w' has shape \[1, 18, 9\], expected \[1, 18, 8\]"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with (
        pytest.raises((vkep.InvalidInputError, vkep.InvalidModelError), match=message),
        StreamingSession(GRU, **{"streams": 2, "constants": WEIGHTS, **arguments}) as session,
    ):
        session.run(None, {"h": np.zeros((1, 2, 6), np.float32)})


def test_a_chunk_has_as_many_streams_as_the_session() -> None:
    with (
        StreamingSession(GRU, streams=2, constants=WEIGHTS) as session,
        pytest.raises(vkep.InvalidInputError, match="expected 2"),
    ):
        session.run(None, {"x": np.zeros((5, 1, 8), np.float32)})


def test_an_output_may_be_asked_for_twice() -> None:
    with StreamingSession(COUNTER) as session:
        one, other = session.run(["y", "y"], {"step": np.array([3])})
        np.testing.assert_array_equal([one, other], [[9], [9]])


def test_wrong_feeds_and_streams(recognized: StreamingSession) -> None:
    recognized.reset()
    for wrong, message in (
        (lambda: recognized.run(None, {}), "expected ['x']"),
        (lambda: recognized.run(None, {"processed_lens": np.zeros(3)}), "is a state"),
        (lambda: recognized.run(["new_processed_lens"], chunk()), "is a state's next value"),
        (lambda: recognized.reset([3]), "from 0 to 2"),
        (lambda: recognized.restore(recognized._first, [1, 2], of=[0]), "as many of both"),
    ):
        with pytest.raises(vkep.InvalidInputError) as raised:
            wrong()
        assert message in str(raised.value)
    with StreamingSession(COUNTER) as other, pytest.raises(vkep.InvalidInputError, match="the session"):
        recognized.restore(other._first)
