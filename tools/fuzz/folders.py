"""Cache folders in bad condition: many processes at once, full disks, read-only folders, clocks that jump.

    python -m tools.fuzz.folders --count 50 --seed 1 --what crowd full readonly clock

Each case runs processes that open a session and run it on one cache folder, under a condition drawn by the seed. Their answers
must be right, without an exception. A process that follows, without the condition, must be right and log nothing.

crowd: ``--jobs`` processes start at once on an empty folder. full: a tmpfs of a few KiB, on which writes end with ENOSPC (needs
root). readonly: a read-only tmpfs (root), or a folder without write permission. clock: files get random times from 1970 to 2242,
and the processes read a clock that is wrong by up to 30 years, and jumps by as much while they run.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.fuzz.kills import model_bytes, start

_YEARS = 30 * 365 * 86_400


class Cases:
    """Cases on a cache folder each; random choices come from ``draw``."""

    def __init__(self, draw: random.Random, jobs: int) -> None:
        self._draw, self._jobs, self._model = draw, jobs, model_bytes()
        self.bad = 0

    def follow(
        self, what: str, condition: Callable[[], None] | None = None, count: int = 1, silent: bool = True
    ) -> None:
        """Start processes at once and wait for them; each that ends with another status than 0 is counted."""
        children = [start(self._model, condition, silent) for _ in range(count)]
        for child in children:
            status = os.waitpid(child, 0)[1]
            if status:
                self.bad += 1
                print(f"{what}: a process ended with status {status}", flush=True)

    def crowd(self, folder: Path) -> None:
        self.follow("crowd", count=self._jobs)

    def full(self, folder: Path) -> None:
        size = self._draw.choice((4, 8, 12, 16, 24, 32, 64, 128))
        with mounted(folder, f"size={size}k"):
            self.follow(f"full at {size} KiB", count=2, silent=False)
            self.follow(f"full at {size} KiB, again", silent=False)

    def readonly(self, folder: Path) -> None:
        if self._draw.random() < 0.5:
            self.follow("before it is read-only")  # otherwise it is empty
        if os.geteuid():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o500)
            self.follow("read-only", silent=False)
            folder.chmod(0o700)
            return
        kept = folder.with_name("kept")
        if folder.exists():
            shutil.copytree(folder, kept)
        with mounted(folder, "size=16m"):
            if kept.exists():
                shutil.copytree(kept, folder, dirs_exist_ok=True)
                shutil.rmtree(kept)
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
            self.follow("read-only", count=2, silent=False)

    def clock(self, folder: Path) -> None:
        if self._draw.random() < 0.7:
            self.follow("before the clock jumps")
        for path in sorted(folder.rglob("*")):
            os.utime(path, (self._draw.choice((0, 1, 1 << 33, self._draw.randrange(1 << 33))),) * 2)
        wrong = [self._draw.uniform(-_YEARS, _YEARS) for _ in range(3)]

        def condition() -> None:
            real, real_ns, turns = time.time, time.time_ns, iter(range(1 << 62))
            time.time = lambda: real() + wrong[next(turns) % len(wrong)]
            time.time_ns = lambda: real_ns() + int(1e9 * wrong[next(turns) % len(wrong)])

        self.follow("a clock that jumps", condition, count=2)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Context in which a tmpfs is mounted at ``folder``."""
    folder.mkdir(exist_ok=True, mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def may_mount() -> bool:
    """Whether this process may mount a tmpfs."""
    with tempfile.TemporaryDirectory(prefix="vkep-folders-") as home:
        try:
            with mounted(Path(home) / "tried", "size=4k"):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


WHAT = ("crowd", "full", "readonly", "clock")
_NEEDS_MOUNT = {"full"} if os.name == "posix" and os.geteuid() else {"full", "readonly"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where the answer of every process was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=10, help="cases of each kind")
    parser.add_argument("--jobs", type=int, default=20, help="processes of a crowd")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--what", nargs="*", default=list(WHAT), choices=WHAT)
    given = parser.parse_args(arguments)
    bad = total = 0
    mounts = may_mount()
    for what in given.what:
        if what in _NEEDS_MOUNT and not mounts:
            print(f"{what}: left out, a tmpfs cannot be mounted here")
            continue
        cases = Cases(random.Random(f"{given.seed}/{what}"), given.jobs)
        for _ in range(given.count):
            with tempfile.TemporaryDirectory(prefix="vkep-folders-") as home:
                folder = Path(home) / "cache"
                os.environ["VKEP_CACHE_DIR"] = str(folder)
                getattr(cases, what)(folder)
                cases.follow(f"{what}: the next process")
        print(f"{what}: {given.count} cases, {cases.bad} processes with something wrong", flush=True)
        bad, total = bad + cases.bad, total + given.count
    print(f"{total} cases, {bad} with something wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
