"""Tuning on the device at hand: what is measured, kept, found again, and right."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from gpu_shared.capabilities import DeviceCapabilities
from tests.nightly import nightly
from vkep import InferenceSession
from vkep.cache import read_sealed, write_sealed
from vkep.device.tuning import load_choices, save_choices, tuning_path
from vkep.kernels.tuning import Trial
from vkep.session.options import SessionOptions
from vkep.session.planning import tune as tuning

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
two (float[n, 24] x) => (float[n, 40] y) {
    a = MatMul(x, w)
    b = Relu(a)
    y = MatMul(b, v)
}
"""
W, V = (np.random.default_rng(0).standard_normal(s, np.float32) for s in ((24, 32), (32, 40)))
X = np.random.default_rng(1).standard_normal((20, 24), np.float32)
EXPECTED = np.maximum(X @ W, 0) @ V


@pytest.fixture
def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(MODEL)
    made.graph.initializer.extend([numpy_helper.from_array(W, "w"), numpy_helper.from_array(V, "v")])
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path))
    return tmp_path


def run(model: onnx.ModelProto, **options: Any) -> tuple[np.ndarray, list[dict[str, int]]]:
    with InferenceSession(model, **options) as session:
        (y,) = session.run(None, {"x": X})
        return y, [dict(key.spec) for island in session.islands() for key in island.plan.pipelines]


def test_every_candidate_computes_the_same(model: onnx.ModelProto) -> None:
    trial = Trial()
    run(model, tuned=trial)
    assert {label for q in trial.asked.values() for label in q.labels} == {"MatMul_0 + Relu_1", "MatMul_2"}
    for number in range(0, max(len(q.candidates) for q in trial.asked.values()), 1 if nightly() else 5):
        choices = {key: q.candidates[number % len(q.candidates)] for key, q in trial.asked.items()}
        y, specs = run(model, tuned=choices)
        np.testing.assert_allclose(y, EXPECTED, rtol=1e-4, atol=1e-4)
        if "subgroup" in next(iter(choices)):
            assert {(s["ROWS"], s["LANE_COLUMNS"], s["UNROLL"]) for s in specs} == set(choices.values())


