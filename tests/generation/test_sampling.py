"""The graph that chooses, against the same rules in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import vkep
from vkep.generation.choices import Choice, chooser, padded, settings_of
from vkep.generation.sampling import Chances, Sampling

Array = np.ndarray[Any, Any]
VOCABULARY = 700


def chosen(logits: Array, sampling: Sampling, chance: float, seen: Sequence[int]) -> int:
    x = logits.astype(np.float64)
    for token in set(seen):
        x[token] *= sampling.repetition_penalty if x[token] < 0 else 1 / sampling.repetition_penalty
    if not sampling.temperature:
        return int(x.argmax())
    z = (x - x.max()) / sampling.temperature
    kept = z >= np.sort(z)[-sampling.top_k] if sampling.top_k else z > -32
    p = np.exp(z) * kept
    order = np.argsort(-p)
    sums = np.cumsum(p[order])
    if sampling.top_p < 1:
        p[order[np.searchsorted(sums, sampling.top_p * sums[-1]) + 1 :]] = 0
    if sampling.min_p:
        p[z < np.log(sampling.min_p)] = 0
    sums = np.cumsum(p)
    return int(np.argmax(sums > chance * sums[-1]))


@pytest.mark.gpu
def test_every_setting_follows_its_rule() -> None:
    each = [
        Sampling(temperature=t, top_k=k, top_p=p, min_p=m, repetition_penalty=r)
        for t, k, p, m, r in itertools.product((0.0, 0.7), (0, 1, 30), (1.0, 0.8), (0.0, 0.1), (1.0, 1.3))
    ]
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (len(each), 2, VOCABULARY)).astype(np.float32)
    chances = [Chances(1).at(i) for i in range(len(each))]
    seen = [[int(t) for t in rng.integers(0, VOCABULARY, 1 + i)] for i in range(len(each))]
    feeds = {
        "logits": logits,
        "settings": np.array([settings_of(s, c) for s, c in zip(each, chances, strict=True)], np.float32),
        "seen": padded(seen),
    }
    with vkep.InferenceSession(chooser(1, Choice.of(each)), fallback="error") as session:
        tokens, on_host = session.run(None, feeds)
    expected = [chosen(x[-1], s, c, t) for x, s, c, t in zip(logits, each, chances, seen, strict=True)]
    assert on_host.tolist() == expected == tokens[:, 0].tolist()
    assert on_host.dtype == np.int32


def test_chances_depend_on_the_seed_and_the_place() -> None:
    found = {Chances(seed).at(place) for seed in range(3) for place in range(50)}
    assert len(found) == 150
    assert all(0 <= c < 1 and np.float32(c) == c for c in found)
    assert Chances(2).at(7) == Chances(2).at(7)
