"""What a small or damaged model may ask for is bounded, and refused before memory or time is taken."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graph.test_load import changed_model, external_model, one_graph
from vkep.errors import InvalidModelError, UnsupportedModelError
from vkep.graph import load_model
from vkep.graph.load import MOST_DEPTH

needs_fifo = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")


@needs_fifo
def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    os.mkfifo(path)
    with pytest.raises(FileNotFoundError, match="it is a device, FIFO or socket, expected a file"):
        load_model(path)
    # it took a file's place after the file was looked at
    monkeypatch.setattr(os, "stat", lambda *_, **__: os.stat_result([stat.S_IFREG, *[0] * 9]))
    with pytest.raises(FileNotFoundError, match="it is a device, FIFO or socket, expected a file"):
        load_model(path)


def test_a_file_that_is_too_large_for_a_model_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkep.graph.wire.MOST_BYTES", 1 << 22)
    path = tmp_path / "zeros.onnx"
    with path.open("wb") as file:
        file.truncate((1 << 22) + 1)
    reads: list[int] = []
    monkeypatch.setattr("vkep.graph.files.check_memory", lambda nbytes: reads.append(nbytes))  # called before each read
    with pytest.raises(InvalidModelError, match="has 4194305 bytes, expected at most 4194304 besides the raw data"):
        load_model(path)
    assert sum(reads) <= 1 << 16


NO_SHAPES = {
    "negative": [-1],
    "two negative": [-2, -2],
    "bytes beyond 63 bits": [1 << 62],
    "0 in 64 bits": [1 << 32, 1 << 32],
    "beside a 0": [0, 1 << 62],
    "axes": [1] * 65,
}


@pytest.mark.parametrize("dims", NO_SHAPES.values(), ids=NO_SHAPES)
@pytest.mark.parametrize("kind", ["dense", "external", "sparse", "constant"])
def test_a_shape_that_no_array_has(dims: list[int], kind: str, tmp_path: Path) -> None:
    proto = changed_model()
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)
    none = numpy_helper.from_array(np.zeros(0, np.int64), "i")
    if kind == "external":
        (tmp_path / "w.bin").touch()
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
    sparse = helper.make_sparse_tensor(helper.make_tensor("w", TensorProto.FLOAT, [0], []), none, dims)
    if kind == "sparse":
        proto.graph.sparse_initializer.append(sparse)
    elif kind == "constant":
        proto.graph.node.append(helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    else:
        proto.graph.initializer.append(tensor)
    with pytest.raises(InvalidModelError, match=r"'w': (its shape is|it has 65 axes)"):
        load_model(proto, base_dir=tmp_path)


def test_a_circle_of_links_is_no_path(tmp_path: Path) -> None:
    try:
        (tmp_path / "loop.bin").symlink_to("loop.bin")
    except OSError:
        pytest.skip("no symbolic links here")
    with pytest.raises(InvalidModelError, match=r"weight 'w'.*loop\.bin"):
        load_model(external_model(tmp_path, location="loop.bin"))


@pytest.mark.parametrize("now", [pytest.param("fifo", marks=needs_fifo), "folder", "nothing"])
@pytest.mark.parametrize("open_files", [0, 256])
def test_external_data_that_is_no_file_any_more(
    tmp_path: Path, now: str, open_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open file is still read; one of more than stay open has to be opened again."""
    monkeypatch.setattr("vkep.graph.files.MOST_OPEN", open_files)
    weight = load_model(external_model(tmp_path)).graph.weights["w"]
    path = tmp_path / "w.bin"
    path.unlink()
    if now != "nothing":
        os.mkfifo(path) if now == "fifo" else path.mkdir()
    if open_files:
        np.testing.assert_array_equal(weight.array(), [0, 1, 2])
        return
    with pytest.raises(InvalidModelError, match=r"no external data file at .*w\.bin"):
        weight.array()


def test_external_data_that_no_memory_holds_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = load_model(external_model(tmp_path)).graph.weights["w"]
    monkeypatch.setattr("vkep.files.MEMORY_BYTES", 8)
    with pytest.raises(InvalidModelError, match=r"w\.bin: .* does not fit in memory: 12 bytes, and this machine has 8"):
        weight.array()


