"""Processes are killed at random moments while they write one cache folder: later results must not depend on the files
that they leave.

    python -m tools.fuzz.kills --count 1000 --seed 1 --jobs 4

Each round forks ``--jobs`` processes at once, which open a session and run it, and kills them after times drawn by the seed. A
process that follows runs to its end: its answer must be right, without an error, and so must its log be silent. The folder begins
empty every few rounds.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import vkep

_WEIGHTS = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
_X = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
_RIGHT = np.maximum(_X @ _WEIGHTS, 0)
_ROUNDS = 4  #: sessions that share the folder's contents


class _Listener(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.said: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record)


def model_bytes() -> bytes:
    """A model with weights, whose plan, shaders and pipelines are kept in the cache folder."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])],
        "kills",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 64])],
        [numpy_helper.from_array(_WEIGHTS, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def start(model: bytes, condition: Callable[[], None] | None = None, silent: bool = True) -> int:
    """Fork a process that opens a session and runs it, under a condition that it sets first; returns its id. It ends with 0 where
    the answer is right and, if ``silent``, nothing is logged."""
    child = os.fork()
    if child:
        return child
    listener = _Listener(logging.WARNING)
    for name in ("vkep", "gpu_shared"):
        logging.getLogger(name).addHandler(listener)
    try:
        if condition is not None:
            condition()
        with vkep.InferenceSession(model) as session:
            right = np.allclose(session.run(None, {"x": _X})[0], _RIGHT, rtol=1e-4, atol=1e-4)
        for record in listener.said:
            print(record.getMessage(), file=sys.stderr, flush=True)
        os._exit(0 if right and not (silent and listener.said) else 1)
    except BaseException:
        traceback.print_exc()
    os._exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where the result of every process that was not killed was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100, help="processes to kill")
    parser.add_argument("--jobs", type=int, default=4, help="processes at once")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    draw, model = random.Random(given.seed), model_bytes()
    killed = ended = bad = rounds = 0
    with tempfile.TemporaryDirectory(prefix="vkep-kills-") as folder:
        os.environ["VKEP_CACHE_DIR"] = str(Path(folder) / "cache")
        began = time.monotonic()
        bad += os.waitpid(start(model), 0)[1] != 0
        longest = time.monotonic() - began
        while killed < given.count:
            if rounds % _ROUNDS == 0:
                shutil.rmtree(Path(folder) / "cache", ignore_errors=True)
            rounds += 1
            began = time.monotonic()
            children = [(draw.uniform(0, longest), start(model)) for _ in range(given.jobs)]
            for after, child in sorted(children):
                time.sleep(max(0.0, began + after - time.monotonic()))
                os.kill(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
                if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                    killed += 1
                else:
                    ended += 1
                    bad += status != 0
            status = os.waitpid(start(model), 0)[1]
            if status:
                bad += 1
                print(f"round {rounds}: a process that followed ended with status {status}", flush=True)
    print(f"{killed} killed, {ended} ended before, {rounds} rounds, {bad} with something wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
