"""The commands of GitHub's workflows name files, modules and options that exist, and the versions that the package names."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs_of(workflow: Path) -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"])


def commands() -> list[str]:
    """The lines that the steps of all workflows run."""
    steps = [step for workflow in WORKFLOWS for job in jobs_of(workflow).values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines()]


def test_files_and_modules_of_commands_exist() -> None:
    files, modules = set(), set()
    for line in commands():
        files.update(re.findall(r"(?<![\w./*])(?:\./)?((?:tools|tests|\.ci|vkep|registry|examples)(?:/[\w.]+)*)", line))
        modules.update(re.findall(r"-m (tools[\w.]*|vkep[\w.]*)", line))
    assert {"tools/setup.sh", "tools/check_package.sh", ".ci/run", "tests/plan"} <= files
    assert [name for name in sorted(files) if not (ROOT / name).exists() and name not in modules] == []
    assert {"tools.generated", "tools.backend_suite"} <= modules
    assert [name for name in sorted(modules) if importlib.util.find_spec(name) is None] == []


def test_scripts_that_commands_start_are_executable() -> None:
    scripts = {name for line in commands() for name in re.findall(r"(?<!\S)\./((?:tools|\.ci)/\S+)", line)}
    assert scripts and [name for name in scripts if not os.access(ROOT / name, os.X_OK)] == []


def test_options_of_the_projects_scripts_exist() -> None:
    for line in commands():
        for script, arguments in re.findall(r"\./(tools/(?:setup|test|docs|lint)\.sh)((?: --[\w-]+)*)", line):
            text = (ROOT / script).read_text(encoding="utf-8")
            assert [option for option in arguments.split() if option not in text] == [], line


def test_jobs_wait_for_jobs_that_exist() -> None:
    for workflow in WORKFLOWS:
        jobs = jobs_of(workflow)
        for name, job in jobs.items():
            needs = job.get("needs", [])
            assert set([needs] if isinstance(needs, str) else needs) <= set(jobs), (workflow.name, name)


def test_the_quick_tests_run_on_every_version_of_python_that_the_package_names() -> None:
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert jobs_of(ROOT / ".github" / "workflows" / "ci.yml")["quick"]["strategy"]["matrix"]["python"] == named
