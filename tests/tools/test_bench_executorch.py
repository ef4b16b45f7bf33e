"""The bench of programs against sessions, on a pair that costs little."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vgf.harness import need_vgf
from tools.bench import executorch


@pytest.mark.gpu
def test_the_rfcs_model(vulkan: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    need_vgf()
    monkeypatch.setattr(executorch, "TURN_S", 0.001)
    monkeypatch.setenv("VKEP_VALIDATION", "0")
    assert executorch.main(["--turns", "2", "--allow", "1000"]) == 0
    printed = capsys.readouterr().out
    assert "unified_vgf_and_vk.pte: program" in printed and "outputs differ by" in printed
    assert executorch.main(["--turns", "2", "--allow", "0"]) == 1


def test_one_file_is_no_pair() -> None:
    with pytest.raises(SystemExit):
        executorch.main([str(Path("one.pte"))])
