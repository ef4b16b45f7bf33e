"""Plans in words, measured times and the trace: from plain data, no device."""

from __future__ import annotations

import struct

import pytest

from tests import devices
from vkep.cli.measure import Span
from vkep.cli.plans import dispatch_times, format_dispatch
from vkep.cli.trace import GPU, HOST, chrome_trace
from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.kernel import SCALAR_CODES
from vkep.kernels.matmul import MatMulProblem
from vkep.kernels.norm import SOFTMAX
from vkep.passes.emit import emit
from vkep.plan.records import (
    ConstantRef,
    Dispatch,
    PipelineKey,
    Plan,
    Port,
    Relocation,
    ShaderVariant,
    Slot,
    Space,
)
from vkep.view.dispatches import describe_plan


def make_plan() -> Plan:
    """Softmax from an input to the slab, then a user's own kernel from there, with a weight, to an output."""
    extra = (("EXTRA_OPERANDS", "uvec2 e0;"), ("EXTRA_PARAMS", "float c0;"))
    operands = 8 * (len(SOFTMAX.operands) + 1)
    codes = "".join(SCALAR_CODES[kind] for _, kind in SOFTMAX.params) + "f"
    scalars = struct.pack("<" + codes, *range(1, len(SOFTMAX.params) + 1), 0.5)
    spec = (("INDIRECT", 1), ("LOCAL_X", 16), ("LOCAL_Y", 2), ("LOCAL_Z", 1))
    return Plan(
        ports=(Port("x", "float32", (4,), 16, True), Port("y", "float32", (4,), 16, False)),
        constants=(ConstantRef("key", 16, "bias"),),
        activation_bytes=256,
        slots=(Slot(0, 4), Slot(1)),
        pipelines=(
            PipelineKey(ShaderVariant("softmax.comp", extra), spec, operands + len(scalars)),
            PipelineKey(ShaderVariant("own.comp"), (("LOCAL_X", 8),), 28, arguments_in_memory=True),
        ),
        dispatches=(
            Dispatch(
                0,
                bytes(operands) + scalars,
                (Relocation(0, Space.PORT, 0), Relocation(8, Space.ACTIVATION, 0, 0x40)),
                (3, 2, 1),
                False,
                "Softmax 's'",
                flops=3000,
                bytes=64,
            ),
            Dispatch(
                1,
                bytes(28),
                (Relocation(0, Space.ACTIVATION, 0, 0x40), Relocation(8, Space.CONSTANT, 0), Relocation(16, Space.PORT, 1)),
                (1, 1, 1),
                True,
                "Own 'o'",
                flops=0,
                bytes=32,
            ),
        ),
    )  # fmt: skip


def test_a_dispatch_is_described_with_names_and_symbols() -> None:
    first, second = describe_plan(make_plan())
    names = [o.name for o in SOFTMAX.operands]
    assert first["operands"] == {names[0]: "input 'x'+0x4", names[1]: "activation+0x40", "e0": "null"}
    assert first["params"] == {
        **{name: i for i, (name, _) in enumerate(SOFTMAX.params, 1)},
        "c0": 0.5,
    }
    assert (first["grid"], first["workgroup"], first["spec"]) == ([3, 2, 1], [16, 2, 1], {"INDIRECT": 1})
    assert (first["barrier"], first["flops"], first["bytes"]) == (False, 3000, 64)
    assert first["arguments_in"] == "push constants"
    # nothing declares own.comp: operands by number, scalars unread
    assert second["operands"] == {
        "operand 0": "activation+0x40",
        "operand 1": "weight 0 'bias'",
        "operand 2": "output 'y'",
    }
    assert second["params"] == {}
    assert (second["barrier"], second["arguments_in"]) == (True, "memory")


