"""``vkep vgf``: creates, shows and runs VGF files by themselves, without a session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli.common import (
    DeviceOption,
    JsonFlag,
    SeedOption,
    UsageError,
    VerboseOption,
    command,
    echo,
    file_name,
    print_json,
)
from vkep.files import read_file
from vkep.text import one_line

if TYPE_CHECKING:
    import numpy as np

    from vkep.vgf import Vgf

app = typer.Typer(
    name="vgf",
    help="Make, show and run VGF files: TOSA graphs and shaders for VK_ARM_data_graph.",
    no_args_is_help=True,
    add_completion=False,
)
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A VGF file, or a file that has some inside (ExecuTorch's .pte).")
]
IndexOption = Annotated[int, typer.Option("--index", min=0, help="Which of the VGF files inside.")]


@app.command("convert")
def convert_command(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A model (.onnx), or TOSA: .mlir, .tosa.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The VGF file to write.")],
    mlir: Annotated[Path | None, typer.Option("--mlir", help="Also write the TOSA text of an ONNX model here.")] = None,
    json_output: JsonFlag = False,
    verbose: VerboseOption = 0,
) -> None:
    """Convert an ONNX model to a VGF file. Its shapes must be static, and TOSA must have all of its operators."""
    with command(json_output, verbose):
        from vkep.vgf import decode, mlir_to_vgf

        if not source.is_file():
            raise UsageError(f"no such file: {source}")
        if source.suffix == ".onnx":
            graph = _lower(source)
            if mlir is not None:
                mlir.write_text(graph.mlir, encoding="utf-8")
            data = mlir_to_vgf(graph.mlir)
        else:
            data = mlir_to_vgf(read_file(source, error=UsageError))
        out.write_bytes(data)
        vgf = decode(data)
        if json_output:
            print_json({"file": str(out), "bytes": len(data), **vgf.to_dict()})
        else:
            echo(f"{out}: {len(data)} bytes, {_summary(vgf)}")


def _lower(path: Path) -> Any:
    from vkep import dtypes
    from vkep.errors import Decline
    from vkep.graph import load_model
    from vkep.session import SessionOptions
    from vkep.tosa import TosaPort, lower_nodes

    model = load_model(path, max_nodes=SessionOptions.max_nodes)
    known: dict[str, Any] = dict(model.graph.weights)
    for info in model.graph.inputs:
        dtype = dtypes.from_onnx(info.elem_type)
        if dtype is None or info.static_shape is None:
            raise UsageError(f"input {info.name!r} has no static shape of a tensor type: {info.shape}")
        known[info.name] = TosaPort(info.name, dtype, info.static_shape)
    try:
        return lower_nodes(model.graph.nodes, known, [v.name for v in model.graph.outputs])
    except Decline as decline:
        raise UsageError(f"{path} cannot be a VGF file as a whole: {decline.reason}") from decline


@app.command("dump")
def dump_command(
    file: FileArgument,
    index: IndexOption = 0,
    spirv: Annotated[
        Path | None, typer.Option("--spirv", file_okay=False, help="Folder for the modules' SPIR-V.")
    ] = None,
    json_output: JsonFlag = False,
    verbose: VerboseOption = 0,
) -> None:
    """Show the content of a VGF file."""
    with command(json_output, verbose):
        vgf = _read(file, index)
        if spirv is not None:
            spirv.mkdir(parents=True, exist_ok=True)
            for number, module in enumerate(vgf.modules):
                if module.spirv is not None:
                    (spirv / f"{number}-{file_name(module.name)}.spv").write_bytes(module.spirv)
        if json_output:
            print_json(vgf.to_dict())
            return
        echo(f"VGF {'.'.join(map(str, vgf.version))}: {_summary(vgf)}")
        for what, slots in (("input", vgf.inputs), ("output", vgf.outputs)):
            for slot in slots:
                resource = vgf.resources[slot.resource]
                echo(f"  {what} {one_line(slot.name)}: {resource.dtype} {list(resource.shape)}, binding {slot.binding}")
        for segment in vgf.segments:
            module = vgf.modules[segment.module]
            size = f"no code ({module.language})"
            if module.spirv is not None:
                size = f"{len(module.spirv)} bytes of SPIR-V"
            elif module.source is not None:
                size = f"{len(module.source)} characters of {module.language}"
            grid = f", grid {list(segment.dispatch)}" if segment.kind == "compute" else ""
            for _, at, count in segment.push_constants:
                grid += f", push constants of {count} bytes at {at}"
            echo(
                f"  {segment.kind} segment {one_line(segment.name)}: module {one_line(module.name)}, {size}, "
                f"{len(segment.constants)} constants{grid}"
            )


@app.command("run")
def run_command(
    file: FileArgument,
    inputs: Annotated[
        list[Path] | None, typer.Option("--input", "-i", help="A .npy file for each input, in order; default: random.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", file_okay=False, help="Folder for the outputs.")] = None,
    index: IndexOption = 0,
    push: Annotated[
        list[str] | None, typer.Option("--push", help="SEGMENT=FILE: the bytes of a segment's push constants.")
    ] = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    json_output: JsonFlag = False,
    verbose: VerboseOption = 0,
) -> None:
    """Run a VGF file, by the driver's data graphs or by the emulation layers."""
    with command(json_output, verbose):
        import numpy as np

        vgf = _read(file, index)
        arrays = _arrays(vgf, inputs or [], seed)
        results, source, name = _run(vgf, arrays, device, _push_constants(push or []))
        names = [slot.name or f"output_{i}" for i, slot in enumerate(vgf.outputs)]
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for label, result in zip(names, results, strict=True):
                np.save(out / f"{file_name(label)}.npy", result)
        if json_output:
            outputs = [
                {"name": label, "dtype": r.dtype.name, "shape": list(r.shape)}
                for label, r in zip(names, results, strict=True)
            ]
            print_json({"device": name, "data_graphs": source, "outputs": outputs})
            return
        echo(f"{file} on {name}, data graphs by {source}")
        for label, result in zip(names, results, strict=True):
            values = result.astype(np.float64)
            echo(
                f"  output {one_line(label)}: {result.dtype.name} {list(result.shape)}, "
                f"min {values.min():.6g}, mean {values.mean():.6g}, max {values.max():.6g}"
            )


