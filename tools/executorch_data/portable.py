"""torch's results of the portable kernels' test calls: ``python -m tools.executorch_data.portable --out FILE.npz``.

The calls are in ``tests/executorch/portable_cases.py``. Needs torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.executorch.portable_cases import cases


def expected(name: str, arguments: tuple[Any, ...]) -> list[Any]:
    """The operator's results. Its out variant is called with outputs of the first dtype that it takes."""
    base, overload = name.split(".")
    operator = getattr(getattr(torch.ops.aten, base), overload)
    outs = [a for a in operator._schema.arguments if a.is_out]
    parameters = [a for a in operator._schema.arguments if not a.is_out]
    both = list(zip(parameters, map(_to_torch, arguments), strict=True))
    given = [value for parameter, value in both if not parameter.kwarg_only]
    named = {parameter.name: value for parameter, value in both if parameter.kwarg_only}
    if "Tensor(a!)[]" in str(operator._schema) or "Tensor[]" in str(outs[0].type):
        functional = getattr(torch.ops.aten, base.replace("_copy", ""))
        result = getattr(functional, overload.replace("_out", "") if overload != "out" else "default")(*given)
        return [v.numpy() for v in result]
    dtypes = dict.fromkeys([a.dtype for a in given if isinstance(a, torch.Tensor)][:1])
    if base == "_fft_r2c":  # it would accept real outputs too, and drop the imaginary part
        dtypes = {torch.complex64: None}
    for first in (*dtypes, torch.float32, torch.int64, torch.bool):
        for others in (first, torch.int64):
            kinds = [first, *[others] * (len(outs) - 1)]
            try:
                made = [torch.empty(0, dtype=kind) for kind in kinds]
                operator(*given, **named, **{a.name: m for a, m in zip(outs, made, strict=True)})
            except (RuntimeError, IndexError):
                continue
            return [m.numpy() for m in made]
    if base == "convolution_backward":  # its out variant cannot leave a gradient out
        return [
            np.empty(0, np.float32) if v is None else v.numpy() for v in torch.ops.aten.convolution_backward(*given)
        ]
    raise RuntimeError(f"{name}: no dtype of outputs does")


def _to_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return [_to_torch(v) for v in value] if isinstance(value, list) else value


def main(arguments: list[str] | None = None) -> int:
    """Write the expected results."""
    parser = argparse.ArgumentParser(prog="python -m tools.executorch_data.portable", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the .npz file")
    given = parser.parse_args(arguments)
    arrays = {}
    for number, (name, call) in enumerate(cases()):
        try:
            results = expected(name, call)
        except Exception as error:
            raise RuntimeError(f"case {number}, {name}: {error}") from error
        arrays.update({f"{number}_{k}": value for k, value in enumerate(results)})
    np.savez_compressed(given.out, **arrays)
    print(f"{len(cases())} calls, {given.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
