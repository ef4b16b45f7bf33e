"""Command line: `python -m tools.models --out FOLDER [names]`."""

from __future__ import annotations

import argparse
import collections
import logging
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import onnx

from tools.models.catalog import BENCHMARKS, CATALOG, MICRO, Options, write_model
from tools.user_forms.forms import FORMS


def main(arguments: list[str] | None = None) -> int:
    """Write the named models (default: all benchmark models) and print their files."""
    parser = argparse.ArgumentParser(prog="python -m tools.models", description="Write the benchmark models.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of: {', '.join(CATALOG)}")
    parser.add_argument("--out", type=Path, default=Path("models"), help="folder to write to (default: models)")
    parser.add_argument("--batch", type=int, default=1, help="batch size")
    parser.add_argument("--dynamic", action="store_true", help="symbolic batch, sequence and past dimensions")
    parser.add_argument("--float16", action="store_true", help="store floats as float16")
    parser.add_argument("--external-data", action="store_true", help="weights in a file of their own")
    parser.add_argument("--ops", action="store_true", help="the one-operator models too")
    parser.add_argument("--missing", action="store_true", help="keep models that are there already")
    parser.add_argument("--form", action="append", default=[], choices=list(FORMS), metavar="FORM",
                        help=f"this form of each model too, as NAME-FORM.onnx; repeatable: {', '.join(FORMS)}")  # fmt: skip
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    names = given.names or [*BENCHMARKS, *(MICRO if given.ops else ())]
    options = Options(given.batch, given.dynamic, given.float16, given.external_data)
    for name in names:
        if given.missing and (given.out / f"{name}.onnx").exists() and (given.out / f"{name}.npz").exists():
            continue
        start = time.perf_counter()
        try:
            path = write_model(name, given.out, options)
        except ValueError as problem:
            print(f"error: {problem}", file=sys.stderr)
            return 2
        print(describe(path, time.perf_counter() - start), flush=True)
        for form in given.form:
            print(describe(write_form(path, form), time.perf_counter() - start), flush=True)
    return 0


def write_form(path: Path, form: str) -> Path:
    """Write a form of the model at ``path`` beside it, with the model's inputs and outputs (`tools.user_forms`)."""
    with np.load(path.with_suffix(".npz")) as stored:
        feeds = {name[3:]: stored[name] for name in stored if name.startswith("in_")}
    made = path.with_stem(f"{path.stem}-{form.replace(', ', '-').replace(' ', '-')}")
    onnx.save(FORMS[form].make(onnx.load(path), feeds), made)
    shutil.copy(path.with_suffix(".npz"), made.with_suffix(".npz"))
    return made


def describe(path: Path, seconds: float) -> str:
    """One line on a written model: size, operators, and the range of its outputs."""
    model = onnx.load(path, load_external_data=False)
    operators = collections.Counter(node.op_type for node in model.graph.node)
    with np.load(path.with_suffix(".npz")) as stored:
        ranges = [
            f"{name[4:]} {list(stored[name].shape)} max {np.abs(stored[name]).max():.3g} std {stored[name].std():.3g}"
            for name in stored
            if name.startswith("out_")
        ]
    kinds = ", ".join(f"{count} {kind}" for kind, count in operators.most_common())
    size = sum(part.stat().st_size for part in path.parent.glob(f"{path.stem}.*") if part.suffix != ".npz")
    return f"{path.name}: {size / 2**20:.1f} MiB, {kinds}; {'; '.join(ranges)}; {seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