def _push_constants(texts: list[str]) -> dict[str, bytes]:
    values = {}
    for text in texts:
        segment, equals, path = text.partition("=")
        if not equals:
            raise UsageError(f"--push {text}: expected SEGMENT=FILE")
        values[segment] = read_file(Path(path), f"file for --push {segment}", UsageError)
    return values


def _run(
    vgf: Vgf, arrays: list[Any], device: str | None, push_constants: dict[str, bytes]
) -> tuple[list[Any], str, str]:
    from vkep.device.datagraph.context import create_graph_context, graph_source
    from vkep.device.datagraph.delegate import VgfDelegate
    from vkep.device.datagraph.runner import VgfRunner
    from vkep.device.delegate import VulkanDelegate
    from vkep.shaders.library import ShaderLibrary

    with create_graph_context({"gpu_shared_context_token": "vkep vgf run"}, device=device) as context:
        memory = VulkanDelegate(context, ShaderLibrary())
        try:
            delegate = VgfDelegate(memory)
            try:
                runner = VgfRunner(delegate, vgf, push_constants=push_constants)
                try:
                    return runner.run(arrays), graph_source(context), context.capabilities.name
                finally:
                    runner.close()
            finally:
                delegate.close()
        finally:
            memory.close()


def _read(file: Path, index: int) -> Vgf:
    from vkep.vgf import decode, find_vgf

    data = read_file(file, error=UsageError)
    if data[:4] == b"VGF1":
        return decode(data)
    found = find_vgf(data)
    if index >= len(found):
        raise UsageError(f"{file} has {len(found)} VGF files inside; --index is {index}")
    return decode(found[index])


def _arrays(vgf: Vgf, paths: list[Path], seed: int) -> list[np.ndarray[Any, Any]]:
    import numpy as np

    from vkep.cli.inputs import read_array
    from vkep.dtypes import DTYPES

    if paths and len(paths) != len(vgf.inputs):
        raise UsageError(f"{len(paths)} inputs given; the file has {len(vgf.inputs)}")
    rng = np.random.default_rng(seed)
    arrays = []
    for k, slot in enumerate(vgf.inputs):
        resource = vgf.resources[slot.resource]
        dtype = DTYPES[resource.dtype].numpy
        if not paths:
            made = rng.uniform(0, 1, resource.shape)
            whole = rng.integers(0, 2 if dtype.kind == "b" else 100, resource.shape)
            arrays.append((made if dtype.kind == "f" else whole).astype(dtype))
            continue
        array = read_array(paths[k])
        if array.dtype != dtype or array.shape != resource.shape:
            raise UsageError(f"{paths[k]}: {array.dtype} {array.shape}; input {slot.name} is {dtype} {resource.shape}")
        arrays.append(array)
    return arrays


def _summary(vgf: Vgf) -> str:
    kinds = [s.kind for s in vgf.segments]
    return (
        f"{kinds.count('graph')} graph and {kinds.count('compute')} compute segments, "
        f"{len(vgf.constants)} constants, {len(vgf.inputs)} inputs, {len(vgf.outputs)} outputs"
    )
