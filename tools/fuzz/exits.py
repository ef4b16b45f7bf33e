"""Ends interpreters while threads open, run and read sessions, also in forked children: none may crash or hang.

python -m tools.fuzz.exits --count 500 --seed 1
python -m tools.fuzz.exits --count 40 --what infers --seed 31    # sessions of ONNX Runtime alone
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.waiting import LONG_S
from vkep.models.language import write_language

_CODE = """
import os, sys, threading, time, warnings
import numpy as np
import vkep
from tools.fuzz.moments import STATIC, B, X
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
feeds = {"x": X, "b": B}
session = vkep.InferenceSession(STATIC)
tensor = session.device_tensor(X)
work = {
    "runs": lambda: session.run(None, feeds),
    "opens": lambda: vkep.InferenceSession(STATIC, token=str(threading.get_ident())).close(),
    "reads": tensor.numpy,
    "drops": lambda: session.device_tensor(X),
}
if "executes" in %(what)r:
    from tools.fuzz.moments import PROGRAMS, ones
    from vkep.executorch import Program
    program = Program.load(PROGRAMS / "vulkan.pte")
    method = program.load_method(min(program.method_names))
    given = ones(method)
    work["executes"] = lambda: method.execute(given)
if "generates" in %(what)r:
    from vkep.generation import Generator
    generator = Generator(%(model)r, save_plans=False)
    work["generates"] = lambda: generator.generate([5, 6, 7], max_tokens=20, ignore_end=True)
if "infers" in %(what)r:
    import onnxruntime
    import vkep.ort
    vkep.ort.register()
    vkep.ort.ending._PATIENCE = %(patience)r  # on a busy machine a run may take longer than an exit waits
    given_model = STATIC.SerializeToString()
    inferring = onnxruntime.InferenceSession(given_model, providers=[vkep.ort.EP_NAME], enable_fallback=0)
    work["infers"] = lambda: inferring.run(None, feeds)
def repeat(what):
    while True:
        work[what]()
for what in %(what)r:
    threading.Thread(target=repeat, args=(what,), daemon=True).start()
time.sleep(%(after)f)
end = %(end)r
if end != "here":
    child = os.fork()
    if child == 0 and end == "forked and os._exit":
        os._exit(0)
    if child:
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child ended with {status}"
"""
WORK: tuple[str, ...] = ("runs", "reads", "drops", "executes", "opens", "generates")
if importlib.util.find_spec("onnxruntime") is not None:
    WORK += ("infers",)
ENDS = ("here", "forked", "forked and os._exit") if hasattr(os, "fork") else ("here",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where every interpreter ended with status 0 and printed nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--what", nargs="*", default=WORK, choices=WORK, help="what the threads do")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        write_language(Path(folder), "gpt2", context=96, layers=1)
        bad = sum(_goes_wrong(number, given.seed, given.what, folder) for number in range(given.count))
    print(f"{given.count} exits, {bad} with something wrong")
    return bool(bad)


def _goes_wrong(number: int, seed: int, kinds: Sequence[str], model: str) -> bool:
    rng = random.Random(f"{seed}/{number}")
    what, after, end = rng.choices(kinds, k=rng.randint(1, 4)), rng.uniform(0, 0.3), rng.choice(ENDS)
    wrong = wrong_end(what, after, end, model)
    if wrong:
        print(f"case {number}, {what} for {after:.3f} s, {end}: {wrong}", flush=True)
    return bool(wrong)


def wrong_end(what: Sequence[str], after: float, end: str, model: str) -> str:
    """What is wrong with the end of an interpreter whose threads do ``what`` (of `WORK`) until it ends ``after`` so many seconds
    by ``end`` (of `ENDS`); ``model`` is the folder of a language model."""
    code = _CODE % {"what": list(what), "after": after, "end": end, "model": model, "patience": LONG_S}
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return "it hangs"
    return f"status {done.returncode}: {done.stderr[:4000]}" if done.returncode or done.stderr else ""


if __name__ == "__main__":
    sys.exit(main())
