"""Loops that repeat rows, in the exporter's form: one island has them whole; others stay with ONNX Runtime."""

from __future__ import annotations

import pytest

from tests.calls import noted
from tests.ort.conftest import OpenSession, where
from tests.session.models import model
from tests.session.test_repeats import KEPT, REPLACED, checked, text
from vkep.session.planning.planner import Planner

EP = "VulkanExecutionProvider"


@pytest.mark.parametrize("wide", [0, 3])
@pytest.mark.parametrize("case", [case for case in REPLACED if "another use" not in case])
def test_replaced(session: OpenSession, monkeypatch: pytest.MonkeyPatch, case: str, wide: int) -> None:
    data = model(text(REPLACED[case], wide, "float"), opset=17).SerializeToString()
    plans = noted(monkeypatch, Planner, "plan", lambda *_, **__: 1)
    checked(session(data), data, wide, "float")
    assert len(plans) <= 5  # of the model, and of what follows the count


@pytest.mark.parametrize("case", [*KEPT, "the counts' parts have another use"])
def test_kept(session: OpenSession, case: str) -> None:
    data = model(text({**KEPT, **REPLACED}[case], 0, "int64"), opset=17).SerializeToString()
    opened = session(data, all_on_vulkan=False)
    assert where(opened)["CPUExecutionProvider"]["Loop"] == 1
    checked(opened, data, 0, "int64")


def test_a_loop_whose_nodes_would_fall_apart_is_kept(session: OpenSession) -> None:
    """The counts come from a node on the CPU, the rows do not."""
    split = """told = Cast <to = 8> (counts) heard = Cast <to = 7> (told) rs = SplitToSequence(heard, ones)
        xs = SplitToSequence(x, ones)"""
    data = model(text({"split": split}, 3, "float"), opset=17).SerializeToString()
    opened = session(data, all_on_vulkan=False)
    assert where(opened)["CPUExecutionProvider"]["Loop"] == 1
    checked(opened, data, 3, "float")
