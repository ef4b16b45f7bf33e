"""What a case's results must be: from its own reference in numpy, or PyTorch's, which lie in ``data/expected.npz``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.aten.blobs import narrowed
from tests.aten.values import Array, Case

DATA = Path(__file__).parent / "data"
#: names of ExecuTorch 1.5.1's Vulkan registry
REGISTRY = (DATA / "vulkan_op_registry.txt").read_text(encoding="utf-8").splitlines()
#: taken apart by the blob itself: no operator call
NO_CALL = frozenset({"<built-in function getitem>"})
#: checks of the exporter about integers: they give nothing, and are dropped
DROPPED = frozenset({"aten._assert_scalar.default", "aten.sym_constrain_range_for_size.default"})


def read_stored() -> dict[str, Array]:
    with np.load(DATA / "expected.npz") as file:
        return dict(file)


def expected_of(case: Case, stored: dict[str, Array]) -> list[Array]:
    """The results, with 64-bit elements in 32 bits as a blob has them."""
    if case.expected is not None:
        found = case.expected(*case.plain())
        found = found if isinstance(found, list) else [found]
    else:
        count = sum(1 for key in stored if key.rpartition("/")[0] == case.id)
        found = [stored[f"{case.id}/{k}"] for k in range(count)]
    if not found:
        raise LookupError(f"{case.id} has no expected results: run python -m tools.aten_expected")
    return [narrowed(f) for f in found]
