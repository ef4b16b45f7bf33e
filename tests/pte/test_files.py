"""Programs as files: what is decoded, and ten thousand damaged ones that are refused or decoded, never worse."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools.fuzz.files import WHAT
from vkep.errors import InvalidInputError, InvalidPteError, UnsupportedProgramError, VkepError
from vkep.executorch.method import _make_values
from vkep.executorch.options import ProgramOptions
from vkep.executorch.portable import KERNELS, PortableKernel
from vkep.executorch.portable.registry import broadcast
from vkep.executorch.program import DecodedProgram, Program
from vkep.executorch.steps import State, bind_kernel
from vkep.executorch.tensors import HostTensor
from vkep.files import MEMORY_BYTES
from vkep.pte import schema
from vkep.pte.container import PtdFile, PteFile
from vkep.pte.schema import TensorShapeDynamism
from vkep.pte.steps import DelegateStep, KernelStep
from vkep.pte.values import ListValue, Place, TensorValue

DATA = Path(__file__).parents[1] / "executorch" / "data"
GIVEN = sorted((DATA / "given").glob("*.pte"))
SPECIAL = sorted((DATA / "special").glob("*.pte"))
CASES = 10_000


def read(name: str) -> bytes:
    return (DATA / name).read_bytes()


def decode(data: bytes) -> DecodedProgram:
    return DecodedProgram(data)


# ---- what is there


def test_the_mixed_program() -> None:
    decoded = DecodedProgram(DATA / "given" / "unified_vgf_and_vk.pte")
    method = decoded.methods["forward"]
    assert [d.backend for d in method.delegates] == ["VgfBackend", "VulkanBackend", "VgfBackend"]
    assert [type(s) for s in method.steps] == [DelegateStep] * 3
    assert dict(method.delegates[1].compile_specs)["gpu_shared_group_id"] == b"7"
    assert method.arenas == (0, 960) and decoded.has_graphs and len(decoded.named_data) == 3
    (x,) = (method.values[i] for i in method.inputs)
    assert isinstance(x, TensorValue) and x.dtype == np.float32 and x.sizes == (1, 3, 8, 8) and x.is_static


def test_operators_outside_delegates() -> None:
    method = DecodedProgram(DATA / "given" / "none.pte").methods["forward"]
    assert method.kernels[:3] == ["aten::permute_copy.out", "aten::avg_pool2d.out", "aten::index_select.out"]
    first = method.steps[0]
    assert isinstance(first, KernelStep) and len(first.arguments) == 2 and len(first.writes) == 1


def test_several_methods_and_constants_of_a_program() -> None:
    decoded = DecodedProgram(DATA / "special" / "methods.pte")
    assert set(decoded.methods) == {"forward", "other", "version", "ratio", "flag"}
    assert [decoded.methods["version"].values[i] for i in decoded.methods["version"].outputs] == [7]


def test_a_data_file() -> None:
    data = PtdFile(DATA / "special" / "external.ptd")
    assert set(data.layouts) == {"linear.weight", "linear.bias"}
    assert data.layouts["linear.weight"].sizes == (32, 32) and len(data.named_data["linear.bias"]) == 128
    with pytest.raises(UnsupportedProgramError, match=r"'linear\.weight' is in none of the data files") as caught:
        DecodedProgram(DATA / "special" / "external.pte")
    assert len(caught.value.missing) == 2


# ---- what is wrong with a file


def test_no_program() -> None:
    with pytest.raises(InvalidPteError, match=r"no \.pte file"):
        decode(b"\x08\0\0\0ONNX" + bytes(64))
    with pytest.raises(InvalidPteError):
        decode(b"")
    with pytest.raises(FileNotFoundError):
        DecodedProgram(DATA / "nowhere.pte")
    with pytest.raises(TypeError, match="expected a path or bytes"):
        DecodedProgram(3)  # type: ignore[arg-type]


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.pte").touch()
    with pytest.raises(InvalidPteError, match="is empty"):
        DecodedProgram(tmp_path / "empty.pte")


def test_paths_without_a_file(tmp_path: Path) -> None:
    paths = [tmp_path, tmp_path / ("a" * 5000), tmp_path / "a\0b"]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "fifo")
        paths.append(tmp_path / "fifo")
    for path in paths:
        for kind in (PteFile, PtdFile):
            with pytest.raises(FileNotFoundError, match="no program or data file at"):
                kind(path)


@pytest.mark.parametrize(("kind", "identifier"), [(PteFile, b"ET12"), (PtdFile, b"FT01")])
def test_a_large_file_is_read_only_where_it_begins_as_a_program(
    tmp_path: Path, kind: type, identifier: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes(1 << 16))
    monkeypatch.setattr("vkep.files.MEMORY_BYTES", 1 << 15)
    with pytest.raises(InvalidPteError, match="bytes 4 to 8 are"):
        kind(path)
    path.write_bytes(bytes(4) + identifier + bytes(1 << 16))
    with pytest.raises(
        InvalidPteError, match="cannot be read: 65544 bytes, and this machine has 32768 bytes of memory"
    ):
        kind(path)


def test_arenas_beyond_the_limit() -> None:
    method = DecodedProgram(DATA / "given" / "unified_vgf_and_vk.pte").methods["forward"]
    with pytest.raises(VkepError, match=r"its arenas take \d+ bytes; max_host_bytes allows 100"):
        _make_values(method, 100)


def test_limits_of_a_program() -> None:
    wrong: Any
    for wrong in (0, 1.5):
        with pytest.raises(ValueError, match="max_host_bytes is"):
            ProgramOptions(max_host_bytes=wrong)
        with pytest.raises(ValueError, match="max_run_bytes is"):
            ProgramOptions(max_run_bytes=wrong)
        with pytest.raises(ValueError, match="max_instructions is"):
            ProgramOptions(max_instructions=wrong)
    assert ProgramOptions().host_bytes == MEMORY_BYTES and ProgramOptions(max_host_bytes=7).host_bytes == 7


def test_a_result_beyond_the_limit() -> None:
    (spec, out), size = host(2), [1 << 20]
    state = State([size, 1.0, out], most_bytes=8 << 10)
    created = bind_kernel(
        state, [None, None, spec], KernelStep("aten::full.out", (0, 1), (2,)), KERNELS["aten::full.out"], "here"
    )
    message = "here: aten::full.out creates an array of 1048576 elements; max_host_bytes allows 1024"
    with pytest.raises(VkepError, match=message):
        created()
    size[:] = [2, 3]
    created()
    assert (out.array == 1).all()


def test_a_loop_beyond_the_limit() -> None:
    inputs = [np.zeros(8, np.float32), np.ones((3, 8), np.float32)]
    with (
        Program.load(DATA / "special" / "scan.pte", max_instructions=10) as program,
        pytest.raises(VkepError, match=r"the run has more than 10 instructions \(max_instructions\)"),
    ):
        program.execute(inputs)


def test_a_tensor_without_a_bound_grows_to_the_limit() -> None:
    spec, _ = host(0)
    unbound = replace(spec, dynamism=TensorShapeDynamism.DYNAMIC_UNBOUND)
    tensor = HostTensor(unbound, np.zeros(24, np.uint8), most_bytes=1 << 10)
    tensor.resize((256,), "cat")
    with pytest.raises(VkepError, match="cat gives a tensor of 4000 bytes; max_host_bytes allows 1024"):
        tensor.resize((1000,), "cat")


def test_a_format_from_the_future() -> None:
    data = bytearray(read("given/none.pte"))
    data[4:8] = b"ET13"
    with pytest.raises(UnsupportedProgramError, match=r"format ET13; vkep reads ET12"):
        decode(bytes(data))


def test_a_schema_version_from_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "VERSION", -1)
    with pytest.raises(UnsupportedProgramError, match="schema version 0; vkep reads version -1"):
        decode(read("given/none.pte"))


@pytest.mark.parametrize("name", ["given/none.pte", "given/unified_vgf_and_vk.pte", "given/cnn_vk.pte"])
def test_cut_off_anywhere(name: str) -> None:
    data = read(name)
    last = 0
    for segment in PteFile(data).program.segments:
        last = max(last, segment.offset + segment.size)
    (base,) = struct.unpack_from("<Q", data, 24)
    for length in [*range(64), *range(64, base + last, 97), base + last - 1]:
        with pytest.raises(InvalidPteError):
            decode(data[:length])


@pytest.mark.parametrize("name", ["unknown backend", "unknown operator"])
def test_everything_missing_is_named_at_once(name: str) -> None:
    data = read("given/vk.pte")
    if name == "unknown backend":
        with pytest.raises(UnsupportedProgramError, match="backend 'XulkanBackend'; known: VulkanBackend, VgfBackend"):
            decode(data.replace(b"VulkanBackend", b"XulkanBackend"))
        return
    data = read("given/none.pte").replace(b"aten::sin", b"aten::win").replace(b"aten::gather", b"aten::father")
    with pytest.raises(UnsupportedProgramError) as caught:
        decode(data)
    assert caught.value.missing == (
        "forward: operator aten::father.out: no portable kernel",
        "forward: operator aten::win.out: no portable kernel",
    )


def test_unsupported_parts_of_a_vgf_are_named_too() -> None:
    tensor, image = struct.pack("<I", 1000460000), struct.pack("<I", 3)
    with pytest.raises(UnsupportedProgramError) as caught:
        decode(read("given/vgf.pte").replace(tensor, image))
    assert len(caught.value.missing) >= 4
    assert {line.split(" binding ")[1][1:] for line in caught.value.missing} == {
        " is bound as VkDescriptorType 3; vkep runs tensors and buffers"
    }
    assert {line.split(" (")[0] for line in caught.value.missing} == {"forward: delegate 0", "forward: delegate 1"}


def test_a_complex_tensor_at_a_delegate(vulkan: object) -> None:
    decoded = decode(read("given/vk.pte"))
    method = decoded.methods["forward"]
    values = [replace(v, dtype=np.dtype(np.complex64)) if isinstance(v, TensorValue) else v for v in method.values]
    decoded.methods["forward"] = replace(method, values=tuple(values))
    with Program(decoded, ProgramOptions()) as program, pytest.raises(InvalidPteError, match="no complex numbers"):
        program.load_method("forward")


def test_a_program_whose_tensors_are_not_its_delegates(vulkan: object) -> None:
    for sizes in ((5, 7), ()):
        decoded = decode(read("given/vk.pte"))
        method = decoded.methods["forward"]
        first = method.inputs[0]
        value = method.values[first]
        assert isinstance(value, TensorValue) and value.sizes not in ((5, 7), ())
        values = list(method.values)
        values[first] = replace(value, sizes=sizes)
        decoded.methods["forward"] = replace(method, values=tuple(values))
        with Program(decoded, ProgramOptions()) as program, pytest.raises(InvalidPteError, match="the program has"):
            program.load_method("forward")


def test_a_buffer_that_the_exporter_lost() -> None:
    with pytest.raises(UnsupportedProgramError, match="alias_buffer_mutations"):
        DecodedProgram(DATA / "special" / "counter_lost.pte")


# ---- ten thousand damaged files


def damaged(data: bytes, random_: random.Random) -> bytes:
    """The file with some bytes, numbers or ranges changed."""
    changed = bytearray(data)
    for _ in range(random_.choice((1, 1, 2, 5, 20))):
        at = random_.randrange(len(changed))
        kind = random_.randrange(5)
        if kind == 0:
            changed[at] ^= 1 << random_.randrange(8)
        elif kind == 1:
            changed[at] = random_.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            at -= at % 4
            value = random_.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data), random_.getrandbits(32)))
            changed[at : at + 4] = struct.pack("<I", value)
        elif kind == 3:
            end = min(at + random_.randrange(1, 64), len(changed))
            changed[at:end] = bytes(end - at)
        else:
            source = random_.randrange(len(changed))
            part = changed[source : source + random_.randrange(1, 64)]
            changed[at : at + len(part)] = part
    return bytes(changed)


def test_ten_thousand_damaged_files() -> None:
    """Each is refused with one of vkep's errors, or decodes. What a kernel would be given is checked as well as the file."""
    random_ = random.Random(20)
    files = [read(f"{p.parent.name}/{p.name}") for p in (*GIVEN, *SPECIAL) if p.stat().st_size < 10_000]
    assert len(files) > 15
    refused = 0
    for number in range(CASES):
        data = damaged(files[number % len(files)], random_)
        try:
            decode(data)
        except (InvalidPteError, UnsupportedProgramError):
            refused += 1
    assert CASES * 0.2 < refused < CASES