def test_the_lines_of_a_dispatch_name_all_of_it() -> None:
    lines = [line for d in describe_plan(make_plan()) for line in format_dispatch(d)]
    text = "\n".join(lines)
    for expected in (
        "softmax.comp  Softmax 's'",
        "grid 3x2x1 of 16x2x1; 3,000 flop, 64 bytes; INDIRECT=1",
        "activation+0x40",
        "c0=0.5",
        "own.comp  Own 'o'  [barrier]",
        "weight 0 'bias'",
    ):
        assert expected in text


def test_times_are_medians_with_rates_and_shares() -> None:
    plan = make_plan()
    times = dispatch_times([plan, plan], [[[100, 10], [200, 50]], [[300, 20], [1, 60]], [[400, 30], [210, 70]]])
    assert [(t.island, t.index, t.nanoseconds) for t in times] == [(0, 0, 300), (0, 1, 20), (1, 0, 200), (1, 1, 60)]
    assert times[0].gflops_per_s == 10.0
    assert times[1].gbytes_per_s == 1.6
    assert sum(t.share for t in times) == pytest.approx(1.0)
    assert times[0].share == pytest.approx(300 / 580)
    assert (times[1].label, times[1].kernel, times[1].gflops_per_s) == ("Own 'o'", "own.comp", 0.0)


def test_a_dispatch_of_no_time_has_no_rate() -> None:
    (first, _) = dispatch_times([make_plan()], [[[0, 0]]])
    assert (first.gflops_per_s, first.gbytes_per_s, first.share) == (0.0, 0.0, 0.0)


def test_the_trace_lays_dispatches_end_to_end_from_the_profiled_run() -> None:
    times = dispatch_times([make_plan(), make_plan()], [[[1000, 500], [250, 250]]])
    spans = [Span("shaders", 10.0, 10.5, "shaders"), Span("open", 10.0, 11.0), Span("run", 11.0, 11.25)]
    trace = chrome_trace(spans, times, "a device", 12.0, "model.onnx")
    events = trace["traceEvents"]
    host = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == HOST]
    assert host == [("open", 1, 0.0, 1e6), ("shaders", 2, 0.0, 5e5), ("run", 1, 1e6, 2.5e5)]
    gpu = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == GPU]
    assert gpu == [
        ("Softmax 's'", 1, 2e6, 1.0),
        ("Own 'o'", 1, 2e6 + 1.0, 0.5),
        ("Softmax 's'", 2, 2e6 + 1.5, 0.25),
        ("Own 'o'", 2, 2e6 + 1.75, 0.25),
    ]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert named == {
        (HOST, 0): "host",
        (HOST, 1): "model.onnx",
        (HOST, 2): "shaders",
        (GPU, 0): "GPU: a device",
        (GPU, 1): "island 0",
        (GPU, 2): "island 1",
    }
    assert next(e["args"] for e in events if e["name"] == "Softmax 's'")["gflops_per_s"] == 3.0


def test_a_dispatch_says_how_its_kernel_was_chosen() -> None:
    x, y = (Tensor.contiguous(DTYPES["float32"], (64, 64), Storage(4 * 64 * 64, port=port)) for port in range(2))
    b = Builder(devices.GPU)
    b.compute(MatMulProblem(64, 64, 64, (0, 64, 1), (0, 64, 1)), [x, x], [y.view((1, 1, 64, 64), (0, 0, 64, 1))])
    ports = [Port(name, "float32", (64, 64), 4 * 64 * 64, name == "x") for name in "xy"]
    [described] = describe_plan(emit(b.ops, ports, devices.GPU).plan)
    assert described["candidate"] == "tiled"
    assert [one["candidate"] for one in described["turned_down"]] == ["subgroup", "along k", "rows", "cooperative"]
    assert described["turned_down"][3]["reason"] == "cooperative matrices of float16, the product is of float32"
    lines = format_dispatch(described)
    assert "      chosen: tiled" in lines
    assert "        not rows: 64 rows of 64 elements, expected 1 to 8 that are not empty" in lines
