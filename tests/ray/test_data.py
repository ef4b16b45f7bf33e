"""`vkep.ray.Predictor` in Ray Data jobs, killed workers among them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkep
import vkep.ray
from tests.ray.conftest import KILL
from tests.session.models import model
from tests.session.test_replicas import lose
from tools.bench.scale.cluster import ROOT

pytestmark = pytest.mark.slow

SQUARE = model("g (float[n,3] x) => (float[n,3] y) { y = Mul(x, x) }")


def rows(count: int) -> Any:
    import ray

    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    return ray.data.from_numpy(np.array_split(x, 6)).rename_columns({"data": "x"})


def check(found: list[dict[str, Any]], count: int) -> None:
    """Each row's answer once, and right."""
    expected = np.arange(count * 3, dtype=np.float32).reshape(count, 3) ** 2
    np.testing.assert_array_equal(np.stack([row["y"] for row in sorted(found, key=lambda row: row["y"][0])]), expected)


def test_a_job_over_two_actors_with_a_model_that_is_shipped(cluster: None, tmp_path: Path) -> None:
    import ray

    onnx.save(SQUARE, tmp_path / "square.onnx")
    found = rows(300).map_batches(
        vkep.ray.Predictor,
        fn_constructor_args=[vkep.ray.ship(tmp_path / "square.onnx")],
        fn_constructor_kwargs={"warm": 16},
        batch_size=16,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    check(found.take_all(), 300)


class KilledOnce(vkep.ray.Predictor):
    """Kills its process at some batches, once for each file of a folder that it takes away."""

    def __init__(self, model: Any, folder: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._folder = Path(folder)

    def __call__(self, batch: Any) -> Any:
        for file in sorted(self._folder.iterdir()):
            if batch["x"][0, 0] >= float(file.name):
                file.unlink()
                os.kill(os.getpid(), KILL)
        return self.predict(batch)


def test_a_job_whose_workers_are_killed_ends_right(cluster: None, tmp_path: Path) -> None:
    import ray

    for at in ("100", "400", "700"):
        (tmp_path / at).touch()
    found = rows(300).map_batches(
        KilledOnce,
        fn_constructor_args=[SQUARE.SerializeToString(), str(tmp_path)],
        batch_size=16,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    check(found.take_all(), 300)
    assert not list(tmp_path.iterdir())


class GoneOnce(vkep.ray.Predictor):
    """Loses its device for good at some batch, once for a file that it takes away."""

    def __init__(self, model: Any, file: str) -> None:
        super().__init__(model)
        self._file = Path(file)

    def __call__(self, batch: Any) -> Any:
        if batch["x"][0, 0] >= 300 and self._file.exists():
            self._file.unlink()
            self._session._open = self._refuse
            lose(self.session)
        return self.predict(batch)

    @staticmethod
    def _refuse() -> Any:
        raise vkep.DeviceNotFoundError("opening", hint="it is gone")


def test_a_job_goes_on_where_a_device_is_gone(cluster: None, tmp_path: Path) -> None:
    import ray

    (tmp_path / "once").touch()
    found = rows(300).map_batches(
        GoneOnce,
        fn_constructor_args=[SQUARE.SerializeToString(), str(tmp_path / "once")],
        batch_size=16,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    check(found.take_all(), 300)
    assert not (tmp_path / "once").exists()


def test_a_job_one_of_whose_nodes_ends_is_right(vulkan: object, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install vkep[ray]")
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "registry")]),
    }
    command = [sys.executable, "-m", "tests.ray.node_job", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a node ended" in done.stdout and "\nright\n" in done.stdout