def bound(name: str, function: Any, arguments: Sequence[Any], outs: int = 1) -> Callable[[], Any]:
    """A kernel call on values: the last ``outs`` are its results."""
    specs = [spec for spec, _ in arguments]
    step = KernelStep(name, tuple(range(len(specs) - outs)), tuple(range(len(specs) - outs, len(specs))))
    kernel = PortableKernel(name, function, len(step.arguments), broadcast)
    return bind_kernel(State([value for _, value in arguments], MEMORY_BYTES), specs, step, kernel, "here")


def host(index: int) -> tuple[TensorValue, HostTensor]:
    spec = TensorValue(index, np.dtype(np.float32), (2, 3), (0, 1), TensorShapeDynamism.STATIC, place=Place(0, 0, 24))
    return spec, HostTensor(spec, np.zeros(24, np.uint8))


def test_a_list_of_tensors_that_lists_a_number() -> None:
    with pytest.raises(
        InvalidPteError, match=r"here: aten::cat.out: value 1 lists tensors, and its values \[2\] are none"
    ):
        bound("aten::cat.out", np.concatenate, [host(0), (ListValue((0, 2), tensors=True), None), (7, 7), host(3)])


def test_a_list_of_tensors_with_an_array_that_a_kernel_put_there() -> None:
    spec, out = host(3)
    arguments = [(ListValue((1,), tensors=True), None), (None, np.ones((2, 3), np.float32)), (spec, out)]
    bound("aten::stack.out", lambda arrays, array: np.stack(arrays)[0], arguments)()
    assert (out.array == 1).all()


