"""Checks that every generated file equals its generator's present output.

    python -m tools.generated            # those that take seconds; exit status 1 where a file differs
    python -m tools.generated --all      # also those that plan or run whole test suites (minutes)
    python -m tools.generated --write    # keep what the generators write

The check runs the generator, compares the files, and puts the old ones back.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Generator:
    """A command that writes files of the repository."""

    module: str
    files: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    slow: bool = False

    @property
    def command(self) -> str:
        """The command line, as a user would type it."""
        return " ".join(("python -m", self.module, *self.arguments))


GENERATORS = (
    Generator("tools.structures", ("registry/gpu_shared/_structures.py",)),
    Generator("tools.aten_table", ("docs/executorch.md",)),
    Generator("tools.backend_suite.contrib", ("docs/operators.md",), ("--write",)),
    Generator("tools.tosa_coverage", ("docs/vgf.md",), ("--write",)),
    Generator("tools.ort_api", ("docs/python-api.md",), ("--write",)),
    Generator("tools.manual", ("docs/man/vkep.1",)),
    Generator("tools.plan_digests", ("tests/lowering/data/plan_digests.json",), ("--write",)),
    Generator("tools.device_records", ("docs/devices.md",), ("--write",), slow=True),
    Generator(
        "tools.backend_suite",
        ("docs/operators.md", "tests/onnx_backend/baseline.json"),
        ("--write",),
        slow=True,
    ),
)


def changed(generator: Generator, *, keep: bool) -> list[str]:
    """The generator's files whose content would differ now. The old ones are restored unless `keep`. Raises
    ``subprocess.CalledProcessError`` where the generator fails."""
    before = {name: (ROOT / name).read_bytes() for name in generator.files}
    try:
        subprocess.run([sys.executable, "-m", generator.module, *generator.arguments], cwd=ROOT, check=True)
        return [name for name, old in before.items() if (ROOT / name).read_bytes() != old]
    finally:
        if not keep:
            for name, old in before.items():
                (ROOT / name).write_bytes(old)


def main() -> int:
    """Check (or write) the files. Exit status 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also the generators that take minutes")
    parser.add_argument("--write", action="store_true", help="keep what the generators write")
    given = parser.parse_args()
    status = 0
    for generator in GENERATORS:
        if generator.slow and not given.all:
            continue
        for name in changed(generator, keep=given.write):
            status = 1
            print(
                f"{name}: {'written again' if given.write else 'differs from what is generated'} ({generator.command})"
            )
    return 0 if given.write else status


if __name__ == "__main__":
    sys.exit(main())
