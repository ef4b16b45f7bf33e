"""Programs that a runtime may get wrong: jumps, state, aliases, dynamic shapes, several methods, external constants.

``python -m tools.executorch_data.edge_case_programs --out FOLDER`` writes ``NAME.pte`` (and ``NAME.ptd``) with ``NAME.npz``:
for each call, in order, ``callI_method``, ``callI_inputK`` and ``callI_outputK`` as eager torch computes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.export import Dim, export

Call = tuple[str, tuple[Any, ...]]


@dataclass
class Special:
    """``methods`` by name: a module and its example inputs; ``calls`` are made in order, since some programs have state."""

    methods: dict[str, tuple[nn.Module, tuple[Any, ...]]]
    calls: Sequence[Call]
    vulkan: dict[str, Any] | None = None  #: options of a Vulkan partitioner
    dynamic: Any = None
    external: bool = False
    planned_edges: bool = True
    constants: dict[str, Any] = field(default_factory=dict)


class Cond(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: v * 2 + 1, lambda v: torch.sin(v) - 1, [x]) * 3


class CondDelegated(nn.Module):
    """Nodes for a delegate before and after the jump."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        z = torch.cond(y.sum() > 2, lambda v: v * 2, lambda v: v - 1, [y])
        return self.second(z)


class Scan(nn.Module):
    """Carries a value through the rows and stacks its values."""

    def forward(self, start: torch.Tensor, xs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from torch._higher_order_ops.scan import scan

        return scan(lambda carry, x: (carry + x, carry * x), start, xs, dim=0)


class Counter(nn.Module):
    """A buffer that every call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


class Cache(nn.Module):
    """A key-value cache, written at a position."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 8, 4))

    def forward(self, position: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self.cache.index_put_([torch.zeros(1, dtype=torch.int64), position], value)
        return self.cache.sum(1)


class Aliases(nn.Module):
    """Outputs that are inputs, views of inputs, views of results, constants, and one result twice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("constant", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return x, x.view(6), y, y.view(3, 2), y, self.constant


class Empty(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * 2, y], 0)


class Dynamic(nn.Module):
    """Shapes that depend on the input's, and a view that is made at run time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return x.reshape(n * 2, 4).sum(1).reshape(n, 2) + torch.arange(n, dtype=torch.float32).reshape(n, 1)


class DynamicNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        return self.last(y.cumsum(0))


class Twice(nn.Module):
    """One weight in two delegates, with an operator between them that the Vulkan backend does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x)).cumsum(0)
        return torch.relu(self.linear(y))


class Numbers(nn.Module):
    """Dtypes other than float32."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a * 2 + 1, (b.float() * 0.5).to(torch.bfloat16), c // 3, (d & (c[:2] > 2)).to(torch.int32)


class Last(nn.Module):
    """Tensors in channels-last order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x.to(memory_format=torch.channels_last))
        return torch.relu(y).to(memory_format=torch.contiguous_format).flatten(1)


class Spectrum(nn.Module):
    """Complex tensors between kernels."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = torch.fft.rfft(x, norm="ortho")
        return torch.view_as_real(half), torch.fft.irfft(half, n=6, norm="ortho")


class Scalar(nn.Module):
    def forward(self, x: torch.Tensor, n: int, f: float) -> torch.Tensor:
        return x * n + f


def specials() -> dict[str, Special]:
    torch.manual_seed(0)
    x = torch.linspace(-1, 2, 6).reshape(2, 3)
    n = Dim("n", min=1, max=6)
    wide, net = torch.randn(2, 8), torch.randn(3, 8)
    image = torch.randn(1, 3, 6, 5)
    positions = [(torch.tensor([p]), torch.full((1, 4), float(p + 1))) for p in (0, 3, 7, 3)]
    numbers = (
        torch.randn(4).half(),
        torch.randn(4).bfloat16(),
        torch.arange(6),
        torch.tensor([True, False]),
    )
    delegated = torch.randn(2, 6)
    twice = torch.randn(4, 32)
    return {
        "cond": Special({"forward": (Cond(), (x,))}, [("forward", (x,)), ("forward", (x + 2,)), ("forward", (x - 2,))]),
        "cond_vulkan": Special(
            {"forward": (CondDelegated(), (delegated,))},
            [("forward", (delegated,)), ("forward", (delegated * 4,)), ("forward", (delegated * 0.1,))],
            vulkan={},
        ),
        "scan": Special(
            {"forward": (Scan(), (net[0], net))}, [("forward", (net[0], net)), ("forward", (net[1], net * 2))]
        ),
        "counter": Special(
            {"forward": (Counter(), (torch.ones(3),))}, [("forward", (torch.ones(3) * k,)) for k in (1, 2, 5)]
        ),
        "counter_vulkan": Special(
            {"forward": (Counter(), (torch.ones(3),))},
            [("forward", (torch.ones(3) * k,)) for k in (1, 2, 5)],
            vulkan={"alias_buffer_mutations": True},
        ),
        "counter_lost": Special({"forward": (Counter(), (torch.ones(3),))}, [], vulkan={}),
        "cache": Special({"forward": (Cache(), positions[0])}, [("forward", p) for p in positions]),
        "aliases": Special({"forward": (Aliases(), (x,))}, [("forward", (x,)), ("forward", (x * 3,))]),
        "aliases_unplanned": Special(
            {"forward": (Aliases(), (x,))}, [("forward", (x,)), ("forward", (x * 3,))], planned_edges=False
        ),
        "aliases_vulkan": Special(
            {"forward": (Aliases(), (x,))}, [("forward", (x,)), ("forward", (x * 3,))], vulkan={}
        ),
        "empty": Special({"forward": (Empty(), (torch.ones(0, 3), x))}, [("forward", (torch.ones(0, 3), x))]),
        "dynamic": Special(
            {"forward": (Dynamic(), (wide,))},
            [("forward", (torch.randn(k, 8),)) for k in (2, 6, 1, 2)],
            dynamic=({0: n},),
        ),
        "dynamic_vulkan": Special(
            {"forward": (DynamicNet(), (net,))},
            [("forward", (torch.randn(k, 8),)) for k in (3, 6, 1, 3)],
            vulkan={},
            dynamic=({0: n},),
        ),
        "methods": Special(
            {"forward": (Counter(), (torch.ones(3),)), "other": (Scalar(), (x, 3, 0.5))},
            [("forward", (torch.ones(3),)), ("other", (x, 3, 0.5)), ("forward", (torch.ones(3),))],
            constants={"version": 7, "ratio": 0.25, "flag": True},
        ),
        "twice_vulkan": Special({"forward": (Twice(), (twice,))}, [("forward", (twice,))], vulkan={}),
        "external": Special({"forward": (Twice(), (twice,))}, [("forward", (twice,))], external=True),
        "numbers": Special({"forward": (Numbers(), numbers)}, [("forward", numbers)]),
        "spectrum": Special({"forward": (Spectrum(), (net[:, :6],))}, [("forward", (net[:, :6],))]),
        "channels_last": Special({"forward": (Last(), (image,))}, [("forward", (image,)), ("forward", (image * 2,))]),
    }


def write(name: str, special: Special, folder: Path) -> None:
    """Export one program, and write eager torch's results of its calls."""
    programs = {
        method: export(module.eval(), inputs, dynamic_shapes=special.dynamic, strict=True)
        for method, (module, inputs) in special.methods.items()
    }
    partitioner = None if special.vulkan is None else [VulkanPartitioner(special.vulkan)]
    lowered = to_edge_transform_and_lower(programs, partitioner=partitioner, constant_methods=special.constants or None)
    edges = special.planned_edges
    program = lowered.to_executorch(
        ExecutorchBackendConfig(
            external_constants=special.external,
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=edges, alloc_graph_output=edges),
        )
    )
    (folder / f"{name}.pte").write_bytes(program.buffer)
    if special.external:
        program.write_tensor_data_to_file(str(folder))
        (folder / "_default_external_constant.ptd").rename(folder / f"{name}.ptd")
    arrays: dict[str, Any] = {}
    for number, (method, inputs) in enumerate(special.calls):
        arrays[f"call{number}_method"] = np.array(method)
        for k, value in enumerate(inputs):
            arrays[f"call{number}_input{k}"] = _array(value)
        outputs = special.methods[method][0](*inputs)
        for k, value in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
            arrays[f"call{number}_output{k}"] = _array(value)
    np.savez(folder / f"{name}.npz", **arrays)


def _array(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return np.array(value)
    value = value.detach().clone()
    return value.view(torch.int16).numpy().view("V2") if value.dtype == torch.bfloat16 else value.numpy()


def main(arguments: list[str] | None = None) -> int:
    """Write the special programs; 1 where one could not be exported."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.executorch_data.edge_case_programs", description=main.__doc__
    )
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, special in specials().items():
        if given.names and name not in given.names:
            continue
        try:
            write(name, special, given.out)
        except Exception as error:
            print(f"{name}: not exported: {type(error).__name__}: {error}", file=sys.stderr)
            failed = 1
            continue
        print(f"{name}: {(given.out / f'{name}.pte').stat().st_size} bytes", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
