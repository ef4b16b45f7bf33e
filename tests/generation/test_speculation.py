"""Sampled answers with a draft model: probabilities by the kernel's rules, and distributions, which wrong rules fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.calls import noted
from tests.generation.reference import Reference
from vkep.device.tensor import DeviceTensor
from vkep.generation import Batch, Generator
from vkep.generation.sampling import Sampling
from vkep.generation.speculation import Speculation
from vkep.kernels.tokens.choose_token import ChooseTokenProblem
from vkep.models.language import ARCHITECTURES, write_language

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.gpu
SETTINGS: Sequence[Mapping[str, Any]] = (
    {},
    {"temperature": 0.6},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"temperature": 1.7, "top_k": 9, "top_p": 0.8, "min_p": 0.05},
)


def shares(logits: Array, sampling: Sampling) -> Array:
    """The probabilities by which the kernel draws, by its reference: where a chance begins to give another token."""
    problem = ChooseTokenProblem(1, logits.size, logits.size, "float32")
    steps = 1 << 12
    settings = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, 1.0)
    tokens = [
        int(problem.reference(logits[None], np.array([[*settings, k / steps]], np.float32))[0][0]) for k in range(steps)
    ]
    return np.bincount(tokens, minlength=logits.size) / steps


def statistic(found: Counter[Any], expected: Mapping[Any, float]) -> float:
    """How unlikely counts are: chi-square of the cells, in standard deviations of what it is for the right distribution."""
    count, degrees = sum(found.values()), len(expected) - 1
    chi = sum((found[cell] - count * share) ** 2 / (count * share) for cell, share in expected.items())
    return float((chi - degrees) / np.sqrt(2 * degrees))


class Windows:
    """Windows of drawn tokens without a model: a decoder and a draft that always have the same logits."""

    def __init__(self, generator: Generator, size: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        decoder = generator.decoder
        self._session, self.rng = decoder.session, rng
        whole: Any = SimpleNamespace(vocabulary=size, element=1, session=decoder.session)
        self.made = Speculation(whole, SimpleNamespace(vocabulary=size))  # type: ignore[arg-type]
        self.ours, self.drafts = (rng.normal(0, 1, (1, n, size)).astype(np.float32) for n in (3, 2))
        self.drafts += 0.7 * self.ours[:, :2]
        self._logits = self.tensor(self.ours)
        self._drafts = [self.tensor(self.drafts[:, k : k + 1]) for k in range(2)]

    def tensor(self, array: Array) -> DeviceTensor:
        made: DeviceTensor = self._session.device_tensor(np.ascontiguousarray(array))
        return made

    def window(self, sampling: Sampling) -> list[int]:
        """The tokens of one, of two drawn ones."""
        chances = [float(c) for c in self.rng.integers(0, 1 << 23, 5) / (1 << 23)]
        drawn = [
            self.made.draw(logits, sampling, chance) for logits, chance in zip(self._drafts, chances, strict=False)
        ]
        tokens = [token for _, token in drawn]
        count, token = self.made.kept(self._logits, tokens, [q for q, _ in drawn], sampling, chances[2:4], chances[4])
        for q, _ in drawn:
            q.close()
        return [*tokens[:count], token]


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    folder = tmp_path_factory.mktemp("language")
    write_language(folder, "llama", context=96, layers=1)
    with Generator(folder, fallback="error") as opened:
        yield opened


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_probabilities_are_those_of_the_kernel(generator: Generator, settings: dict[str, Any]) -> None:
    sampling = Sampling(**{"temperature": 1.0, **settings})
    windows = Windows(generator, 31, 1)
    for seed in range(2):
        logits = np.random.default_rng(seed).normal(0, 2, (1, 2, 31)).astype(np.float32)
        with windows.tensor(logits) as tensor:
            for chance in (0.0, 0.3, 0.77, 0.999):
                found, token = windows.made.draw(tensor, sampling, chance)
                np.testing.assert_allclose(found.numpy()[0], shares(logits[0, 1], sampling), atol=1e-3)
                row = np.array(
                    [[sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, 1.0, chance]], np.float32
                )
                assert token == ChooseTokenProblem(1, 31, 31, "float32").reference(logits[:, 1], row)[0][0]
    windows.made.close()


def distributions(windows: Windows, sampling: Sampling, count: int) -> list[float]:
    """The statistic of the first token, and of the second one where the first one is the most probable one of those."""
    rows = [shares(windows.ours[0, k], sampling) for k in range(2)]
    first, second = Counter[int](), Counter[int]()
    most = int(rows[0].argmax())
    for _ in range(count):
        tokens = windows.window(sampling)
        first[tokens[0]] += 1
        if tokens[0] == most and len(tokens) > 1:  # kept: what follows is by the model alone, given that it was drawn
            second[tokens[1]] += 1
    cells = [{k: float(p) for k, p in enumerate(row) if p > 0} for row in rows]
    assert set(first) <= set(cells[0]) and set(second) <= set(cells[1])
    return [statistic(first, cells[0]), statistic(second, cells[1])]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 6}, {"top_p": 0.8, "min_p": 0.1}], ids=str)
def test_distributions_are_the_models(generator: Generator, settings: dict[str, Any]) -> None:
    sampling = Sampling(**{"temperature": 1.0, **settings})
    windows = Windows(generator, 12, 3)
    assert max(distributions(windows, sampling, 800)) < 4.5
    windows.made.close()


def test_wrong_rules_fail(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distributions are other ones if all drawn tokens are kept, if the next one is not drawn by the rest, and if a drawn
    token is kept by another one's probability."""
    sampling = Sampling(temperature=1.0)
    right = Speculation.kept

    def all_kept(
        self: Any, logits: Any, drawn: Any, given: Any, sampling: Any, accept: Any, chance: float
    ) -> tuple[int, int]:
        return right(self, logits, drawn, given, sampling, [0.0] * len(drawn), chance)

    def by_model(
        self: Any, logits: Any, drawn: Any, given: Any, sampling: Any, accept: Any, chance: float
    ) -> tuple[int, int]:
        count, token = right(self, logits, drawn, given, sampling, accept, chance)
        with self._decoder.session.device_tensor(logits.numpy()[:, count : count + 1]) as row:
            probabilities, again = self.draw(row, sampling, chance)
            probabilities.close()
        return count, again if count < len(drawn) else token

    def swapped(
        self: Any, logits: Any, drawn: Any, given: Any, sampling: Any, accept: Any, chance: float
    ) -> tuple[int, int]:
        return right(self, logits, drawn, list(given)[::-1], sampling, accept, chance)

    for wrong in (all_kept, by_model, swapped):
        windows = Windows(generator, 12, 3)
        with monkeypatch.context() as patch:
            patch.setattr(Speculation, "kept", wrong)
            assert max(distributions(windows, sampling, 500)) > 6, wrong
        windows.made.close()


