"""The public names of the package ``onnxruntime``, and what vkep has for each: writes the table of docs/python-api.md.

    python -m tools.ort_api            # prints what differs without a reason; exit status 1 where something does
    python -m tools.ort_api --write    # writes the table

`tests/session/test_ort_api.py` compares names, parameters and defaults by `differences`.
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs/python-api.md"
BEGIN, END = "<!-- names of onnxruntime: python -m tools.ort_api --write -->", "<!-- end of these names -->"

_COMPILED = "plans are saved by themselves; ONNX Runtime compiles models with `vkep.ort`"
_PACKAGE = "model packages are a format of ONNX Runtime's own sessions"
_PLUGIN = "a session has one provider; `vkep.ort.register` registers vkep's with ONNX Runtime"
#: names that vkep lacks (a class, a function, or ``Class.member``), with the reason
ABSENT = {
    "ModelCompiler": _COMPILED,
    "OrtCompileApiFlags": _COMPILED,
    "OrtEpContextData": _COMPILED,
    "OrtEpContextDataBuffer": _COMPILED,
    "SessionOptions.clear_ep_context_data_read_func": _COMPILED,
    "SessionOptions.set_ep_context_data_read_func": _COMPILED,
    "ModelPackage": _PACKAGE,
    "ModelPackageComponentContext": _PACKAGE,
    "ModelPackageContext": _PACKAGE,
    "ModelPackageOptions": _PACKAGE,
    "ModelPackageWriteMode": _PACKAGE,
    "OrtEpDevice.create_sync_stream": "runs of a context are ordered by one timeline; `session.import_semaphore` orders others",
    "OrtSyncStream": "runs of a context are ordered by one timeline; `session.import_semaphore` orders others",
    "OrtExternalInitializerInfo": "it is for writing optimized models",
    "SessionOptions.set_load_cancellation_flag": "an exception raised by `progress` ends the opening of a session",
    "SessionOptions.set_provider_selection_policy_delegate": "`add_provider_for_devices` takes a device",
    "SessionIOBinding": "it is the C class below IOBinding",
    "InferenceSession.get_tuning_results": "`vkep tune` and the option `tuned` take its place",
    "InferenceSession.set_tuning_results": "`vkep tune` and the option `tuned` take its place",
    "InferenceSession.run_with_ortvaluevector": "it is for ONNX Runtime's training; use `run_with_ort_values`",
    "InferenceSession.set_ep_dynamic_options": "the provider has no option that changes in an open session",
    "register_execution_provider_library": _PLUGIN,
    "unregister_execution_provider_library": _PLUGIN,
    "import_capi_exception": "it is a variable of the package's import",
    "package_name": "it is a variable of the package's import",
    "version": "it is a variable of the package's import; `get_version_string()` and `__version__` are vkep's",
    "cuda_version": "it is a variable of the package's import",
}
#: names that vkep has with other parameters, defaults or members, with the reason
DIFFERENT = {
    "InferenceSession.set_providers": "an open session does not change its options: others raise `NotImplementedError`",
    "IOBinding.bind_input": "its second parameter is also a tensor of the device or an `OrtValue`; `device_type=` is read too",
    "IOBinding.bind_output": "as `bind_input`; without a device the result stays on the GPU, and `get_outputs` gives it as it is",
    "OrtDevice.__init__": "`OrtDevice.make` makes one",
    "OrtValue.__init__": "`ortvalue_from_numpy` and the other class methods make values",
    "SparseTensor.__init__": "`sparse_coo_from_numpy` and `sparse_csr_from_numpy` make tensors, of numbers or texts on the host",
    "SparseTensor.to_cuda": "raises `NotImplementedError`: the device has dense tensors, to which a run copies sparse ones",
    "SparseTensor.as_blocksparse_view": "raises: no method makes a tensor of blocks",
    "SessionOptions.profile_file_prefix": "the default is `vkep_profile`",
    "ModelMetadata.__init__": "a session makes it",
    "NodeArg.__init__": "a session makes it",
}


def public_names(package: Any) -> dict[str, Any]:
    """The public names of a package, without modules."""
    names = {name: getattr(package, name) for name in dir(package) if not name.startswith("_")}
    return {name: value for name, value in names.items() if not isinstance(value, types.ModuleType)}


def members(kind: type) -> dict[str, Any]:
    """The public members of a class, with its constructor where that has parameters. An enumeration has its values only."""
    if values := values_of(kind):
        return dict.fromkeys(values)
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    return found | ({"__init__": kind.__init__} if _signature(kind) is not None else {})  # type: ignore[misc]


def values_of(kind: type) -> dict[str, int]:
    """The names and values of an enumeration; empty for another class."""
    named = getattr(kind, "__members__", None)
    if not named or not (issubclass(kind, enum.Enum) or hasattr(kind, "__entries")):
        return {}
    return {name: int(value.value) for name, value in named.items()}


def _signature(function: Any) -> inspect.Signature | None:
    """The parameters; those of functions in C by the first line of their texts. None where neither names any."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        pass
    line = (getattr(function, "__doc__", None) or "").partition("\n")[0]
    found = re.match(r"\w+\((.*)\)", line)
    if not found or "*args" in line:
        return None
    parameters = []
    for name, default in re.findall(r"(\w+): [^=]*?(?:= (\w+))?(?:, (?=\w+: )|$)", found[1]):
        kind = (
            inspect.Parameter.POSITIONAL_ONLY
            if re.fullmatch(r"self|arg\d+", name)
            else inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        parameters.append(
            inspect.Parameter(name, kind, default=int(default) if default.isdecimal() else inspect.Parameter.empty)
        )
    return inspect.Signature(parameters)


def unlike(theirs: Any, ours: Any) -> str:
    """How a function of vkep's refuses what one of onnxruntime's takes; empty where it takes all of it."""
    wanted, given = _signature(theirs), _signature(ours)
    if wanted is None or given is None:
        return ""
    fixed = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    mine = [p for p in given.parameters.values() if p.kind not in fixed]
    for place, parameter in enumerate(p for p in wanted.parameters.values() if p.kind not in fixed):
        same = next((p for p in mine if p.name == parameter.name), None)
        by_position = mine[place] if place < len(mine) else None
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY and same is None:
            return f"no parameter {parameter.name!r}"
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY and by_position is None:
            return f"no parameter for {parameter.name!r} at its position"
        mate = same or by_position
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY and same is not None and same is not by_position:
            return f"{parameter.name!r} has another position"
        if mate is not None and parameter.default is not inspect.Parameter.empty:
            if mate.default is inspect.Parameter.empty:
                return f"{parameter.name!r} has no default"
            if mate.default != parameter.default:
                return f"{parameter.name!r} is {mate.default!r} by default, not {parameter.default!r}"
    return ""


def differences(theirs: Any, ours: Any) -> Iterator[tuple[str, str]]:
    """``(name, how)`` for each public name of the package ``theirs`` that ``ours`` lacks, or has otherwise."""
    for name, value in public_names(theirs).items():
        if not hasattr(ours, name):
            yield name, "absent"
        elif not inspect.isclass(value):
            if how := unlike(value, getattr(ours, name)):
                yield name, how
        else:
            kind = getattr(ours, name)
            if values_of(value) != values_of(kind):
                yield name, f"values {values_of(kind)}, not {values_of(value)}"
            for member, function in members(value).items():
                if isinstance(function, (staticmethod, classmethod)) or callable(function):
                    function = getattr(value, member)
                if not hasattr(kind, member) and member not in getattr(kind, "__dataclass_fields__", {}):
                    yield f"{name}.{member}", "absent"
                elif callable(function) and (how := unlike(function, getattr(kind, member))):
                    yield f"{name}.{member}", how


def table() -> str:
    """The table, in Markdown."""
    import onnxruntime

    import vkep

    names = public_names(onnxruntime)
    lines = ["| name | in vkep |", "|---|---|"]
    reasons = {**{name: f"absent: {why}" for name, why in ABSENT.items()}, **DIFFERENT}
    same = []
    for name, value in names.items():
        if name in reasons:
            lines.append(f"| `{name}` | {reasons[name]} |")
            continue
        theirs = members(value) if inspect.isclass(value) else {}
        some = [
            f"| `{name}.{member}` | {reasons[f'{name}.{member}']} |"
            for member in theirs
            if f"{name}.{member}" in reasons
        ]
        lines += some
        if hasattr(vkep, name):
            same.append(f"`{name}`" + (" (but for the members above)" if some else ""))
    return "\n".join(
        [f"Of the {len(names)} public names of onnxruntime {onnxruntime.__version__}:", "", *lines, "", _wrapped(same)]
    )


def _wrapped(names: list[str]) -> str:
    import textwrap

    text = f"The same names, parameters and defaults: {', '.join(names)}."
    return "\n".join(textwrap.wrap(text, 138, break_long_words=False, break_on_hyphens=False))


def main() -> int:
    """Print the differences without a reason, or write the table. Exit status 1 where there are some."""
    import onnxruntime

    import vkep

    unexplained = [(n, how) for n, how in differences(onnxruntime, vkep) if n not in ABSENT and n not in DIFFERENT]
    for name, how in unexplained:
        print(f"{name}: {how}")
    if "--write" in sys.argv[1:]:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