def test_data_of_an_attribute_is_not_read_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where onnx reads it
    (tmp_path / "w.bin").write_bytes(bytes(4))
    value = TensorProto(data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    value.external_data.add(key="location", value="w.bin")
    proto = changed_model()
    proto.graph.node.append(helper.make_node("ConstantOfShape", ["x"], ["z"], value=value))
    with pytest.raises(InvalidModelError, match=r"ConstantOfShape.*attribute 'value' is in another file"):
        load_model(proto, base_dir=tmp_path)


@pytest.mark.parametrize("count", [1, 3])
def test_dense_forms_of_sparse_initializers_are_bounded_together(count: int) -> None:
    proto = one_graph("y = Relu(x)")
    none = numpy_helper.from_array(np.zeros(0, np.int64), "i")
    for k in range(count):
        values = helper.make_tensor(f"w{k}", TensorProto.FLOAT, [0], [])
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, none, [(1 << 28) // count + (1 << 16)]))
    with pytest.raises(UnsupportedModelError, match=r"its sparse initializers have 107\d+ bytes in dense form"):
        load_model(proto)


def _function(name: str, calls: list[tuple[str, str]], domain: str = "f", overload: str = "") -> onnx.FunctionProto:
    """A function of one input, which calls others (name, overload) one after the other."""
    values = ["a", *(f"t{k}" for k in range(1, len(calls))), "b"]
    nodes = [
        helper.make_node(called, [values[k]], [values[k + 1]], domain="" if called == "Relu" else domain)
        for k, (called, _) in enumerate(calls)
    ]
    for node, (_, of) in zip(nodes, calls, strict=True):
        node.overload = of
    made = helper.make_function(domain, name, ["a"], ["b"], nodes, [helper.make_opsetid(d, 18) for d in ("", domain)])
    made.overload = overload
    return made


def _calling(functions: list[onnx.FunctionProto], domain: str) -> onnx.ModelProto:
    proto = one_graph("y = Relu(x)", '"": 18, "f": 18')
    proto.ir_version = 10
    proto.graph.node[0].op_type, proto.graph.node[0].domain = functions[-1].name, domain
    proto.graph.node[0].overload = functions[-1].overload
    proto.functions.extend(functions)
    return proto


def test_functions_of_one_name_are_told_apart_by_their_overloads() -> None:
    functions = [_function("F", [("Relu", "")], overload="0")]
    functions += [_function("F", [("F", str(k - 1))] * 2, overload=str(k)) for k in range(1, 19)]
    with pytest.raises(UnsupportedModelError, match="has 262144 nodes"):
        load_model(_calling(functions, "f"), max_nodes=250_000)
    assert [n.op_type for n in load_model(_calling(functions[:3], "f")).graph.nodes] == ["Relu"] * 4


def test_functions_of_the_empty_domain_are_counted_by_its_alias() -> None:
    functions = [_function("F0", [("Relu", "")], "")]
    functions += [_function(f"F{k}", [(f"F{k - 1}", "")] * 2, "") for k in range(1, 19)]
    with pytest.raises(UnsupportedModelError, match="has 262144 nodes"):
        load_model(_calling(functions, "ai.onnx"), max_nodes=250_000)


def _nested(depth: int) -> onnx.ModelProto:
    """``depth`` graphs in one another."""
    proto = one_graph("y = Relu(x)")
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    graph = proto.graph
    for k in range(1, depth):
        graph.node[0].CopyFrom(helper.make_node("If", ["c"], [graph.output[0].name]))
        for branch in ("else_branch", "then_branch"):
            attribute = graph.node[0].attribute.add(name=branch, type=onnx.AttributeProto.GRAPH)
            attribute.g.name = branch
            attribute.g.output.add(name=f"{branch}{k}")
            attribute.g.node.append(helper.make_node("Relu", ["x"], [f"{branch}{k}"]))
        graph = attribute.g
    return proto


def test_graphs_lie_in_one_another_to_a_depth() -> None:
    assert load_model(_nested(MOST_DEPTH).SerializeToString()).graph.nodes[0].op_type == "If"
    for depth in (MOST_DEPTH + 1, 100):
        with pytest.raises(UnsupportedModelError, match=f"has {depth} graphs in one another"):
            load_model(_nested(depth))


def test_an_equation_that_is_none_is_refused() -> None:
    for equation in ("....,,a->...->", "a..b->ab", "a->b->c", "i\u00e4->i"):
        with pytest.raises(InvalidModelError, match=r"Einsum.*its equation is .*, expected terms of letters"):
            load_model(one_graph(f'y = Einsum<equation="{equation}">(x)'))
    for equation in ("i->i", "...i -> ...i", "ij"):
        load_model(one_graph(f'y = Einsum<equation="{equation}">(x)'))
