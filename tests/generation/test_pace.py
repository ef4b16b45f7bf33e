"""The parts of prompts that steps process: their sizes, and whose turn it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from vkep.generation import Generator
from vkep.generation.pace import CHUNK, LEAST_CHUNK, Pace
from vkep.models.language import write_language


class Clock:
    """A device: a step takes a millisecond for answers, and a time for each token of a prompt."""

    def __init__(self, token_s: float) -> None:
        self.now, self.token_s = 0.0, token_s
        self.pace = Pace(lambda: self.now)

    def step(self, prompt: int = 0, beside: int = 1) -> int:
        part = min(prompt, self.pace.most(beside))
        self.now += 0.001 * bool(beside) + self.token_s * part
        self.pace.stepped(part, beside)
        return part


def test_parts_become_small_where_they_hold_up_answers() -> None:
    device = Clock(token_s=50e-6)
    for _ in range(5):
        device.step()
    assert device.step(10**6) == CHUNK
    assert [device.step(10**6) for _ in range(10)][-1] == LEAST_CHUNK
    assert device.step(10**6, beside=0) == CHUNK  # no answer waits
    device.token_s = 1e-7
    device.step()
    assert [device.step(10**6) for _ in range(10)][-1] == CHUNK


def test_a_fast_device_processes_large_parts() -> None:
    device = Clock(token_s=1e-6)
    for _ in range(5):
        device.step()
    assert {device.step(10**6) for _ in range(20)} == {CHUNK}


def test_a_single_long_step_changes_nothing() -> None:
    device = Clock(token_s=1e-6)
    for _ in range(5):
        device.step()
    device.step(10**6)
    device.now += 5  # a plan was made
    assert {device.step(10**6) for _ in range(5)} == {CHUNK}


@pytest.mark.gpu
def test_prompts_take_turns(vulkan: object, tmp_path: Path) -> None:
    write_language(tmp_path, context=3 * CHUNK)
    with Generator(tmp_path, max_sequences=2) as generator:
        batch = generator.batch()
        long, short = batch.add([k % 200 for k in range(2 * CHUNK + 10)]), batch.add([1, 2, 3])
        batch.step()
        batch.step()
        assert short.tokens and not long.tokens
        batch.close()