def test_answers_have_the_models_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first three tokens, the last two of which are the draft's or in their place, over many seeds; a seed gives the same
    tokens again."""
    folders = tmp_path / "model", tmp_path / "draft"
    write_language(folders[0], "llama", context=96, layers=1)
    write_language(folders[1], "llama", context=96, layers=2)
    prompt = [5, 60, 7]
    settings: dict[str, Any] = {"temperature": 2.0, "top_k": 3, "max_tokens": 4, "ignore_end": True}
    sampling = Sampling(**settings)
    kept = noted(monkeypatch, Batch, "_took", lambda *_: 1)
    with Generator(folders[0], fallback="error", draft=folders[1], draft_tokens=2) as guessing:
        windows = noted(monkeypatch, Batch, "_speculate", lambda *_: 1)
        answers = [guessing.generate(prompt, seed=seed, **settings).tokens for seed in range(160)]
        assert answers[:9] == [guessing.generate(prompt, seed=seed, **settings).tokens for seed in range(9)]
        together = guessing.generate([prompt, prompt[:2]], seed=1, **settings)  # nothing is guessed
        assert [len(one.tokens) for one in together] == [4, 4]
    assert len(windows) < len(kept) - 160  # some were kept
    theirs = Reference(folders[0] / "model.onnx", ARCHITECTURES["llama"].kv_heads, ARCHITECTURES["llama"].size)
    first = shares(theirs.logits(prompt, [0])[0], sampling)
    expected: dict[Any, float] = {}
    for one in np.flatnonzero(first):
        second = shares(theirs.logits(prompt, [int(one), 0])[1], sampling)
        for two in np.flatnonzero(second):
            third = shares(theirs.logits(prompt, [int(one), int(two), 0])[2], sampling)
            expected |= {
                (int(one), int(two), int(k)): first[one] * second[two] * third[k] for k in np.flatnonzero(third)
            }
    found = Counter(tuple(tokens[:3]) for tokens in answers)
    assert set(found) <= set(expected) and len(expected) == 27
    assert statistic(found, expected) < 4.5


def test_any_setting_takes_the_same_graphs_and_a_seed_the_same_tokens(tmp_path: Path) -> None:
    write_language(tmp_path, "llama", context=96)
    with Generator(tmp_path, fallback="error", draft=tmp_path, draft_tokens=3) as generator:
        settings: dict[str, Any] = {"temperature": 1.0, "seed": 5, "ignore_end": True}
        [most, *fewer] = [generator.generate([5, 60, 7], max_tokens=n, top_k=50, **settings) for n in range(9, 0, -1)]
        assert all(most.tokens[: len(one.tokens)] == one.tokens for one in fewer)
        sampled = generator._batch._sampled
        assert sampled is not None
        graphs = len(sampled._sessions)
        for k in range(40, 49):
            generator.generate([5, 60, 7], max_tokens=9, top_k=k, **settings)
        assert len(sampled._sessions) == graphs <= 4
