"""The page of an answer: every step a token, its dispatches on the same clock."""

from __future__ import annotations

import pytest

from vkep.generation import Generator


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_an_answer_is_shown_token_by_token(generator: Generator) -> None:
    expected = generator.generate([1, 2, 3], max_tokens=4).tokens
    document = generator.view([1, 2, 3], max_tokens=4).document
    assert [t["token"] for t in document["tokens"]] == expected
    [run] = document["runs"]
    steps = [s for s in run["host"] if s["depth"] == 1]
    assert [s["name"].split(" '")[0] for s in steps] == ["prompt of 3 tokens", "token 2", "token 3", "token 4"]
    slack = run["uncertainty"]
    prompt = [g for g in run["gpu"] if g["island"] == 0]
    later = run["gpu"][len(prompt) :]
    each, rest = divmod(len(later), len(steps) - 1)
    assert prompt and each and not rest
    assert {g["island"] for g in later} == {1}, "in the order of the steps"
    groups = [prompt, *(later[k : k + each] for k in range(0, len(later), each))]
    for step, token, group in zip(steps, document["tokens"], groups, strict=True):
        assert (step["start"], step["end"]) == (token["start"], token["end"])
        assert all(step["start"] - slack <= g["start"] and g["end"] <= step["end"] + slack for g in group)
    assert {d["island"] for d in document["dispatches"]} == {g["island"] for g in run["gpu"]} == {0, 1}
    # what clears the counters of arrivals is no node's
    assert all(d["nodes"] for d in document["dispatches"] if d["label"] != "counters")
    assert generator.generate([1, 2, 3], max_tokens=4).tokens == expected, "the generator goes on as before"
