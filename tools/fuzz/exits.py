"""Ends interpreters while threads open, run and read sessions, also in forked children: none may crash or hang.

python -m tools.fuzz.exits --count 500 --seed 1
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Sequence

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
_ENDS = ("here", "here", "forked", "forked and os._exit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where every interpreter ended with status 0 and printed nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    bad = 0
    for number in range(given.count):
        rng = random.Random(f"{given.seed}/{number}")
        ends = _ENDS if hasattr(__import__("os"), "fork") else ("here",)
        case = {
            "what": rng.choices(("runs", "opens", "reads", "drops"), k=rng.randint(1, 4)),
            "after": rng.uniform(0, 0.3),
            "end": rng.choice(ends),
        }
        try:
            done = subprocess.run([sys.executable, "-c", _CODE % case], capture_output=True, text=True, timeout=120)
            wrong = f"status {done.returncode}: {done.stderr[-2000:]}" if done.returncode or done.stderr else ""
        except subprocess.TimeoutExpired:
            wrong = "hangs"
        if wrong:
            bad += 1
            print(f"case {number} {case}: {wrong}", flush=True)
    print(f"{given.count} exits, {bad} with something wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
