"""The Dockerfile's steps, without Docker: its packages are those that ``vkep doctor`` names, its pip line installs the wheel,
and its entry point works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT
from tests.packaging.test_install import fresh_environment
from vkep.cli.doctor import INSTALL


def steps() -> list[tuple[str, str]]:
    """The instructions, and what follows each."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_drivers_are_those_that_doctor_names() -> None:
    (line,) = [rest for word, rest in steps() if word == "RUN" and "apt-get install" in rest]
    installed = re.search(r"apt-get install -y --no-install-recommends ([^&]+)", line)
    assert installed is not None
    assert f"apt-get install {installed[1].strip()}" == INSTALL["debian"]


def test_the_cache_belongs_to_the_user_who_runs() -> None:
    found = dict(steps())
    user = found["USER"]
    assert f"VKEP_CACHE_DIR={found['VOLUME']}" in found["ENV"].split()
    assert any(f"useradd --create-home {user}" in r and f"-o {user} -g {user}" in r and found["VOLUME"] in r
               for w, r in steps() if w == "RUN")  # fmt: skip
    assert "graphics" in found["ENV"]


@pytest.mark.slow
@pytest.mark.gpu
def test_the_wheel_is_installed_and_its_entry_point_works(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "venv")
    copied = tmp_path / "copied"
    copied.mkdir()
    (source, target) = next(rest for word, rest in steps() if word == "COPY").split()
    assert Path("dist", wheel.name).match(source)
    shutil.copy(wheel, copied)
    (line,) = [rest for word, rest in steps() if word == "RUN" and rest.startswith("pip ")]
    line = line.replace(target, f"{copied}/").replace("pip install", f"{python} -m pip install --no-deps --no-index", 1)
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    subprocess.run(["sh", "-c", line], check=True, env=environment, cwd=tmp_path, capture_output=True, timeout=600)
    (entry, command) = (re.findall(r'"([^"]*)"', dict(steps())[word]) for word in ("ENTRYPOINT", "CMD"))
    result = subprocess.run(
        [*entry, *command], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0 and "vkep works on this machine." in result.stdout, result.stdout + result.stderr
    assert str(tmp_path) in result.stdout, "the package of the wheel, not the checkout's"
