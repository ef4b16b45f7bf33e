"""The operators of com.microsoft that ONNX Runtime has kernels for, and vkep's support of each: a section of
docs/operators.md.

python -m tools.backend_suite.contrib                  # the section
python -m tools.backend_suite.contrib --write          # into docs/operators.md
python -m tools.backend_suite.contrib --read FOLDER    # first reads the tables of kernels, from a checkout of ONNX Runtime's
                                                       # sources, and of the onnxruntime that is installed
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

from tools.backend_suite import contrib_schemas

PATH = Path(__file__).parents[2] / "docs/operators.md"
#: the providers that have a kernel, by operator; written by ``--read``
KERNELS = Path(__file__).with_name("contrib_kernels.json")
DOMAIN = "com.microsoft"
_TABLES = {"CPU": "cpu", "CUDA": "cuda", "WebGPU": "webgpu"}
_TITLE = "## com.microsoft"
_HEAD = """
Every operator of the domain that a CPU, CUDA or WebGPU provider of ONNX Runtime has a kernel for (its sources' tables, and for
the CPU the kernels of onnxruntime {version}), and those that only its schemas have and vkep runs. Types are those of the first
input that has some. vkep's own tests hold each against onnxruntime, or against numpy where its CPU provider has no kernel.

| operator | ONNX Runtime | vkep |
|---|---|---|
"""
_SCHEMAS = """
Where a declaration differs from the newest schema of the domain (`python -m tools.backend_suite.contrib_schemas` compares
all):

| operator | in vkep | reason |
|---|---|---|
"""
_GRAPHS = (
    "a search whose kernel calls the model's subgraphs step by step and ends where its data say so; the provider interface has "
    "no helper for it. ONNX Runtime's CPU kernel runs the search, and vkep each step's subgraph"
)
_DEVICES = "several devices that exchange tensors (NCCL)"
#: why vkep has no kernel
REASONS = {
    "ATen": "calls PyTorch",
    **dict.fromkeys(("AllGather", "AllReduce", "AllToAll", "ShardedMoE"), _DEVICES),
    **dict.fromkeys(("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"), _GRAPHS),
    "GatherPacked": "weights in ONNX Runtime's packed-weight formats",
    "MatMulFpQ4": "weights in a layout private to ONNX Runtime's CPU library",
    "MaxpoolWithMask": "for ONNX Runtime's internal use: its kernel reads the mask of channel c from element "
    "c * size % channels on, and a zero ends the window's row",
    "ShrunkenGather": "Gather for training builds of ONNX Runtime; it has no schema in the others",
    "Tokenizer": "strings",
}  # fmt: skip


def read(folder: Path) -> dict[str, list[str]]:
    """The providers that have a kernel, by operator, from the tables of ``folder`` and the installed onnxruntime."""
    import onnxruntime.capi.onnxruntime_pybind11_state as state

    schemas = {s.name for s in state.get_all_operator_schema() if s.domain == DOMAIN}
    found: dict[str, set[str]] = defaultdict(set)
    for kernel in state.get_all_opkernel_def():
        if kernel.domain == DOMAIN:
            found[kernel.op_name].add("CPU")
    for provider, name in _TABLES.items():
        table = (folder / f"onnxruntime/contrib_ops/{name}/{name}_contrib_kernels.cc").read_text()
        for macro in re.finditer(r"BuildKernelCreateInfo<\s*(?:class\s+)?\w+\(([^()]*)\)\s*>", table):
            parts = [part.strip() for part in macro[1].split(",")]
            if not {"kOnnxDomain", "kMSInternalNHWCDomain", "kMSNchwcDomain"} & set(parts):
                found[parts[-1]].add(provider)
    known = {name: providers for name, providers in found.items() if name in schemas or name in REASONS}
    if "webgpu" in _TABLES.values():  # registered beside its table
        known["GroupQueryAttention"] |= {"WebGPU"}
    return {name: [p for p in _TABLES if p in known[name]] for name in sorted(known)}


def declared() -> dict[str, str]:
    """The element types that vkep's kernels take, by operator."""
    from vkep.ops.registry import SIZED, declared

    found = {}
    for entry in declared():
        types = " ".join(next(iter(entry.types.values()), ()))
        if entry.domain == DOMAIN:
            found[entry.op_type] = types or "float32 float16 bfloat16 float64"  # IsAllFinite looks itself
        elif entry.domain == SIZED and entry.op_type.startswith(f"{DOMAIN}.") and entry.op_type.endswith("Fill"):
            found[entry.op_type.removeprefix(f"{DOMAIN}.").removesuffix("Fill")] = types
    return found


def section() -> str:
    """The section, with its title."""
    kept = json.loads(KERNELS.read_text())
    kernels, ours = kept["kernels"], declared()
    rows = []
    for name in sorted({*kernels, *ours}):
        where = " ".join(kernels.get(name, ())) or "a schema"
        rows.append(f"| {name} | {where} | {ours[name] if name in ours else 'no: ' + REASONS[name]} |")
    table = _TITLE + _HEAD.format(version=kept["version"]) + "\n".join(rows) + "\n"
    return table + _SCHEMAS + "\n".join(contrib_schemas.rows()) + "\n"


def replaced(page: str) -> str:
    """The page with the section in place of its old one, or at its end."""
    before, found, after = page.partition(_TITLE)
    rest = after.partition("\n## ")[2]
    return before.rstrip() + "\n\n" + section() + ("\n## " + rest if found and rest else "")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--read", type=Path, metavar="FOLDER", help="a checkout of ONNX Runtime's sources")
    parser.add_argument("--write", action="store_true", help=f"write {PATH.name}")
    args = parser.parse_args(argv)
    if args.read:
        import onnxruntime

        kept = {"version": onnxruntime.__version__, "kernels": read(args.read)}
        KERNELS.write_text(json.dumps(kept, indent=1) + "\n")
    if args.write:
        PATH.write_text(replaced(PATH.read_text()))
    else:
        print(section())
    return 0


if __name__ == "__main__":
    sys.exit(main())
