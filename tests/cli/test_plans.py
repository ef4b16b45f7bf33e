"""Plans in words, measured times and the trace: from plain data, no device."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests import devices
from vkep.cli.common import print_nodes
from vkep.cli.explain import node_times
from vkep.cli.measure import Span
from vkep.cli.plans import dispatch_times, format_dispatch
from vkep.cli.trace import GPU, HOST, chrome_trace
from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.matmul.matmul import MatMulProblem
from vkep.kernels.matmul.split_k import MATMUL_REDUCE
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
from vkep.session.reports.report import NodeReport, Report
from vkep.view.dispatches import describe_plan
from vkep.view.document import add_plan, add_times, new_document
from vkep.view.graph import GraphDocument


def make_plan() -> Plan:
    """A sum from an input to the slab, then a user's own kernel from there, with a weight, to an output."""
    extra = (("EXTRA_OPERANDS", "uvec2 e0;"), ("EXTRA_PARAMS", "float c0;"))
    interface = MATMUL_REDUCE.interface(dict(extra))
    operands = 8 * len(interface.operands)
    scalars = struct.pack("<" + interface.codes, *range(1, len(interface.params) + 1))
    spec = (("INDIRECT", 1), ("LOCAL_X", 16), ("LOCAL_Y", 2), ("LOCAL_Z", 1))
    return Plan(
        ports=(Port("x", "float32", (4,), 16, True), Port("y", "float32", (4,), 16, False)),
        constants=(ConstantRef("key", 16, "bias"),),
        activation_bytes=256,
        slots=(Slot(0, 4), Slot(1)),
        pipelines=(
            PipelineKey(ShaderVariant("matmul_reduce.comp", extra), spec, operands + len(scalars)),
            PipelineKey(ShaderVariant("own.comp"), (("LOCAL_X", 8),), 28, arguments_in_memory=True),
        ),
        dispatches=(
            Dispatch(
                0,
                bytes(operands) + scalars,
                (Relocation(0, Space.PORT, 0), Relocation(8, Space.ACTIVATION, 0, 0x40)),
                (3, 2, 1),
                False,
                "Sum 's'",
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
    assert first["operands"] == {"partials": "input 'x'+0x4", "y": "activation+0x40", "e0": "null"}
    names = ["m", "n", "splits", "total", "batch1", "y_row", "y_col", "y_batch0", "y_batch1", "alpha", "c0"]
    assert first["params"] == {name: i for i, name in enumerate(names, 1)}
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
        "matmul_reduce.comp  Sum 's'",
        "grid 3x2x1 of 16x2x1; 3,000 flop, 64 bytes; INDIRECT=1",
        "activation+0x40",
        "c0=11",
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


def run_of(start: float) -> dict[str, Any]:
    """A run of two dispatches that overlap, in nanoseconds."""

    def span(name: str, first: float, last: float, **more: Any) -> dict[str, Any]:
        return {"name": name, "start": start + first, "end": start + last, **more}

    host = [("run", 0, 9000, 0), ("vulkan", 500, 8500, 1), ("submit", 1000, 2000, 2), ("wait", 2000, 8000, 2)]
    gpu = [("Sum 's'", 2500, 4500, 0), ("Own 'o'", 2500, 6500, 1)]
    return {
        **span("run", 0, 9000),
        "uncertainty": 250.0,
        "host": [span(name, a, b, depth=depth) for name, a, b, depth in host],
        "gpu": [span(name, a, b, island=0, dispatch=k) for name, a, b, k in gpu],
    }


def test_a_trace_has_each_run_s_gpu_rows_and_counters() -> None:
    document = new_document("model.onnx", "a device", "default:0")
    add_plan(document, make_plan(), {}, GraphDocument({}))
    add_times(document, [[[1000, 500]]], None)
    document["memory"]["slabs"][0]["buffers"] = [{"nbytes": 256, "first": 0, "last": 1}]
    document["runs"] = [run_of(2e9), run_of(2.00001e9)]
    spans = [Span("shaders", 1.0, 1.5, "shaders"), Span("open", 1.0, 2.0)]
    trace = chrome_trace(spans, document, "model.onnx")
    events = trace["traceEvents"]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert named == {
        (HOST, 0): "host",
        (HOST, 1): "model.onnx",
        (HOST, 2): "shaders",
        (GPU, 0): "GPU: a device",
        **{(GPU, k): f"run {(k + 1) // 2}" + " (overlapping)" * (k % 2 == 0) for k in (1, 2, 3, 4)},
    }
    gpu = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == GPU]
    assert gpu[:2] == [("Own 'o'", 1, 1e6 + 2.5, 4.0), ("Sum 's'", 2, 1e6 + 2.5, 2.0)]
    assert next(e["args"] for e in events if e["name"] == "Sum 's'")["gflops_per_s"] == 3.0
    assert [e["dur"] for e in events if e["name"] == "traced run 1"] == [9.0]
    counters = [(e["name"], round(e["ts"] - 1e6, 3), *e["args"].values()) for e in events if e["ph"] == "C"]
    assert counters[:5] == [
        *[("slab in use", 2.5, 256), ("slab in use", 2.5, 256), ("slab in use", 6.5, 0)],
        *[("queue depth", 2.0, 1), ("queue depth", 6.5, 0)],
    ]
    assert "within 0.2 us" in trace["otherData"]["note"]


def test_nodes_that_matter_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    def node(name: str, where: str, reason: str = "", **declined: str) -> NodeReport:
        return NodeReport(name, "Op", "", where, reason, declined)

    nodes = [
        node("f", "folded"),
        node("fast", "vulkan"),
        node("slow", "vulkan"),
        node("c", "cpu", "no kernel"),
        node("v", "vulkan", vgf="no"),
    ]
    print_nodes(Report("m", "d", "c", nodes), node_times(dispatch_times([make_plan()], [[[1, 1]]])) | {"slow": 2e6})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["place", "us", "↓"]
    assert [line.split("Op ")[1].split()[0] for line in lines[1:5]] == ["c", "v", "slow", "fast"]
    assert lines[5].split() == ["folded", "1", "constant", "node"]
    assert "(no kernel)" in lines[1] and "(declined by vgf: no)" in lines[2] and "2000.0" in lines[3]
    assert str(Report("m", "d", "c", nodes)).index("cpu: Op 'c': no kernel") < str(Report("m", "d", "c", nodes)).index(
        "vgf: no"
    )


def test_a_dispatch_says_how_its_kernel_was_chosen() -> None:
    x, y = (Tensor.contiguous(DTYPES["float32"], (64, 64), Storage(4 * 64 * 64, port=port)) for port in range(2))
    b = Builder(devices.GPU)
    b.compute(MatMulProblem(64, 64, 64, (0, 64, 1), (0, 64, 1)), [x, x], [y.view((1, 1, 64, 64), (0, 0, 64, 1))])
    ports = [Port(name, "float32", (64, 64), 4 * 64 * 64, name == "x") for name in "xy"]
    [described] = describe_plan(emit(b.ops, ports, devices.GPU).plan)
    assert described["candidate"] == "tiled"
    assert [one["candidate"] for one in described["rejected"]] == ["subgroup", "along k", "rows", "cooperative"]
    assert described["rejected"][3]["reason"] == "cooperative matrices of float16 or int8, the product is of float32"
    lines = format_dispatch(described)
    assert "      chosen: tiled" in lines
    assert "        not rows: 64 rows of 64 elements, expected 1 to 8 that are not empty" in lines
