"""``python -m tools.vgf_suite [PATTERN]``: ONNX's node tests with prefer="vgf_first"; status 1 for a wrong result or an error."""

from __future__ import annotations

import argparse
import fnmatch
import logging
import sys
import time
import warnings
from collections import Counter
from typing import Any

from tools.backend_suite.cases import Case, check_outputs, load_cases


def run_case(case: Case, context: Any) -> tuple[str, str]:
    """("ok" | "wrong" | "other" | "refused" | "error", detail).

    "other": no node ran as a data graph. "refused": a node that neither a delegate nor an evaluator on this machine takes.
    """
    from vkep import InferenceSession, VkepError

    model = case.model()
    try:
        with InferenceSession(model, context=context, prefer="vgf_first") as session:
            for inputs, outputs in case.data(model):
                names = [argument.name for argument in session.get_inputs()]
                got = session.run(None, dict(zip(names, inputs, strict=True)))
                if not session.report().counts.get("vgf"):
                    return "other", ""
                check_outputs(case, outputs, got)
    except AssertionError as error:
        return "wrong", " ".join(str(error).split())[:200]
    except VkepError as error:
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return ("refused" if str(error).startswith("on the CPU") else "error"), detail
    except Exception as error:  # any exception of a case is counted and shown
        return "error", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "ok", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="node/*", help="cases to run, as node/test_conv*")
    parser.add_argument("--verbose", action="store_true", help="also show what is refused")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("vkep").setLevel(logging.ERROR)

    from vkep.device.datagraph.context import create_graph_context

    counts: Counter[str] = Counter()
    start = time.perf_counter()
    with create_graph_context({"gpu_shared_context_token": "vgf suite"}, validation=False) as context:
        for name, case in load_cases().items():
            if not fnmatch.fnmatch(name, arguments.pattern):
                continue
            outcome, detail = run_case(case, context)
            counts[outcome] += 1
            if outcome in ("wrong", "error") or (outcome == "refused" and arguments.verbose):
                print(f"{outcome}: {name}: {detail}")
    print(
        f"{counts['ok']} right and {counts['wrong']} wrong with data graphs, {counts['other']} without any, "
        f"{counts['refused']} refused, {counts['error']} errors, in {time.perf_counter() - start:.0f} s"
    )
    return 1 if counts["wrong"] or counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
