"""Tuned tilings: asked for by key, used where the tables have them, ignored where not. No device."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from gpu_shared.capabilities import CooperativeMatrixShape, DeviceCapabilities
from vkep.kernels.matmul.cooperative_tiles import CONV_LAST_TILES, MATMUL_TILES, cooperative_tiling
from vkep.kernels.matmul.tiles import CONV_SHARED_TILES, shared_tiling, subgroup_candidates, subgroup_tile
from vkep.kernels.tuning import Trial, Tuned, chosen

CPU = DeviceCapabilities.for_tests()
GPU = DeviceCapabilities.for_tests(
    device_type="discrete",
    subgroup_size=32,
    min_subgroup_size=32,
    max_subgroup_size=32,
    max_shared_memory_bytes=49152,
    features=CPU.features | {"cooperative_matrix"},
    cooperative_matrix_shapes=(CooperativeMatrixShape(16, 16, 16, "float16", "float16", "float32", "float32"),),
)


def tuned(**choices: tuple[int, ...]) -> Tuned:
    return partial(chosen, {key.replace("_", " "): choice for key, choice in choices.items()}, "")


def test_a_subgroup_tile_is_the_tuned_one() -> None:
    default = subgroup_tile(196, 256, 1, CPU, True)
    choices = tuned(subgroup_196_256_1_1=(8, 2, 4))
    tile = subgroup_tile(196, 256, 1, CPU, True, choices)
    assert (tile.rows, tile.lane_columns, tile.unroll) == (8, 2, 4)
    assert (tile.lanes, tile.required_subgroup_size) == (default.lanes, default.required_subgroup_size)
    assert subgroup_tile(196, 256, 1, CPU, False, choices) == subgroup_tile(196, 256, 1, CPU, False)
    assert subgroup_tile(197, 256, 1, CPU, True, choices) == subgroup_tile(197, 256, 1, CPU, True)


def test_a_tuned_tile_of_which_there_are_too_many_is_ignored() -> None:
    n = 1 << 21
    choices = tuned(**{f"subgroup_20_{n}_1_1": (1, 1, 4)})
    assert subgroup_tile(20, n, 1, CPU, True, choices).lane_columns == 1
    n = 1 << 23
    choices = tuned(**{f"subgroup_20_{n}_1_1": (1, 1, 4)})
    assert subgroup_tile(20, n, 1, CPU, True, choices) == subgroup_tile(20, n, 1, CPU, True)


def test_a_shared_tile_is_the_tuned_one() -> None:
    choices = tuned(shared_conv_512_49_4608_1=(64, 64, 16, 4, 4, 4))
    tiling = shared_tiling(512, 49, 4608, 1, GPU, choices, CONV_SHARED_TILES)
    assert (tiling.tile.m, tiling.tile.n, tiling.splits, tiling.split_k) == (64, 64, 4, 1152)
    assert shared_tiling(512, 49, 4608, 1, GPU, choices) == shared_tiling(512, 49, 4608, 1, GPU)


def test_a_cooperative_tile_is_the_tuned_one() -> None:
    trial = Trial()
    default = cooperative_tiling(512, 512, 512, 1, GPU, False, partial(chosen, trial, ""))
    assert default == cooperative_tiling(512, 512, 512, 1, GPU, False)
    ((key, question),) = trial.asked.items()
    seen = set()
    for choice in question.candidates:
        found = cooperative_tiling(512, 512, 512, 1, GPU, False, partial(chosen, {key: choice}, ""))
        seen.add((*dataclasses.astuple(found.tile), found.splits))
    assert seen == set(question.candidates)
    assert {c[:-1] for c in question.candidates} <= {dataclasses.astuple(t) for t in MATMUL_TILES}
    other = partial(chosen, {key: question.candidates[-1]}, "")
    assert cooperative_tiling(512, 512, 512, 1, GPU, False, other, CONV_LAST_TILES) == cooperative_tiling(
        512, 512, 512, 1, GPU, False, tiles=CONV_LAST_TILES
    )


@pytest.mark.parametrize("choice", [(), (8,), (5, 2, 4), (16, 64, 4), (8, 2, 4, 1)])
def test_choices_that_the_tables_lack_are_ignored(choice: tuple[int, ...]) -> None:
    choices = tuned(subgroup_196_256_1_1=choice)
    assert subgroup_tile(196, 256, 1, CPU, True, choices) == subgroup_tile(196, 256, 1, CPU, True)


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
def test_the_default_is_among_the_candidates(lanes: int) -> None:
    caps = DeviceCapabilities.for_tests(subgroup_size=lanes)
    for m, n in ((1, 8), (49, 512), (3136, 64), (12544, 16)):
        for packed in (True, False):
            tile = subgroup_tile(m, n, 1, caps, packed)
            assert (tile.rows, tile.lane_columns, tile.unroll) in subgroup_candidates(m, lanes)


def test_a_trial_notes_who_asked_for_what() -> None:
    trial = Trial({"a 1": (2,)})
    assert chosen(trial, "first", lambda: [(1,), (2,)], "a", 1) == (2,)
    assert chosen(trial, "second", lambda: [(1,)], "a", 1) is None
    assert chosen(trial, "second", lambda: [(3,)], "b") is None
    assert trial.asked["a 1"].labels == {"first", "second"}
    assert trial.asked["b"].candidates == ((3,),)
