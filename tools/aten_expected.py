"""Writes ``tests/aten/data/expected.npz``: what PyTorch gives for the cases of tests/aten that name no reference of their own.

    python -m tools.aten_expected

Needs torch, torchao and executorch (``pip install vkep[executorch]``), which CI does not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.aten.all_cases import CASES
from tests.aten.values import Case, Const, Dtype, Sym

PATH = Path(__file__).parent.parent / "tests" / "aten" / "data" / "expected.npz"


def main() -> None:
    import executorch.backends.vulkan.custom_ops_lib  # noqa: F401  # declares et_vk's operators
    import torch
    import torch.ao.quantization.fx._decomposed  # declares quantized_decomposed's
    import torchao.quantization.quant_primitives  # noqa: F401  # declares torchao's

    found: dict[str, Any] = {}
    for case in CASES:
        if case.expected is None:
            for index, result in enumerate(_results(torch, case)):
                found[f"{case.id}/{index}"] = result
    PATH.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(PATH, **found)
    print(f"{len(found)} arrays, {PATH.stat().st_size} bytes in {PATH.name}")


def _results(torch: Any, case: Case) -> list[Any]:
    namespace, operator, overload = case.name.split(".")
    function = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    schema = function._schema.arguments
    positional, named = [], {}
    for argument, given in zip(schema, case.args, strict=True):
        value = _torch_value(torch, given)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    made = function(*positional, **named)
    made = list(made) if isinstance(made, (tuple, list)) else [made]
    return [t.detach().contiguous().numpy() for t in made]


def _torch_value(torch: Any, value: Any) -> Any:
    if isinstance(value, Const):
        return torch.from_numpy(value.array.copy())
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    if isinstance(value, Dtype):
        return getattr(torch, value.name)
    if isinstance(value, Sym):
        return value.value
    return [_torch_value(torch, v) for v in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