def test_tuning_finds_the_faster_choice(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    # times in the place of the clock's: of each problem the candidate in the middle is the fastest, but one is not again
    asked = Trial()
    run(model, tuned=asked)
    middle = {key: q.candidates[len(q.candidates) // 2] for key, q in asked.asked.items()}
    (again,) = (key for key, q in asked.asked.items() if q.labels == {"MatMul_2"})
    sessions = []

    def profile(session: InferenceSession, feeds: dict[str, np.ndarray]) -> list[list[float]]:
        if session not in sessions:
            sessions.append(session)
        session.run(None, feeds)
        tuned = session.options.tuned or {}
        second = tuned == middle
        return [
            [
                next(
                    50.0 if tuned.get(key) == middle[key] and not (second and key == again) else 100.0
                    for key, q in asked.asked.items()
                    if dispatch.label in q.labels
                )
                for dispatch in island.plan.dispatches
            ]
            for island in session.islands()
        ]

    monkeypatch.setattr(InferenceSession, "profile", profile)
    steps: list[tuple[int, int]] = []
    found = tuning.tune(
        model,
        lambda session: {"x": X},
        SessionOptions(),
        runs=2,
        progress=lambda done, total, what: steps.append((done, total)),
    )
    chosen = {one.problem: one.choice for one in found}
    assert chosen == {key: None if key == again else choice for key, choice in middle.items()}
    for one in found:
        expected = (100.0, 100.0) if one.problem == again else (100.0, 50.0)
        assert (one.default_ns, one.chosen_ns) == expected
        assert one.candidates == len(asked.asked[one.problem].candidates)
    last = steps[-1][1]
    assert [done for done, _ in steps] == [0, *range(last + 1)]
    assert {total for _, total in steps} == {0, last}  # 0: before the candidates are known
    assert all(session._parts.closed for session in sessions)


@pytest.mark.nightly
def test_a_real_measurement_gives_usable_choices(model: onnx.ModelProto) -> None:
    found = tuning.tune(model, lambda session: {"x": X}, SessionOptions(), runs=1)
    assert len(found) == 2
    assert all(one.default_ns > 0 and one.chosen_ns <= one.default_ns for one in found)
    y, _ = run(model, tuned={one.problem: one.choice for one in found if one.choice is not None})
    np.testing.assert_allclose(y, EXPECTED, rtol=1e-4, atol=1e-4)


def test_each_opening_of_a_file_asks_for_the_same_choices(model: onnx.ModelProto, tmp_path: Path, cache: Path) -> None:
    """Also once its plan is saved: with no choices, or with those that a trial is to use."""
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    asked = []
    for choices in (None, {}, {"another": (1, 2)}, {}):
        with InferenceSession(path, tuned=(trial := Trial(choices)) if choices is not None else None) as session:
            session.run(None, {"x": X})
        if choices is not None:
            asked.append({key: question.labels for key, question in trial.asked.items()})
    assert asked[0] and asked.count(asked[0]) == 3
    assert len(tuning.tune(path, lambda session: {"x": X}, SessionOptions(), runs=1)) == len(asked[0])


def test_kept_choices_are_used_by_later_sessions(model: onnx.ModelProto, cache: Path) -> None:
    trial = Trial()
    with InferenceSession(model, tuned=trial) as session:
        session.run(None, {"x": X})
        caps = session.context.capabilities
    assert load_choices(caps) == {}
    choices = {key: q.candidates[0] for key, q in trial.asked.items()}
    _, forced = run(model, tuned=choices)
    assert save_choices(caps, choices) == tuning_path(caps)
    assert load_choices(caps) == choices
    y, specs = run(model)
    assert specs == forced
    np.testing.assert_allclose(y, EXPECTED, rtol=1e-4, atol=1e-4)
    assert run(model, tuned={})[1] != forced  # the kernels' own estimates
    first, *_ = choices
    save_choices(caps, {first: None, "another": (1, 2)})
    assert load_choices(caps) == {**{k: c for k, c in choices.items() if k != first}, "another": (1, 2)}
    for damaged in ('{"choices": {"another": [Infinity]}}', '{"choices": ' + "[" * 200_000, "[]", "\0"):
        write_sealed(tuning_path(caps), damaged.encode())
        assert load_choices(caps) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"choices": 3}', '{"choices": {"a": ["x"]}}', '{"other": {}}'])
def test_a_damaged_file_is_said_and_not_used(
    model: onnx.ModelProto, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with InferenceSession(model, tuned={}) as session:
        caps = session.context.capabilities
    write_sealed(tuning_path(caps), text.encode())
    with caplog.at_level(logging.WARNING, "vkep"):
        y, _ = run(model)
    assert str(tuning_path(caps)) in caplog.text
    np.testing.assert_allclose(y, EXPECTED, rtol=1e-4, atol=1e-4)


def test_the_file_names_device_and_driver(model: onnx.ModelProto) -> None:
    with InferenceSession(model, tuned={}) as session:
        caps = session.context.capabilities
    content = read_sealed(save_choices(caps, {"k": (1,)}), 1 << 20)
    assert content is not None
    stored = json.loads(bytes(content))
    assert stored["device"] == caps.name
    assert stored["choices"] == {"k": [1]}


@pytest.mark.skipif(sys.platform == "win32", reason="FIFOs of POSIX")
def test_choices_that_this_user_did_not_seal_are_dropped(cache: Path) -> None:
    caps = DeviceCapabilities.for_tests()
    path = save_choices(caps, {"k": (1,)})
    path.write_text('{"choices": {"k": [2]}}')
    assert load_choices(caps) == {} and not path.exists()
    if sys.platform != "win32":
        os.mkfifo(path)
    assert load_choices(caps) == {} and not path.exists()
