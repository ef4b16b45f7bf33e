"""Command line: ``python -m tools.executorch_data --out FOLDER [names]``. Needs ``pip install vkep[executorch]``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from pathlib import Path

from tools.executorch_data.catalog import CATALOG, SMALL
from tools.executorch_data.export import write


def main(arguments: list[str] | None = None) -> int:
    """Export the named models, each in its variants; 1 where one could not be exported."""
    parser = argparse.ArgumentParser(prog="python -m tools.executorch_data", description=main.__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"one of: {', '.join(CATALOG)} (default: the small ones)"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to: one folder a model")
    parser.add_argument("--variant", action="append", help="only this variant (may be given again)")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(CATALOG)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    failed = 0
    for name in given.names or SMALL:
        for variant in CATALOG[name].variants:
            if given.variant and variant not in given.variant:
                continue
            start = time.perf_counter()
            logging.disable(logging.INFO)  # the partitioners log every node
            try:
                paths = write(name, variant, given.out / name)
            except Exception:
                traceback.print_exc()
                print(f"{name}/{variant}: not exported", file=sys.stderr, flush=True)
                failed += 1
                continue
            size = sum(path.stat().st_size for path in paths)
            print(f"{name}/{variant}: {size} bytes, {time.perf_counter() - start:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
