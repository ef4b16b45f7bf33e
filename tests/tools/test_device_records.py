"""Plans stay within the records of devices that are not available here (`tools.device_records`)."""

from __future__ import annotations

import dataclasses

import pytest

from tools.device_records.__main__ import BEGIN, END, PAGE, planned, survey, tables
from tools.device_records.records import RECORDS
from tools.device_records.within import Checker
from tools.models.catalog import Options, build_model
from vkep.ir.program import IslandStep
from vkep.shaders.library import ShaderLibrary


def test_plans_stay_within_every_record() -> None:
    found = survey(every=60)
    assert [f"{name}: {problem}" for name, one in found.items() for problem in one.beyond] == []
    assert all(one.placed["vulkan"] > 100 for one in found.values())
    assert all(f"| {name} |" in tables(found) for name in RECORDS)


def test_the_page_has_every_record() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert all(f"| {name} |" in written for name in RECORDS)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"max_workgroup_invocations": 64, "max_workgroup_size": (64, 64, 64)}, "a workgroup of"),
        ({"max_shared_memory_bytes": 1024}, "bytes of shared memory, the device has 1024"),
        ({"max_workgroup_count": (2, 2, 2)}, "a grid of"),
        ({"max_push_constants_size": 16}, "bytes of push constants, the device has 16"),
        ({"features": frozenset()}, "the module needs "),
        ({"max_buffer_size": 1 << 20}, "the device allocates 1048576"),
        ({"min_subgroup_size": 2, "max_subgroup_size": 2}, "subgroups of 8 are asked for"),
    ],
)
def test_plans_beyond_a_record_are_found(change: dict[str, object], problem: str) -> None:
    lavapipe = RECORDS["lavapipe"]
    program = planned(build_model("conv3x3" if "shared" in problem else "resnet18", Options()), lavapipe)
    assert program is not None
    if "shared" in problem:
        lavapipe = dataclasses.replace(lavapipe, device_type="discrete")
        program = planned(build_model("conv3x3", Options()), lavapipe)
        assert program is not None
    poor = Checker(dataclasses.replace(lavapipe, **change), ShaderLibrary())  # type: ignore[arg-type]
    (step,) = [step for step in program.steps if isinstance(step, IslandStep)]
    assert any(problem in one for one in poor.beyond(step.plan))
    assert not list(Checker(lavapipe, ShaderLibrary()).beyond(step.plan))


def test_narrow_elements_in_shared_memory_take_words() -> None:
    """A transposition of float16 whose tile would fit 16 KiB if the device had 16-bit types."""
    small = RECORDS["Raspberry Pi 5 (V3D 7.1)"]
    program = planned(build_model("op_transpose_1024x1024", Options(float16=True)), small)
    assert program is not None
    (step,) = [step for step in program.steps if isinstance(step, IslandStep)]
    assert not list(Checker(small, ShaderLibrary()).beyond(step.plan))
