"""Take models through the forms in which users run them, and compare vkep with ONNX Runtime's CPU provider without optimization.

    python -m tools.user_forms                                        # parts of networks, in every form
    python -m tools.user_forms --catalog --forms QDQ onnxslim
    python -m tools.user_forms resnet18/TorchScript resnet18/dynamo model.onnx
    python -m tools.user_forms --torch                                # all networks of tools.half_precision, by both exporters

Prints a row for each form, then what is not equal. Forms whose package is not installed are left out. What the tool of a form
cannot make, or ONNX Runtime cannot run, is counted apart. The exit status is 1 if vkep fails or differs:
`tools.user_forms.judge` says when.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter
from collections.abc import Sequence

from tools.half_precision.networks import NETWORKS
from tools.models.catalog import BENCHMARKS
from tools.models.fusions import FUSIONS
from tools.user_forms.compare import DIFFERS, EQUAL, NOT_MADE, REFUSED, Result, compare, line_of
from tools.user_forms.forms import FORMS
from tools.user_forms.sources import EXPORTERS, source
from tools.worker_pool import run_tasks


def results_of(name: str, forms: Sequence[str]) -> list[Result]:
    """One model in the forms."""
    try:
        model, feeds = source(name)()
    except Exception as error:
        return [Result(name, form, NOT_MADE, line_of(error)) for form in forms]
    return [compare(name, FORMS[form], model, feeds) for form in forms]


def lost(name: str, why: str, forms: Sequence[str]) -> list[Result]:
    """The results of a model whose process ended, or which took too long: vkep need not be the cause of that."""
    return [Result(name, form, NOT_MADE if why.startswith("hung") else DIFFERS, why) for form in forms]


def table(results: Sequence[Result], forms: Sequence[str]) -> str:
    """A row for each form in Markdown, with those that are left out, then a line for each result that is not equal or not wholly
    on Vulkan."""
    lines = [
        f"| form | {EQUAL} | {DIFFERS} | {REFUSED} | {NOT_MADE} | with operators on the CPU |",
        "|---|---|---|---|---|---|",
    ]
    for form in forms:
        if not FORMS[form].is_available:
            lines.append(f"| {form} | left out: no package {FORMS[form].package} | | | | |")
            continue
        of = [r for r in results if r.form == form]
        count = Counter(r.verdict for r in of)
        shown = " | ".join(str(count[v]) for v in (EQUAL, DIFFERS, REFUSED, NOT_MADE))
        lines.append(f"| {form} | {shown} | {sum(bool(r.on_cpu) for r in of)} |")
    for r in results:
        if r.verdict != EQUAL or r.on_cpu:
            left = f" on the CPU: {' '.join(r.on_cpu)}" if r.on_cpu else ""
            lines.append(f"{r.verdict}: {r.model}, {r.form}: {r.why}{left}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the table. 1 if a result differs or nothing was compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="by default all of tools.models.fusions")
    parser.add_argument("--catalog", action="store_true", help="also the models of tools.models.catalog")
    parser.add_argument("--torch", action="store_true", help="also networks of torch, by both exporters")
    parser.add_argument(
        "--forms", nargs="+", metavar="FORM", choices=FORMS, default=tuple(FORMS), help="by default all"
    )
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one model")
    args = parser.parse_args(arguments)
    names = list(args.models) or ([] if args.catalog or args.torch else list(FUSIONS))
    names += BENCHMARKS if args.catalog else ()
    names += [f"{network}/{exporter}" for network in NETWORKS for exporter in EXPORTERS] if args.torch else ()
    for name in names:
        try:
            source(name)
        except ValueError as error:
            parser.error(str(error))
    available = [form for form in args.forms if FORMS[form].is_available]
    run = functools.partial(results_of, forms=available)
    found: dict[str, list[Result]] = {}

    for results in run_tasks(
        names, run, functools.partial(lost, forms=available), jobs=args.jobs, timeout=args.timeout
    ):
        found[results[0].model] = results
        bad = [f"{r.form}: {r.verdict} {r.why}" for r in results if r.verdict != EQUAL]
        print(f"{results[0].model}: {'; '.join(bad) or 'equal'}", file=sys.stderr, flush=True)
    ordered = [r for name in names for r in found[name]]
    print(table(ordered, args.forms))
    return int(any(r.verdict == DIFFERS for r in ordered) or not any(r.verdict == EQUAL for r in ordered))


if __name__ == "__main__":
    sys.exit(main())
