"""Models of a service without Ray: which requests share a run, and the result of one that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import vkep
from tests.ray.virtual import played
from tests.session.models import model
from tests.session.test_replicas import lose
from vkep.serving.kserve import ProtocolError
from vkep.serving.loaded import LoadedModel, Models

SQUARE = model("g (float[n,s] x) => (float[n,s] y) { y = Mul(x, x) }")
PICK = model("g (float[n,3] x, int64[n,1] i) => (float[n,1] y) { y = GatherElements <axis = 1> (x, i) }")
UPPER = model("""g (string[n] s) => (string[n] u) { u = StringNormalizer <case_change_action = "UPPER"> (s) }""")
FIXED = model("g (float[2,3] x) => (float[2,3] y) { y = Mul(x, x) }")


class Opened:
    """Opens models and notes the rows and requests of their runs."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.runs: list[tuple[int, int]] = []
        self.models: list[LoadedModel] = []

    def __call__(self, proto: Any, rows: int = 8, version: str = "1", **more: Any) -> LoadedModel:
        def observe(name: str, version: str, rows: int, requests: int, seconds: float) -> None:
            self.runs.append((rows, requests))

        self.models.append(
            LoadedModel(
                "m",
                version,
                proto,
                more.pop("session", {}),
                pool=self._pool,
                rows=rows,
                wait_s=0.02,
                runs=2,
                observe=observe,
                **more,
            )
        )
        self.runs.clear()
        return self.models[-1]


@pytest.fixture
def opened(vulkan: object) -> Iterator[Opened]:
    with ThreadPoolExecutor(2) as pool:
        all_ = Opened(pool)
        yield all_
        for one in all_.models:
            one.renewed.close()


def ask(one: LoadedModel, *feeds: Any) -> list[Any]:
    """The answers to requests that come at once: no time passes between them."""

    async def main() -> list[Any]:
        return await asyncio.gather(*map(one.infer, feeds), return_exceptions=True)

    return played(main())


def x_of(rows: int, size: int, value: float) -> dict[str, Any]:
    return {"x": np.full((rows, size), value, np.float32)}


def test_requests_of_one_shape_share_a_run(opened: Opened) -> None:
    one = opened(SQUARE)
    found = ask(one, *(x_of(1 + at % 2, 3 + at % 3, at) for at in range(12)))
    for at, answer in enumerate(found):
        np.testing.assert_array_equal(answer["y"], np.full((1 + at % 2, 3 + at % 3), at * at, np.float32))
    assert sorted(opened.runs) == [(6, 4)] * 3


def test_strings_share_a_run(opened: Opened) -> None:
    one = opened(UPPER, independent=True)
    words = [np.array(["a", "bc"], object), np.array(["d"], object)]
    found = ask(one, *({"s": word} for word in words))
    assert [result["u"].tolist() for result in found] == [["A", "BC"], ["D"]] and opened.runs == [(3, 2)]


FILTER = model("g (float[n,4] x, bool[n] c) => (float[n,4] y) { y = Compress <axis = 0> (x, c) }")
TAGGER = model(
    "g (float[s,4] x) => (float[s,4] y) { t = Transpose (x) s = MatMul (x, t) p = Softmax (s) y = MatMul (p, x) }"
)
DIVIDED = model("g (int32[n] a, int32[n] b) => (int32[n] y) { y = Div (a, b) }")
#: rows are mixed in long sequences alone
BY_LENGTH = model(
    "g (float[n,s] x) => (float[n,s] y) { h = Shape <start = 1> (x) l = Constant <value = int64[1] {20}> () b = Less (h, l) "
    "y = If (b) <then_branch = t () => (float[n,s] u) { u = Neg (x) }, else_branch = e () => (float[n,s] u) "
    "{ k = Constant <value = int64 {0}> () u = CumSum (x, k) }> }"
)


