"""``python -m tools.tosa_conformance FOLDER``: run generated TOSA conformance tests through converter, VGF and data graph.

The tests come from tosa-tools (the extra ``tosa``), which also computes what is right and checks:

    tosa_verif_conformance_generator --operators add conv2d --profile tosa-pro-fp --tosa-version 1.0.2 \\
        --test-type positive --output-type both --output-directory FOLDER

Prints a table of passes by operator; ``--json FILE`` keeps every failure with its reason.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_KERNEL = re.compile(r"(_\d+(x\d+)+)+$")  #: the generator sorts convolutions by the size of their kernel
#: the element types that vkep lowers to
_TYPES = frozenset({"FP32", "FP16", "INT32", "INT16", "INT8", "BOOL"})


class Bench:
    """A context with data graphs, and the reference model's checker."""

    def __init__(self) -> None:
        import tosa_reference_model
        from checker.verifier import VerifierLibrary

        from vkep.device.datagraph.context import create_graph_context
        from vkep.device.datagraph.delegate import VgfDelegate
        from vkep.device.delegate import VulkanDelegate
        from vkep.shaders.library import ShaderLibrary

        site = Path(tosa_reference_model.__file__).parents[1]
        self._model = site / "bin" / "tosa_reference_model"
        folder = Path(tosa_reference_model.__file__).parent
        self._verifier = VerifierLibrary(folder / "libtosa_reference_verify_lib.so")
        self.context = create_graph_context({"gpu_shared_context_token": "tosa conformance"}, validation=False)
        self.memory = VulkanDelegate(self.context, ShaderLibrary())
        self.delegate = VgfDelegate(self.memory)

    def run(self, folder: Path) -> tuple[str, str]:
        """(outcome, detail) of one test: "pass", "wrong" (the checker says no), "refused" (with who and why) or "unchecked"
        (the reference model gives nothing to compare with).
        """
        from vkep.device.datagraph.runner import VgfRunner
        from vkep.dtypes import DTYPES
        from vkep.vgf import decode, mlir_to_vgf

        description = json.loads((folder / "desc.json").read_text(encoding="utf-8"))
        graph = (folder / description["tosa_file"]).read_bytes()
        inputs = [np.load(folder / name) for name in description["ifm_file"]]
        compliance = description["meta"]["compliance"]
        try:
            vgf = decode(mlir_to_vgf(graph))
            runner = VgfRunner(self.delegate, vgf)
            try:
                arrays = [
                    # the tests' files are signed, whatever type RESCALE's bits have; the VGF file has the type
                    a.reshape(vgf.resources[s.resource].shape).view(DTYPES[vgf.resources[s.resource].dtype].numpy)
                    for a, s in zip(inputs, vgf.inputs, strict=True)
                ]
                results = runner.run(arrays)
            finally:
                runner.close()
        except Exception as error:  # refused by the converter, the driver or vkep: reported with its kind
            return "refused", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        try:
            exact, bounds = self._expected(folder, description)
        except (OSError, RuntimeError) as error:
            return "unchecked", f"the reference model: {error}"
        for name, result in zip(description["ofm_name"], results, strict=True):
            if result.dtype.kind == "u":
                result = result.view(f"i{result.itemsize}")
            shaped = result.reshape(
                exact[name].shape
            ).copy()  # also of rank 0, which ascontiguousarray would turn into rank 1
            if not self._verifier.verify_data(name, compliance, shaped, exact[name], bounds.get(name)):
                return "wrong", f"{name}: {compliance['tensors'][name]['mode']}"
        return "pass", ""

    def _expected(self, folder: Path, description: dict[str, Any]) -> tuple[dict[str, Array], dict[str, Array]]:
        """The reference model's outputs in float64 (or integers), and the bounds where the test asks for some.

        Its executable: the Python binding gives no float64 results.
        """
        with tempfile.TemporaryDirectory(prefix="tosa-") as name:
            arguments = ["--test_desc", str(folder / "desc.json"), "--output_dir", name, "--precise_mode=1"]
            done = subprocess.run(
                [str(self._model), *arguments], capture_output=True, text=True, timeout=600, check=False
            )
            if done.returncode:
                raise RuntimeError(" ".join((done.stderr or done.stdout).split())[-200:])
            exact, bounds = {}, {}
            for output, file in zip(description["ofm_name"], description["ofm_file"], strict=True):
                exact[output] = np.load(Path(name) / file)
                if (Path(name) / f"bounds_{file}").is_file():
                    bounds[output] = np.load(Path(name) / f"bounds_{file}")
        return exact, bounds

    def close(self) -> None:
        self.delegate.close()
        self.memory.close()
        self.context.close()


def tests_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """(operator, folder) of every positive test on element types that vkep lowers to."""
    for path in sorted(folder.rglob("desc.json")):
        description = json.loads(path.read_text(encoding="utf-8"))
        tensors = description["meta"].get("compliance", {}).get("tensors", {})
        known = tensors and all(t["data_type"] in _TYPES for t in tensors.values())
        if known and not description["expected_failure"] and (path.parent / description["tosa_file"]).is_file():
            yield _KERNEL.sub("", path.parent.parent.name), path.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=0, help="at most so many of each operator, picked by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write outcomes here")
    arguments = parser.parse_args()
    by_operator = collections.defaultdict(list)
    for operator, folder in tests_in(arguments.folder):
        by_operator[operator].append(folder)
    bench = Bench()
    outcomes = []
    print("| operator | tests | pass | wrong | refused | unchecked |\n|---|---|---|---|---|---|")
    for operator, folders in sorted(by_operator.items()):
        if arguments.most and len(folders) > arguments.most:
            folders = sorted(random.Random(arguments.seed).sample(folders, arguments.most))
        counts: collections.Counter[str] = collections.Counter()
        for folder in folders:
            outcome, detail = bench.run(folder)
            counts[outcome] += 1
            outcomes.append({"test": folder.name, "operator": operator, "outcome": outcome, "detail": detail})
        cells = (operator, len(folders), *(counts[o] for o in ("pass", "wrong", "refused", "unchecked")))
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    bench.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(outcomes, indent=1), encoding="utf-8")
    return 0 if all(o["outcome"] == "pass" for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