@pytest.mark.parametrize("size", [None, "x", float("inf"), [float("inf")], [1 << 70], [7]])
def test_a_view_of_no_size(size: Any) -> None:
    with pytest.raises(InvalidInputError, match="et_view"):
        bound("executorch_prim::et_view.default", None, [host(0), (size, size), host(2)])()


@pytest.mark.parametrize("row", [None, -1, 1.5, "x"])
def test_a_row_of_no_number(row: Any) -> None:
    step = [host(0), host(1), (row, row)]
    with pytest.raises(InvalidInputError, match="et_copy_index"):
        bound("executorch_prim::et_copy_index.tensor", None, step, outs=0)()


@pytest.mark.parametrize(
    "case",
    [f"1795418538/{number}" for number in (34710, 50577, 64514, 65675, 68878)]
    + ["2026112701/17496", "2026112701/21436", "2026112702/17815", "2026112702/39650", "2026112703/14020"],
)
def test_damaged_programs_that_raised_other_errors(vulkan: object, case: str, tmp_path: Path) -> None:
    """Found by ``python -m tools.fuzz.files --what pte --seed SEED``."""
    with contextlib.suppress(VkepError):
        WHAT["pte"](random.Random(f"pte/{case}"), tmp_path)


def test_damaged_data_files() -> None:
    random_ = random.Random(21)
    data = read("special/external.ptd")
    program: Any = DATA / "special" / "external.pte"
    refused = 0
    for _ in range(500):
        try:
            DecodedProgram(program, [damaged(data, random_)])
        except (InvalidPteError, UnsupportedProgramError):
            refused += 1
    assert 0 < refused < 500


def test_a_file_that_is_cut_while_it_is_open_is_no_concern(tmp_path: Path) -> None:
    """A mapped one would end the process."""
    path = tmp_path / "cut.pte"
    shutil.copy(DATA / "two_methods" / "vulkan.pte", path)
    whole = PteFile(path)
    os.truncate(path, 100)
    kept = PteFile(DATA / "two_methods" / "vulkan.pte")
    assert [bytes(v) for v in whole._segments.views] == [bytes(v) for v in kept._segments.views]
