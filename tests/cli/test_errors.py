"""What goes wrong: exit status, one readable paragraph, JSON where asked, never a traceback."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from vkep.cli import common

ROOT = Path(__file__).resolve().parents[2]


def vkep_process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "registry"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "vkep", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("command", ["run", "bench", "explain"])
def test_a_file_that_is_not_there_or_no_model(run: Callable[..., Any], tmp_path: Path, command: str) -> None:
    missing = run(command, tmp_path / "none.onnx")
    assert missing.exit_code == 2
    assert "no such file" in missing.stderr
    (tmp_path / "text.onnx").write_text("no model")
    wrong = run(command, tmp_path / "text.onnx")
    assert wrong.exit_code == 1
    assert "is not an ONNX model" in wrong.stderr
    assert "Traceback" not in wrong.output


def test_a_truncated_model(run: Callable[..., Any], models: Path, tmp_path: Path) -> None:
    whole = (models / "dynamic.onnx").read_bytes()
    (tmp_path / "short.onnx").write_bytes(whole[: len(whole) // 2])
    result = run("run", tmp_path / "short.onnx", "--json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == "InvalidModelError"
    assert "truncated" in error["message"]


@pytest.mark.gpu
def test_an_unknown_device_lists_those_that_are_there(run: Callable[..., Any], models: Path) -> None:
    result = run("run", models / "add.onnx", "--device", "no such device")
    assert result.exit_code == 1
    assert "no usable device matches the device 'no such device'; there are: 0: " in result.stderr.replace("\n", " ")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add.onnx", "--shape", "x=3x3"], "input 'x': got shape (3, 3), expected 2 on axis 0"),
        (["add.onnx", "--shape", "x=2x3x1"], "input 'x': got rank 3"),
        (["add.onnx", "--shape", "nosuch=2x3"], "the model has no input named 'nosuch'; it has x, x2"),
        (["add.onnx", "--shape", "x=two"], "expected sizes joined by x"),
        (["add.onnx", "--input", "nosuch=ones"], "the model has no input named 'nosuch'; it has x, x2"),
        (["dynamic.onnx"], "has dynamic dimensions ['batch', 8]: give --shape x=Nx8 or --dim batch=N"),
        (["add.onnx", "--token", ""], "'gpu_shared_context_token' is ''"),
    ],
)
def test_inputs_that_do_not_fit(run: Callable[..., Any], models: Path, arguments: list[str], message: str) -> None:
    result = run("run", models / arguments[0], *arguments[1:])
    assert result.exit_code == 2, result.output
    assert message in result.stderr.replace("\n", " ")


@pytest.mark.gpu
def test_a_file_of_the_wrong_dtype(run: Callable[..., Any], models: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    result = run("run", models / "add.onnx", "-i", f"x={tmp_path / 'x.npy'}")
    assert result.exit_code == 2
    assert "got dtype float64, expected float32" in result.stderr.replace("\n", " ")


def test_unwritable_outputs_are_reported_before_the_model_is_opened(run: Callable[..., Any], tmp_path: Path) -> None:
    target = tmp_path / "file" / "below.npz"
    (tmp_path / "file").touch()
    for option in ("--output", "--profile"):
        result = run("run", tmp_path / "none.onnx", option, target)
        assert result.exit_code == 2
        assert result.stderr == f"error: {option} {target}: Not a directory\n"


def test_a_folder_is_no_model(run: Callable[..., Any], tmp_path: Path) -> None:
    result = run("run", tmp_path)
    assert (result.exit_code, result.stderr) == (2, f"error: {tmp_path}: is a folder, expected a file\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["nosuch"],
        ["run", "m.onnx", "--nosuch"],
        ["run", "m.onnx", "--mode", "nosuch"],
        ["run", "m.onnx", "--runs", "0"],
        ["run", "m.onnx", "--group", "-1"],
    ],
)
def test_wrong_usage_is_status_2(run: Callable[..., Any], arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage" in result.output


def test_an_unforeseen_error_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), common.command(json_output=False):
        raise ZeroDivisionError
    with pytest.raises(BrokenPipeError), common.command(json_output=False):
        raise BrokenPipeError
    assert capsys.readouterr().err == ""


def test_verbose_logs_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose, shown in ((0, False), (1, True)):
        with pytest.raises(typer.Exit) as caught, common.command(False, verbose):
            raise MemoryError("a buffer of 7 bytes")
        assert caught.value.exit_code == 1
        error = capsys.readouterr().err
        assert "error: a buffer of 7 bytes" in error
        assert ("Traceback" in error) is shown


def test_progress_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, show, drawn in ((Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), True, False)):
        monkeypatch.setattr("sys.stderr", stream)
        with common.progress_bars(show) as progress:
            assert (progress is not None) is drawn
            common.say(progress, "opening the model")
            if progress is not None:
                progress("shaders", 1, 4, "softmax.comp")
                progress("weights", 2**20, 2**20, "w")
        assert ("compiling shaders" in stream.getvalue()) is drawn
        assert ("uploading weights" in stream.getvalue()) is drawn
        assert ("opening the model" in stream.getvalue()) is drawn


def test_loggers_are_put_back() -> None:
    logger = logging.getLogger("vkep")
    before = (logger.level, list(logger.handlers), logger.propagate)
    with common.command(False, verbose=2):
        assert logger.level == logging.DEBUG
    assert (logger.level, list(logger.handlers), logger.propagate) == before


def test_paragraphs_are_wrapped_but_lists_are_not() -> None:
    long = "error: " + "word " * 60
    assert max(map(len, common.paragraph(long).splitlines())) <= 100
    listing = "error: a.comp:3: bad\n    3 | " + "x" * 200
    assert common.paragraph(listing) == listing


def test_an_error_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 60 + "end"
    with pytest.raises(typer.Exit), common.command(json_output=False):
        raise MemoryError(long)
    assert capsys.readouterr().err == f"error: {long}\n"


def test_without_a_driver() -> None:
    for arguments in (["devices"], ["run", str(ROOT / "no.onnx")]):
        result = vkep_process(*arguments, VK_DRIVER_FILES="/nonexistent", VK_ICD_FILENAMES="/nonexistent")
        assert "Traceback" not in result.stderr
        assert result.returncode == (1 if arguments == ["devices"] else 2)
    result = vkep_process("devices", "--json", VK_DRIVER_FILES="/nonexistent", VK_ICD_FILENAMES="/nonexistent")
    assert result.returncode == 1
    assert json.loads(result.stdout)["error"]["kind"] == "DriverNotFoundError"
    assert "mesa-vulkan-drivers" in result.stderr


@pytest.mark.gpu
def test_a_process_of_its_own(models: Path) -> None:
    result = vkep_process("run", models / "add.onnx", "--check", models / "add.npz", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["check"]["ok"]
    assert result.stderr == ""
    failed = vkep_process("run", models / "add.onnx", VK_DRIVER_FILES="/nonexistent", VK_ICD_FILENAMES="/nonexistent")
    assert failed.returncode == 1
    assert "the loader found no driver" in failed.stderr.replace("\n", " ")
    assert "Traceback" not in failed.stderr


def test_a_reader_that_stops_early_is_no_error() -> None:
    code = "import sys, subprocess as s; p = s.Popen([sys.executable, '-m', 'vkep', 'shaders', 'list'], stdout=s.PIPE, "
    code += "stderr=s.PIPE); p.stdout.close(); print(p.stderr.read().decode()); p.wait()"
    path = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in result.stdout


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, vkep.cli\n"
        "from typer.testing import CliRunner\n"
        "assert CliRunner().invoke(vkep.cli.app, ['--help']).exit_code == 0\n"
        "print(sorted({'numpy', 'onnx', 'vulkan', 'cffi', 'onnxruntime', 'platformdirs'} & set(sys.modules)))"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
