"""Plans on disk: a second process need not plan, and never gets a plan that was made of or for something else."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from gpu_shared.capabilities import DeviceCapabilities
from tests.session.models import ADD_RELU, model, reference
from vkep import InferenceSession
from vkep.dtypes import DTYPES
from vkep.graph import load_model
from vkep.ir.infer import Known
from vkep.ir.program import HostValue, ValueSpec
from vkep.ops import registry
from vkep.placement import partition
from vkep.placement.policy import Policy
from vkep.session.planning import saved

Open = Callable[..., InferenceSession]
RNG = np.random.default_rng(7)
X = RNG.normal(0, 1, (1, 16, 12, 12)).astype(np.float32)
FEEDS = {"x": X, "i": np.array([3])}
#: a convolution whose weight is packed, a table that is read as it is
TEXT = """g (float[n,16,12,12] x, int64[1] i) => (float[n,2304] y) {
    c = Conv<pads=[1,1,1,1]>(x, k) r = Relu(c) f = Flatten(r) row = Gather(t, i) y = Add(f, row) }"""


def write(path: Path, scale: float = 1.0, batch: str = "1") -> onnx.ModelProto:
    proto = model(TEXT.replace("float[n", f"float[{batch}"))
    rng = np.random.default_rng(3)
    k = rng.normal(0, scale, (16, 16, 3, 3)).astype(np.float32)
    t = rng.normal(0, 1, (200, 16 * 144)).astype(np.float32)
    proto.graph.initializer.extend([numpy_helper.from_array(k, "k"), numpy_helper.from_array(t, "t")])
    path.write_bytes(proto.SerializeToString())
    return proto


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "cache_folder", lambda *parts: tmp_path.joinpath(*parts))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one with each program that is planned."""
    calls: list[None] = []
    original = partition.lower

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(None)
        return original(*args, **options)

    monkeypatch.setattr(partition, "lower", counted)
    return calls


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "plans").glob("*.vkepplan"))


