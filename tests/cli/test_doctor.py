"""``vkep doctor`` and ``vkep cache``: what they find, what they say is missing, and what they remove."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_errors import vkep_process
from vkep.cli import cache, doctor
from vkep.cli.doctor import Finding, install_line

Run = Callable[..., Any]


@pytest.mark.gpu
def test_a_machine_where_all_works(run: Run) -> None:
    found = run("doctor", "--json")
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    topics = [finding["topic"] for finding in data["findings"]]
    assert data["ok"] and {
        "vkep",
        "python",
        "system",
        "packages",
        "environment",
        "device",
        "compiler",
        "cache",
        "run",
    } <= {*topics}
    assert str(Path.home()) + "/" not in found.stdout, "a report is public"


@pytest.mark.skipif(sys.platform != "linux", reason="manifests of drivers")
def test_a_driver_that_is_missing(tmp_path: Path) -> None:
    result = vkep_process("doctor", VK_DRIVER_FILES=str(tmp_path / "none.json"), VKEP_CACHE_DIR=str(tmp_path / "cache"))
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"VK_DRIVER_FILES names {tmp_path / 'none.json'}, which does not exist" in result.stdout
    assert "device: " in result.stdout and "install" in result.stdout


def test_a_check_that_raises_is_a_problem(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def broken() -> list[Finding]:
        raise RuntimeError("the driver is odd")

    monkeypatch.setattr(doctor, "_devices", broken)
    monkeypatch.setattr(doctor, "_run", lambda: iter(()))
    found = run("doctor")
    assert found.exit_code == 1
    assert "device: RuntimeError: the driver is odd\n    run again with -v, and report this" in found.stdout


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="makes files that a user may not open")
def test_a_device_file_that_may_not_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [Path("/dev/dri/renderD128")] if "dri" in pattern else [])
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (finding,) = doctor._permissions()
    assert (
        finding.problem == "this user may not open /dev/dri/renderD128" and "usermod -aG render,video" in finding.remedy
    )


@pytest.mark.parametrize(
    ("release", "program"),
    [
        ({"ID": "debian"}, "apt-get"),
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "apt-get"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "apt-get"),
        ({"ID": "fedora"}, "dnf"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf"),
        ({"ID": "manjaro", "ID_LIKE": "arch"}, "pacman"),
        ({"ID": "opensuse-tumbleweed", "ID_LIKE": "opensuse suse"}, "zypper"),
        ({"ID": "alpine"}, "apk"),
        ({}, "install the Vulkan loader and your GPU's Vulkan driver"),
    ],
)
def test_what_to_install_on_a_distribution(release: dict[str, str], program: str) -> None:
    assert install_line(release).startswith(program)


def test_a_finding_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.print_findings([Finding("a", "fine"), Finding("b", "", "broken", "do this")])
    assert capsys.readouterr().out.splitlines() == [
        "a            fine",
        "b            PROBLEM: broken",
        "",
        "b: broken",
        "    do this",
    ]


def test_the_cache_is_listed_and_cleared(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path))
    for name, size in (("spirv/a", 3), ("plans/b", 2000), ("plans/c", 48), ("mine/d", 9)):
        (tmp_path / name).parent.mkdir(exist_ok=True, mode=0o700)
        (tmp_path / name).write_bytes(b"x" * size)
    found = json.loads(run("cache", "list", "--json").stdout)
    assert found["folder"] == str(tmp_path) and found["bytes"] == 2051
    assert [(one["kind"], one["files"], one["bytes"]) for one in found["contents"]] == [
        ("spirv", 1, 3),
        ("plans", 2, 2048),
    ]
    assert "plans          2.0 KiB       2 files" in run("cache", "list").stdout
    refused = run("cache", "clear", "plan")
    assert refused.exit_code == 2 and "no kind named 'plan'; there are: spirv" in refused.stderr
    assert "removed plans (2.0 KiB)" in run("cache", "clear", "plans").stdout
    assert (tmp_path / "spirv" / "a").exists() and not (tmp_path / "plans").exists()
    assert json.loads(run("cache", "clear", "--json").stdout)["bytes"] == 3
    assert (tmp_path / "mine" / "d").exists(), "folders that are not vkep's stay"
    assert "removed nothing" in run("cache", "clear").stdout


def test_every_folder_of_the_cache_is_a_kind() -> None:
    calls = re.compile(r'\b(?:(?:cache|code)_folder\(|(?:device|model)_file\([^,()]+, )"(\w+)"')
    sources = [path.read_text(encoding="utf-8") for path in (Path(__file__).parents[2] / "vkep").rglob("*.py")]
    used = {name for source in sources for name in calls.findall(source)}
    assert {"plans", "spirv", "limits"} <= used == set(cache.KINDS)
