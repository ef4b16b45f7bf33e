"""Functions of `atexit` that were registered after the import of vkep run before its objects end, and may use them."""

from __future__ import annotations

from pathlib import Path

from tests.processes import python
from vkep.models.language import write_language

CODE = """
import atexit, os
import numpy as np
import vkep
from tests.session.models import ADD_RELU, DYNAMIC, model
from tests.executorch.cases import GIVEN, given
from vkep.executorch import Program
from vkep.generation import Generator

X, B = np.ones((2, 3), np.float32), np.ones(3, np.float32)
WEIGHTS = np.ones((3, 4_000_000), np.float32)
session = vkep.InferenceSession(DYNAMIC, save_plans=False, token="at exit")
replicas = vkep.Replicas(ADD_RELU, devices=[0])
generator = Generator(os.environ["AT_EXIT_FOLDER"])

def opened():
    proto = model("g (float[2,3] x, float[3,m] w) => (float[2,m] y) { y = MatMul(x, w) }")
    with vkep.InferenceSession(proto, initializers={}, token="at exit") as late:
        return late.run(None, {"x": X, "w": WEIGHTS})[0].shape

WORK = {
    "a plan": lambda: session.run(None, {"x": X, "b": B})[0].shape,
    "another": lambda: session.run(None, {"x": np.ones((300, 3), np.float32), "b": B})[0].shape,
    "a tensor": lambda: session.device_tensor(WEIGHTS).numpy().shape,
    "a session": opened,
    "replicas": lambda: len(list(replicas.map([{"x": X, "b": B}] * 3))),
    "a program": lambda: Program.load(GIVEN / "vk.pte").load_method("forward").execute(given("vk").inputs)[0].shape,
    "an answer": lambda: len(generator.generate([1, 2, 3], max_tokens=4, temperature=0.5, ignore_end=True).tokens),
}

@atexit.register
def last():
    for name, work in WORK.items():
        try:
            print(name, work(), flush=True)
        except BaseException as error:
            print(name, "failed:", type(error).__name__, error, flush=True)
    print("end", flush=True)
"""


def test_what_a_function_of_atexit_may_do(vulkan: object, tmp_path: Path) -> None:
    write_language(tmp_path / "gpt2", "gpt2", context=96, layers=1)
    done = python(CODE, AT_EXIT_FOLDER=str(tmp_path / "gpt2"), VKEP_CACHE_DIR=str(tmp_path / "cache"))
    lines = done.stdout.splitlines()
    assert lines[-1] == "end" and len(lines) == 8, done.stdout + done.stderr
    assert not [line for line in lines if "failed" in line], done.stdout + done.stderr
    assert done.returncode == 0