def test_the_second_session_reads_the_plan(
    open_session: Open, planned: list[None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.onnx"
    write(path)
    first = open_session(path)
    expected = first.run(None, FEEDS)
    with caplog.at_level(logging.INFO, "vkep.session"):
        second = open_session(path)
    assert len(planned) == 1 and "is read from" in caplog.text
    np.testing.assert_array_equal(second.run(None, FEEDS)[0], expected[0])
    assert str(second.report()) == str(first.report())
    assert [i.plan for i in second.islands()] == [i.plan for i in first.islands()]
    (file,) = kept(tmp_path)
    assert file.stat().st_size < path.stat().st_size // 4, "the table stays in the model's file"


def test_a_new_process_does_not_load_the_operators(tmp_path: Path, vulkan: Any) -> None:
    path = tmp_path / "m.onnx"
    write(path)
    code = (
        "import sys, vkep, numpy as np\n"
        f"with vkep.InferenceSession({str(path)!r}, cache_dir={str(tmp_path)!r}) as session:\n"
        "    session.run(None, {'x': np.zeros((1, 16, 12, 12), np.float32), 'i': np.array([1])})\n"
        "print('vkep.ops.convolution' in sys.modules, 'vkep.tosa' in sys.modules)\n"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert [run.stdout.split() for run in runs] == [["True", "True"], ["False", "False"]]


def test_each_signature_has_its_plan(open_session: Open, planned: list[None], tmp_path: Path) -> None:
    """A session writes one plan for a signature, and one with sizes: more would each bring the packed weights again."""
    path = tmp_path / "m.onnx"
    proto = write(path, batch="n")
    for _, made, there in ((0, 2, 2), (1, 2, 2), (2, 2, 2)):
        session = open_session(path)
        for n in (1, 2, 3):
            x = RNG.normal(0, 1, (n, 16, 12, 12)).astype(np.float32)
            feeds = {**FEEDS, "x": x}
            np.testing.assert_allclose(session.run(None, feeds)[0], reference(proto, feeds)[0], atol=1e-4)
        assert (len(planned), len(kept(tmp_path))) == (made, there)


def test_a_changed_file_is_planned_again(open_session: Open, planned: list[None], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for scale in (1.0, 0.5):
        proto = write(path, scale)
        session = open_session(path)
        np.testing.assert_allclose(session.run(None, FEEDS)[0], reference(proto, FEEDS)[0], atol=1e-4)
    assert len(planned) == 2


def test_changed_external_data_is_planned_again(open_session: Open, planned: list[None], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for scale in (1.0, 0.5):
        proto = write(tmp_path / "whole.onnx", scale)
        fresh = onnx.ModelProto.FromString(proto.SerializeToString())
        (tmp_path / "data.bin").unlink(missing_ok=True)
        if scale == 1.0:
            onnx.save(fresh, path, save_as_external_data=True, location="data.bin")
        else:  # the model's own file stays as it is
            onnx.save(fresh, tmp_path / "other.onnx", save_as_external_data=True, location="data.bin")
        session = open_session(path)
        np.testing.assert_allclose(session.run(None, FEEDS)[0], reference(proto, FEEDS)[0], atol=1e-4)
    assert len(planned) == 2


def test_external_data_that_changes_under_a_session(open_session: Open, tmp_path: Path) -> None:
    """A session on the old file neither mixes old with new nor leaves a plan of the old under the new one's key."""
    path = tmp_path / "m.onnx"
    before = write(tmp_path / "whole.onnx", batch="n")
    feeds = {**FEEDS, "x": np.concatenate([X, X])}
    expected_before = reference(before, feeds)[0]
    onnx.save(before, path, save_as_external_data=True, location="data.bin")
    old = open_session(path)
    old.run(None, FEEDS)
    (tmp_path / "data.bin").rename(tmp_path / "aside.bin")
    proto = write(tmp_path / "whole.onnx", 0.5, batch="n")
    expected = reference(proto, feeds)[0]
    onnx.save(proto, tmp_path / "other.onnx", save_as_external_data=True, location="data.bin")
    np.testing.assert_allclose(old.run(None, feeds)[0], expected_before, atol=1e-4)  # of the file that it opened
    for _ in range(2):
        np.testing.assert_allclose(open_session(path).run(None, feeds)[0], expected, atol=1e-4)


@pytest.mark.parametrize("cut", [0, 4, 40, 400, -1])
def test_a_damaged_file_is_dropped(
    open_session: Open, planned: list[None], tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.onnx"
    proto = write(path)
    open_session(path).close()
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    # the last piece is padding, so "-1" cuts into the last weight
    file.write_bytes(whole[: cut if cut >= 0 else len(whole) // 2])
    session = open_session(path)
    np.testing.assert_allclose(session.run(None, FEEDS)[0], reference(proto, FEEDS)[0], atol=1e-4)
    assert len(planned) == 2 and (cut == 0 or "damaged cache entry" in caplog.text)
    assert kept(tmp_path) == [file] and file.read_bytes() == whole


def test_an_altered_header_is_damage(open_session: Open, planned: list[None], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    proto = write(path)
    open_session(path).close()
    (file,) = kept(tmp_path)
    file.write_bytes(file.read_bytes().replace(b'"outputs": ["y"]', b'"outputs": ["z"]'))
    session = open_session(path)
    np.testing.assert_allclose(session.run(None, FEEDS)[0], reference(proto, FEEDS)[0], atol=1e-4)
    assert len(planned) == 2


def test_plans_that_are_not_kept(open_session: Open, planned: list[None], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    proto = write(path)
    open_session(path, save_plans=False)
    open_session(proto)
    open_session(path.read_bytes())
    onnx.save(ADD_RELU, tmp_path / "small.onnx")
    open_session(tmp_path / "small.onnx")
    proto.graph.node.append(onnx.helper.make_node("Det", ["q"], ["d"]))  # on the CPU in these tests
    proto.graph.input.append(onnx.helper.make_tensor_value_info("q", onnx.TensorProto.FLOAT, [2, 3, 3]))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, [2]))
    onnx.save(proto, tmp_path / "cpu.onnx")
    session = open_session(tmp_path / "cpu.onnx")
    session.run(None, {**FEEDS, "q": RNG.normal(0, 1, (2, 3, 3)).astype(np.float32)})
    assert session.report().counts["cpu"] == 1
    assert not kept(tmp_path) and len(planned) >= 5


def test_a_users_operator_is_not_kept(open_session: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_OPERATORS", dict(registry._OPERATORS))

    @registry.operator("Twice", domain="mine", types={"x": ("float32",)})
    def twice(b: Any, x: Any) -> Any:
        return b.pointwise("({0} + {0})", x)

    proto = write(tmp_path / "m.onnx")
    proto.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    proto.graph.node.append(onnx.helper.make_node("Twice", ["y"], ["z"], domain="mine"))
    proto.graph.output[0].name = "z"
    onnx.save(proto, tmp_path / "m.onnx")
    open_session(tmp_path / "m.onnx")
    assert not kept(tmp_path)


def test_the_folder_is_bounded(tmp_path: Path, open_session: Open) -> None:
    path = tmp_path / "m.onnx"
    write(path)
    session = open_session(path)
    (file,) = kept(tmp_path)
    loaded = load_model(path)
    folder = saved.SavedPlans(tmp_path / "plans", limit=file.stat().st_size)
    program = folder.program(file.stem, loaded, ["y"])
    assert program is not None and program.outputs == ("y",)
    os.utime(file, (1, 1))
    folder.keep("0" * 64, program, loaded)
    assert [p.stem for p in kept(tmp_path)] == ["0" * 64], "what was not used for longest goes"
    session.run(None, FEEDS)


CAPS = DeviceCapabilities.for_tests()
I = ValueSpec(DTYPES["int64"], (1,))


def key(path: Path, *, n: int = 1, caps: DeviceCapabilities = CAPS, policy: Policy | None = None) -> str | None:
    read = load_model(path)
    known: dict[str, Known] = {**read.graph.weights, "x": ValueSpec(DTYPES["float32"], (n, 16, 12, 12)), "i": I}
    return saved.plan_key(read, known, ["y"], caps, policy or Policy())


def test_the_key_tells_apart_what_a_plan_follows_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    write(path)
    base = key(path)
    assert base is not None and base == key(path)
    others = [
        key(path, n=2),
        key(path, caps=dataclasses.replace(CAPS, max_workgroup_invocations=64)),
        key(path, caps=dataclasses.replace(CAPS, driver_version=CAPS.driver_version + 1)),
        key(path, policy=Policy(tuned={"a problem": (1, 2)})),
        key(path, policy=Policy(prefer="vgf_first")),
        key(path, policy=Policy(min_partition_size=3)),
    ]
    monkeypatch.setattr(saved, "made_by", lambda: ["another vkep"])
    others.append(key(path))
    assert len({base, *others}) == 1 + len(others) and None not in others


def test_models_without_a_key(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    proto = write(path)
    assert key(path, policy=Policy(graphs="driver")) is None, "a converter may refuse today what it takes tomorrow"
    for source, spec in ((proto, ValueSpec(DTYPES["float32"], (1, 16, 12, 12))), (path, HostValue("a sequence"))):
        read = load_model(source)
        known: dict[str, Known] = {**read.graph.weights, "x": spec, "i": I}
        assert saved.plan_key(read, known, ["y"], CAPS, Policy()) is None
