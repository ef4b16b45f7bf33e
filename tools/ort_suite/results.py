"""The counts of the last runs, which ``docs/operators.md`` shows: by operator, without anything of the tests themselves."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.ort_suite.judge import CPU, DECLINED, ERROR, LOST, RAN, REFUSED, VULKAN, WRONG, Verdict

PATH = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs/operators.md"
_TITLE = "## ONNX Runtime's own tests"
CASES, MODELS, MODELS_THROUGH_ORT = "C++ cases", "model files, plain session", "model files, through ONNX Runtime"
#: onnx's backend tests, whose own table (``tools.backend_suite``) is lavapipe's
SUITE = "ONNX's backend tests"
_MUST_FAIL = "C++ cases that must fail"
_SKIPPED = "skipped"
#: number of reasons in a row, and the length of each
_REASONS, _LENGTH = 3, 140


def keep(kind: str, verdicts: Sequence[Verdict], path: Path = PATH, device: str = "") -> None:
    """Keep a run's counts; those of operators that it did not have stay as they are. ``device`` is the name of another device
    than lavapipe, whose counts have rows of their own.
    """
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    groups: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for v in verdicts:
        groups[_on(_MUST_FAIL if v.must_fail else kind, device), v.operator].append(v)
    for (name, operator), group in groups.items():
        why = Counter(_short(v.reason) for v in group if v.verdict not in (VULKAN, REFUSED, _SKIPPED) and v.reason)
        entry = {"verdicts": dict(sorted(Counter(v.verdict for v in group).items()))}
        if why and not group[0].must_fail:
            entry["why"] = dict(why.most_common(_REASONS))
        kept.setdefault(name, {})[operator] = entry
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def _on(kind: str, device: str) -> str:
    return f"{kind}, on {device}" if device else kind


def section(path: Path = PATH) -> str:
    """The part of ``docs/operators.md``."""
    kept: dict[str, Any] = json.loads(path.read_text())
    lines = [
        _TITLE,
        "`python -m tools.ort_suite FOLDER --write` on a checkout of its sources, and with `--models`, and with `--models",
        "--through ort`: the C++ cases that its CPU provider answers as they expect, and the model files that it runs. Whole",
        "is a case of which every node ran on Vulkan; those that are wrong are in the table above. A row of another device has",
        "cases of at most 256 KiB whose expected answers are in the file (`--pack`, `--device`).",
        "",
        "| what | cases | right | whole | right, whole | right, some CPU | refused, declined | run, must fail | wrong | error "
        "| no answer |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    kinds = (CASES, _MUST_FAIL, MODELS, MODELS_THROUGH_ORT)
    others = sorted(name for name in kept if name not in kinds)
    for name in (*kinds, *others):
        counts = _total(kept.get(name, {}))
        total = sum(n for verdict, n in counts.items() if verdict != _SKIPPED)
        shown = (VULKAN, CPU), (DECLINED, REFUSED), (RAN, WRONG, ERROR, LOST)
        numbers = [counts[VULKAN], counts[CPU], sum(counts[v] for v in shown[1]), *(counts[v] for v in shown[2])]
        must_fail = name.startswith(_MUST_FAIL)
        right = counts[VULKAN] + counts[CPU] + (counts[REFUSED] if must_fail else 0)
        shares = [f"{100 * count / max(total, 1):.1f}%" for count in (right, counts[VULKAN])]
        if must_fail:
            shares[1] = ""
        lines.append(f"| {name} | {total} | " + " | ".join(map(str, (*shares, *numbers))) + " |")
    lines += ["", "C++ cases that are not right and whole, by operator:", ""]
    lines += ["| operator | cases | not whole | why, with the number of cases |", "|---|---:|---:|---|"]
    for operator, entry in sorted(kept.get(CASES, {}).items()):
        counts = Counter(entry["verdicts"])
        rest = counts.total() - counts[VULKAN]
        if rest:
            why = "; ".join(
                f"{reason} ({n})" for reason, n in sorted(entry.get("why", {}).items(), key=lambda e: -e[1])
            )
            lines.append(f"| {operator} | {counts.total()} | {rest} | {why.replace('|', ' ')} |")
    return "\n".join(lines) + "\n"


def replaced(page: str, path: Path = PATH) -> str:
    """The page with its part made again from the counts that are kept."""
    before, _, after = page.partition(_TITLE)
    return before + section(path) + "\n## " + after.partition("\n## ")[2]


def _total(entries: dict[str, Any]) -> Counter[str]:
    total: Counter[str] = Counter()
    for entry in entries.values():
        total.update(entry["verdicts"])
    return total


def _short(reason: str) -> str:
    """A reason without what differs from case to case: names of files, places, values."""
    text = " ".join(reason.split()).partition(" Register a Vulkan operator")[0]
    text = re.sub(r"input '[^']*' has an element type that no kernel takes", "texts", text)
    text = re.sub(r"^[\w.]+: ", "", text)  # the operator
    text = re.sub(r"^output \d+: .*", "other values", text)
    text = re.sub(r"^these nodes run neither on Vulkan nor on the CPU: \w+ '[^']*': ", "", text)
    return text if len(text) <= _LENGTH else text[: _LENGTH - 3].rstrip() + "..."