def test_models_that_mix_rows_run_one_request_at_a_time(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    one = opened(TAGGER)
    assert "MatMul" in caplog.text and "one at a time" in caplog.text
    found = ask(one, x_of(3, 4, 0.1), x_of(5, 4, -0.2))
    np.testing.assert_allclose(found[0]["y"], np.full((3, 4), 0.1), 1e-5)
    np.testing.assert_allclose(found[1]["y"], np.full((5, 4), -0.2), 1e-5)
    assert sorted(opened.runs) == [(3, 1), (5, 1)]


def test_sizes_decide_whether_requests_share_a_run(opened: Opened) -> None:
    one = opened(BY_LENGTH)
    ask(one, x_of(1, 3, 1), x_of(1, 3, 2))
    assert opened.runs == [(2, 2)]
    found = ask(one, x_of(2, 30, 1), x_of(2, 30, 2))
    assert [answer["y"][:, 0].tolist() for answer in found] == [[1, 2], [2, 4]] and opened.runs[1:] == [(2, 1)] * 2


def rows_to_keep(count: int, value: float, keep: bool) -> dict[str, Any]:
    return {"x": np.full((count, 4), value, np.float32), "c": np.full(count, keep)}


def test_a_number_of_rows_that_differs_ends_joining(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    example = {"x": np.ones((1, 4)), "c": [True]}
    one = opened(FILTER, independent=True, example=example)
    for _ in range(2):
        found = ask(one, *(rows_to_keep(2, at, at % 2 == 0) for at in range(4)))
        assert [sorted(set(answer["y"][:, 0].tolist())) for answer in found] == [[0.0], [], [2.0], []]
    assert opened.runs == [(2, 1)] * 8
    assert caplog.text.count("from now on") == 1 and "has shape [4, 4] for 8 rows" in caplog.text


def test_rows_that_are_said_to_be_independent_are_compared(opened: Opened) -> None:
    with pytest.raises(ValueError, match="depend on other rows"):
        opened(TAGGER, independent=True, example={"x": np.arange(12).reshape(3, 4) / 10})


def test_a_model_that_takes_no_zeros(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    one = opened(DIVIDED)
    assert "a first run failed" in caplog.text and "divided by zero" in caplog.text and "examples" in caplog.text
    feeds = {"a": np.array([6], np.int32), "b": np.array([4], np.int32)}
    assert ask(one, feeds)[0]["y"].tolist() == [1]
    caplog.clear()
    opened(DIVIDED, example={"a": [6], "b": [4]})
    assert not caplog.text
    with pytest.raises(ValueError, match="expected the inputs"):
        opened(DIVIDED, example={"a": [6]})


def test_requests_that_fit_alone_and_not_together(opened: Opened) -> None:
    text = "g (float[n,t] x) => (float[n,t] y) { k = Constant <value = int64 {1}> () e = Exp (x) y = CumSum (e, k) }"
    one = opened(model(text), rows=32, session={"max_run_bytes": 100_000})
    found = ask(one, *[x_of(4, 1024, 0)] * 4)
    assert [answer["y"].shape for answer in found] == [(4, 1024)] * 4


def test_a_request_of_many_rows_runs_alone(opened: Opened) -> None:
    one = opened(SQUARE)
    assert ask(one, x_of(20, 3, 2))[0]["y"].shape == (20, 3)
    assert opened.runs == [(20, 1)]


def test_models_without_an_axis_of_rows_are_not_batched(opened: Opened) -> None:
    one = opened(FIXED)
    found = ask(one, x_of(2, 3, 2), x_of(2, 3, 3))
    assert [answer["y"][0, 0] for answer in found] == [4, 9]
    assert opened.runs == [(2, 1)] * 2


def test_the_one_whose_data_is_wrong_fails_alone(opened: Opened) -> None:
    one = opened(PICK)
    x = np.arange(3, dtype=np.float32).reshape(1, 3)
    found = ask(one, *({"x": x, "i": np.array([[at]])} for at in (0, 2, 7, 1)))
    assert [answer["y"].item() for answer in found[:2] + found[3:]] == [0, 2, 1]
    assert isinstance(found[2], vkep.InvalidInputError)


@pytest.mark.parametrize("kind", ["float[3]", "float"])
def test_inputs_of_different_rows_run_alone(opened: Opened, kind: str) -> None:
    """A bias, or a number, is no row of a request."""
    one = opened(model(f"g (float[n,3] x, {kind} b) => (float[n,3] y) {{ y = Add(x, b) }}"))
    b = np.ones(3 if "3" in kind else (), np.float32)
    found = ask(one, *({"x": np.full((2, 3), k, np.float32), "b": b} for k in range(3)))
    assert [answer["y"][1, 2] for answer in found] == [1, 2, 3]
    assert opened.runs == [(2, 1)] * 3


def test_rows_that_an_operator_needs_equal_are_refused(opened: Opened) -> None:
    one = opened(PICK)
    (found,) = ask(one, {"x": np.zeros((2, 3), np.float32), "i": np.zeros((3, 1), np.int64)})
    assert isinstance(found, vkep.InvalidInputError) and "GatherElements" in str(found)


def test_a_lost_device_costs_no_answer(opened: Opened) -> None:
    one = opened(SQUARE)
    lose(one.renewed.session)
    assert [answer["y"][0, 0] for answer in ask(one, x_of(1, 3, 2), x_of(1, 3, 3))] == [4, 9]


def test_versions(opened: Opened) -> None:
    by_version = {version: opened(FIXED, version=version) for version in ("2", "10", "x")}
    models = Models({"m": by_version})
    assert models.find("m").spec.version == "10" and models.find("m", "x").spec.version == "x"
    assert models.versions("m") == ["x", "2", "10"]
    assert len({id(one.renewed.session.context) for one in by_version.values()}) == 1
    for name, version in (("q", ""), ("m", "3")):
        with pytest.raises(ProtocolError, match=f"no .*'{version or name}'") as raised:
            models.find(name, version)
        assert raised.value.status == 404
    by_version["2"].renewed.gone = True
    assert models.gone() == ["m version 2"]


def test_types_that_the_protocol_cannot_send_are_an_error_of_loading(opened: Opened) -> None:
    with pytest.raises(ValueError, match="no type that can be sent"):
        opened(model("g (complex64[n] x) => (complex64[n] y) { y = Identity(x) }"))
