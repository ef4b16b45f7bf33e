"""Writes the section "Coverage" of docs/executorch.md: the operators of ExecuTorch's Vulkan backend, and the ONNX
operators that they are converted to.

    python -m tools.aten_table

The rows come from importing the cases of tests/aten: an operator without a test is not in the table.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from tests.aten import blobs
from tests.aten.all_cases import CASES
from tests.aten.stored import DROPPED, NO_CALL, REGISTRY, expected_of, read_stored
from vkep.aten import find, import_vk_graph

PATH = Path(__file__).parent.parent / "docs" / "executorch.md"
BEGIN, END = "<!-- coverage: written by python -m tools.aten_table -->", "<!-- coverage: end -->"


def main() -> None:
    text = PATH.read_text(encoding="utf-8") if PATH.exists() else "# ExecuTorch\n"
    PATH.write_text(with_section(text), encoding="utf-8")
    print(f"wrote {PATH.name}")


def with_section(text: str) -> str:
    """The document with its section replaced, or appended where it has none."""
    head, begin, rest = text.partition(BEGIN)
    if not begin:
        return f"{text.rstrip()}\n\n## Coverage\n\n{_section()}\n"
    return f"{head}{_section()}{rest.partition(END)[2]}"


def _section() -> str:
    counts: Counter[str] = Counter()
    becomes: defaultdict[str, set[str]] = defaultdict(set)
    stored = read_stored()
    for case in CASES:
        operator = find(case.name)
        assert operator is not None
        counts[operator.name] += 1
        blob = blobs.blob_of(case, expected_of(case, stored))
        for node in import_vk_graph(blob.graph(), blob.data).model.graph.nodes:
            becomes[operator.name].add(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
    rows = []
    for name in REGISTRY:
        operator = find(name)
        if name in NO_CALL:
            note, count = "not an operator call: list elements are resolved at load", ""
        elif name in DROPPED:
            note, count = "a check of the exporter: dropped", ""
        else:
            assert operator is not None
            note = ", ".join(sorted(becomes[operator.name])) or "nothing: its argument, or a constant"
            count = str(counts[operator.name])
        rows.append(f"| `{name}` | {note} | {count} |")
    given = len(REGISTRY) - len(NO_CALL)
    lines = [
        BEGIN,
        f"The registry of ExecuTorch 1.5.1's Vulkan backend has {len(REGISTRY)} names; vkep declares {given} of them; the other",
        "is not an operator call. Each becomes nodes of ONNX, which the compiler folds, fuses and places like any other;",
        "the last column counts the cases of tests/aten, each run by onnxruntime and on Vulkan and held to PyTorch's results.",
        "",
        "| operator | becomes | cases |",
        "|---|---|---:|",
        *rows,
        END,
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
