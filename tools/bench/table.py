"""The results as a table for people: on the terminal, or as Markdown for docs/."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.table import Table

from tools.bench.measure import Result

HEADINGS = (
    "model",
    "peer",
    "median ms",
    "p10 - p90",
    "ratio",
    "of limit",
    "fresh process s",
    "relative error",
    "where",
)
DETAIL_LENGTH = 100


def rows(results: Sequence[Result], base: str) -> Iterable[tuple[str, ...]]:
    """One row a result. The ratio is a peer's median over that of `base` on the same model: above 1 is slower."""
    medians = {result.model: result.median_ms for result in results if result.peer == base}
    for result in results:
        lines = result.detail.strip().splitlines()
        detail = lines[0] if lines else ""
        if len(detail) > DETAIL_LENGTH:
            detail = detail[: DETAIL_LENGTH - 1] + "…"
        if result.status != "measured":
            yield (result.model, result.peer, result.status, "", "", "", "", "", detail)
            continue
        yield (
            result.model,
            result.peer,
            number(result.median_ms),
            f"{number(result.percentile_ms(10))} - {number(result.percentile_ms(90))}",
            number(result.median_ms / medians.get(result.model, math.nan)),
            number(result.of_limit),
            number(result.fresh_process_ms / 1e3),
            f"{result.relative_error:.1e}",
            detail,
        )


def number(value: float) -> str:
    """Three significant digits without an exponent; "-" for NaN and infinities."""
    if math.isnan(value):
        return "-"
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"


def terminal_table(results: Sequence[Result], base: str) -> Table:
    """A rich table, ruled between models."""
    table = Table(*HEADINGS, title=f"ratio: against {base}, above 1 is slower")
    for column in range(2, 8):
        table.columns[column].justify = "right"
        table.columns[column].no_wrap = True
    for column in (0, 1):
        table.columns[column].no_wrap = True
    table.columns[-1].overflow = "fold"
    table.columns[-1].min_width = 24
    previous = ""
    for row in rows(results, base):
        if previous and row[0] != previous:
            table.add_section()
        previous = row[0]
        table.add_row(*row)
    return table


def markdown_table(results: Sequence[Result], base: str) -> str:
    """The same table in Markdown."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows(results, base)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
