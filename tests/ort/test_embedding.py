"""The library in a program that is not Python: a C host registers it, runs a model, and ends cleanly."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from tests.ort.conftest import graph

MODEL = graph("g (float[2,3] x) => (float[2,3] y) { a = Add(x, x) y = Relu(a) }")


@pytest.fixture(scope="module")
def host(vulkan: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the C host, the embedding library and a model."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("this Python has no shared library to embed")
    from vkep.ort.library import main

    folder = tmp_path_factory.mktemp("embedding")
    main(["--embed", str(folder)])
    (folder / "model.onnx").write_bytes(MODEL)
    compiler = next(c for c in ("cc", "gcc", "clang") if shutil.which(c))
    source = str(Path(__file__).parent / "host.c")
    subprocess.run(
        [compiler, "-O1", "-Wall", "-Werror", "-o", "host", source, "-ldl", "-lpthread"], cwd=folder, check=True
    )
    return folder


def run(folder: Path, runs: int, before: str = "") -> subprocess.CompletedProcess[str]:
    engine = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"), None)
    if engine is None:
        pytest.skip("this wheel of onnxruntime has no libonnxruntime.so")
    paths = os.pathsep.join(p for p in (before, os.environ.get("PYTHONPATH")) if p)  # where packages may be installed
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    arguments = ["./host", str(engine), str(folder / "libvkep_ort.so"), "model.onnx", str(runs)]
    return subprocess.run(
        arguments,
        cwd=folder,
        env={**kept, **({"PYTHONPATH": paths} if paths else {})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_c_program_runs_a_model_from_five_threads(host: Path) -> None:
    done = run(host, 20)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["0 2 4 6 8 10"] * 10 + ["done"]  # in two rounds


def test_a_failure_to_start_is_an_error_not_a_crash(host: Path, tmp_path: Path) -> None:
    (tmp_path / "vkep").mkdir()
    (tmp_path / "vkep" / "__init__.py").write_text("raise ImportError('no such luck')")
    done = run(host, 1, before=str(tmp_path))
    assert done.returncode == 1
    assert "RegisterExecutionProviderLibrary: vkep: the callbacks are not in place: see standard error" in done.stderr
    assert "no such luck" in done.stderr


def test_a_python_program_gets_an_error_that_names_the_other_library(host: Path) -> None:
    script = f"""
import gc, inspect, onnxruntime, vkep.ort
vkep.ort.register()
try:
    onnxruntime.register_execution_provider_library("embedded", {str(host / "libvkep_ort.so")!r})
except Exception as error:
    print("refused:", error)
gc.collect()
inspect.getmodule(inspect)  # looks at every module
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "the callbacks are not in place" in done.stdout
    assert "register that (vkep.ort.get_library_path())" in done.stderr


def test_it_is_no_library_for_a_python_program(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vkep.ort import library
    from vkep.ort.compile_library import LIBRARY_VARIABLE, LibraryError

    monkeypatch.setenv(LIBRARY_VARIABLE, str(host / "libvkep_ort.so"))
    monkeypatch.setattr(library, "_module", None)
    with pytest.raises(LibraryError, match=r"libvkep_ort\.so was made with --embed"):
        library.load()


def test_embedding_takes_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    from vkep.ort.library import main

    with pytest.raises(SystemExit):
        main(["--embed"])
    assert "--embed takes the FOLDER" in capsys.readouterr().err
