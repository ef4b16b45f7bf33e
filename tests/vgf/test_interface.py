"""Files that bind to a graph what its SPIR-V does not declare are refused: the emulation layers end the process for most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.vgf.harness import DATA, Bench, need_vgf
from vkep.vgf import InvalidVgfError, Vgf, decode
from vkep.vgf.records import BindingSlot


def _resource(vgf: Vgf, index: int, **changes: Any) -> Vgf:
    resources = list(vgf.resources)
    resources[index] = replace(resources[index], **changes)
    return replace(vgf, resources=tuple(resources))


def _segment(vgf: Vgf, **changes: Any) -> Vgf:
    return replace(vgf, segments=(replace(vgf.segments[0], **changes),))


def _bound(vgf: Vgf, *slots: tuple[int, int], number: int = 0) -> Vgf:
    return _segment(vgf, sets={number: tuple([BindingSlot(*slot) for slot in slots])})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda v: _resource(v, 1, shape=(1, 3, 2, 2)),
            r"\[1, 3, 2, 2\], and its module declares float32 \[1, 3, 4, 4\]",
        ),
        (lambda v: _resource(v, 0, shape=(-1, 3, 4, 4)), "sizes are at least 1"),
        (lambda v: _resource(v, 0, shape=(0, 3, 4, 4)), "sizes are at least 1"),
        (lambda v: _resource(v, 0, shape=(1,) * 9), "its module declares"),
        (lambda v: _resource(v, 1, format=14), "int8 .* and its module declares float32"),
        (lambda v: _resource(v, 1, format=99), "int32 .* and its module declares float32"),
        (lambda v: _bound(v, (0, 0), (0, 1)), "its module declares"),
        (lambda v: _bound(v, (0, 0), (1, 1), (2, 1)), "its module declares"),
        (lambda v: _bound(v, (0, 0), (1, 1), number=1 << 31), "its module declares"),
        (lambda v: replace(v, modules=(replace(v.modules[0], entry_point="nope"),)), "declares no graph 'nope'"),
        (lambda v: replace(v, modules=(replace(v.modules[0], spirv=bytes(40)),)), "an instruction of 0 words"),
    ],
)
def test_what_a_module_does_not_declare_is_refused(bench: Bench, change: Callable[[Vgf], Vgf], said: str) -> None:
    need_vgf()
    vgf = change(decode((DATA / "executorch_trig.vgf").read_bytes()))
    with pytest.raises(InvalidVgfError, match=said):
        bench.run(vgf, [np.ones((1, 3, 4, 4), np.float32)])


def test_a_constant_that_the_module_declares_must_be_given(bench: Bench) -> None:
    vgf = decode((DATA / "executorch_cnn.vgf").read_bytes())
    with pytest.raises(InvalidVgfError, match="its module declares"):
        bench.run(_segment(vgf, constants=vgf.segments[0].constants[1:]), [np.ones((1, 3, 32, 32), np.float32)])
