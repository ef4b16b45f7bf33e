"""Running cases: in worker processes, so that a crash or a hang costs one case and not the run."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence

from gpu_shared.context import SharedGpuContext
from gpu_shared.instance import validation_log
from tools.backend_suite import through_ort
from tools.backend_suite.cases import Case, check_outputs, load_cases
from tools.backend_suite.outcome import CPU, DECLINED, FAILED, VULKAN, Outcome
from tools.validation_layers import complaints
from tools.worker_pool import run_tasks


def run_case(case: Case) -> Outcome:
    """Run one case in this process on the default Vulkan device, on the context of the cases before."""
    from vkep.backend import VulkanBackend
    from vkep.errors import InvalidInputError, UnsupportedModelError, VkepError

    started = time.perf_counter()
    before = len(validation_log)

    def outcome(state: str, reasons: Sequence[str] = (), folded: bool = False) -> Outcome:
        took = round(time.perf_counter() - started, 3)
        return Outcome(case.name, case.operator(), state, tuple(dict.fromkeys(reasons)), folded, took, dtypes)

    dtypes: tuple[str, ...] = ()
    reasons: list[str] = []
    vulkan = on_cpu = False
    try:
        model = case.model()
        prepared = VulkanBackend.prepare(model, context=shared_context())
        try:
            for inputs, expected in case.data(model):
                dtypes = tuple(dict.fromkeys(str(getattr(v, "dtype", type(v).__name__)) for v in [*inputs, *expected]))
                got = list(prepared.run(inputs))
                for node in prepared.report().nodes:
                    if node.where in ("cpu", "deferred"):
                        on_cpu = True
                        reasons.append(f"{node.op_type}: {node.reason}")
                    vulkan |= node.where == "vulkan"
                check_outputs(case, expected, got)
        finally:
            prepared.close()
    except UnsupportedModelError as error:
        return outcome(DECLINED, [_one_line(error)])
    except (InvalidInputError, ValueError) as error:
        return outcome(FAILED, [f"{type(error).__name__}: {_one_line(error)}"])
    except VkepError as error:
        # a node that Vulkan declined, and that no evaluator on the CPU takes: the message says which, and why
        state = DECLINED if str(error).startswith("on the CPU") else FAILED
        return outcome(state, [_one_line(error)])
    except AssertionError as error:
        where = f"wrong, with nodes on the CPU ({reasons[0]}): " if reasons else "wrong: "
        return outcome(FAILED, [where + _one_line(error)])
    except Exception as error:  # any exception of a broken case is its result
        return outcome(FAILED, [f"{type(error).__name__}: {_one_line(error)}"])
    if said := complaints(since=before):
        return outcome(FAILED, [f"validation layers: {_one_line(said[-1])}"])
    if case.is_random:
        return outcome(
            DECLINED, ["the expected values are random draws: shape and type agree, values cannot be compared"]
        )
    return outcome(CPU, reasons) if on_cpu else outcome(VULKAN, folded=not vulkan)


_kept: list[SharedGpuContext] = []


def shared_context() -> SharedGpuContext:
    """This process's: to make one takes longer than most cases. One that a case lost is replaced."""
    if not _kept or not _kept[0].is_valid:
        _kept[:] = [SharedGpuContext.create({"gpu_shared_context_token": "cases"})]
    return _kept[0]


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:600]


#: what runs a case, by the name that the command line gives it
RUNNERS: dict[str, Callable[[Case], Outcome]] = {
    "vkep": run_case,
    "ort": through_ort.run_case,
    "ort-kernels": functools.partial(through_ort.run_case, kernels="registry"),
}


def run_cases(
    names: Sequence[str], *, jobs: int, timeout: float, through: str = "vkep", until: float | None = None
) -> Iterator[Outcome]:
    """Run cases in ``jobs`` processes; one that gives no result in ``timeout`` seconds is ended and counts as failed. After
    ``until`` (`time.monotonic`) no case begins.
    """
    return run_tasks(names, functools.partial(_run_named, through), _lost, jobs=jobs, timeout=timeout, until=until)


def _run_named(through: str, name: str) -> Outcome:
    return RUNNERS[through](load_cases()[name])


def _lost(name: str, why: str) -> Outcome:
    return Outcome(name, load_cases()[name].operator(), FAILED, (why,))
