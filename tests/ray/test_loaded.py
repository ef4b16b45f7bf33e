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
from vkep.ray.kserve import ProtocolError
from vkep.ray.loaded import LoadedModel, Models

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

    def __call__(self, proto: Any, rows: int = 8, version: str = "1") -> LoadedModel:
        def observe(name: str, version: str, rows: int, requests: int, seconds: float) -> None:
            self.runs.append((rows, requests))

        self.models.append(
            LoadedModel("m", version, proto, {}, pool=self._pool, rows=rows, wait_s=0.02, runs=2, observe=observe)
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
    one = opened(UPPER)
    words = [np.array(["a", "bc"], object), np.array(["d"], object)]
    found = ask(one, *({"s": word} for word in words))
    assert [result["u"].tolist() for result in found] == [["A", "BC"], ["D"]] and opened.runs == [(3, 2)]


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


def test_inputs_of_different_rows_are_refused(opened: Opened) -> None:
    one = opened(PICK)
    (found,) = ask(one, {"x": np.zeros((2, 3), np.float32), "i": np.zeros((3, 1), np.int64)})
    assert "same number of rows" in str(found)


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
