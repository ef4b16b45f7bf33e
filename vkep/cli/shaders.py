"""``vkep shaders``: compile, list, check and reflect shaders. Exit status: 0 success, 1 a shader is wrong, 2 wrong
usage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli.common import JsonFlag, UsageError, VerboseOption, command, echo, print_json, progress_bars, say

if TYPE_CHECKING:
    from vkep.kernels import tool
    from vkep.kernels.kernel import Kernel
    from vkep.plan.records import ShaderVariant

app = typer.Typer(
    name="shaders",
    help="Compile, list, check and reflect GLSL compute shaders.",
    no_args_is_help=True,
    add_completion=False,
)

JobsOption = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Compilers at a time (default: CPUs).")]
KernelOption = Annotated[
    list[str] | None, typer.Option("--kernel", "-k", help="Only this kernel (softmax or softmax.comp); repeatable.")
]
BothFlag = Annotated[
    bool, typer.Option("--both", help="Also build the form with arguments in memory where they fit push constants.")
]
DefineOption = Annotated[
    list[str] | None, typer.Option("--define", "-D", help="NAME or NAME=VALUE, for the given files; repeatable.")
]
IncludeOption = Annotated[
    list[Path] | None,
    typer.Option("--include", "-I", file_okay=False, exists=True, help="Folder to search for includes; repeatable."),
]
MemoryFlag = Annotated[bool, typer.Option("--args-in-memory", help="Define ARGS_IN_MEMORY for the given files.")]


@app.command("compile")
def compile_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Own .comp files. Without any, every declared variant of vkep's kernels is built."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The .spv file, or a folder for several files or for the declared variants."),
    ] = None,
    define: DefineOption = None,
    include: IncludeOption = None,
    kernel: KernelOption = None,
    both: BothFlag = False,
    args_in_memory: MemoryFlag = False,
    jobs: JobsOption = None,
    json_output: JsonFlag = False,
    verbose: VerboseOption = 0,
) -> None:
    """Compile given shaders to SPIR-V, or fill the cache with vkep's declared variants."""
    with command(json_output, verbose):
        from vkep.kernels import tool

        if files:
            if kernel or both:
                raise typer.BadParameter("--kernel and --both choose among declared variants; leave out the file names")
            _compile_files(files, out, _defines(define), include or [], args_in_memory, json_output)
            return
        if define or include or args_in_memory:
            raise typer.BadParameter("--define, --include and --args-in-memory apply to own files; name at least one")
        results = _build(kernel, both, jobs, json_output, validator=False)
        written = None
        if out is not None and not any(result.problems for result in results):
            with _as_usage():
                written = tool.write_results(results, out)
        _report(results, json_output, {"out": str(out) if written is not None else None})


@app.command("check")
def check_command(
    kernel: KernelOption = None,
    both: Annotated[
        bool,
        typer.Option("--both/--as-planned", help="Check arguments in push constants and in memory, or as planned."),
    ] = True,
    jobs: JobsOption = None,
    json_output: JsonFlag = False,
    verbose: VerboseOption = 0,
) -> None:
    """Build every declared variant; compare it with the interface that its GLSL declares, and run spirv-val."""
    with command(json_output, verbose):
        from vkep.kernels import tool
        from vkep.shaders.validate import find_validator

        validator = find_validator() is not None
        results = _build(kernel, both, jobs, json_output, validator)
        if not validator and not json_output:
            echo("spirv-val is not installed (package spirv-tools): modules were not validated", err=True)
        undeclared = [] if kernel else tool.undeclared_sources()
        _report(results, json_output, {"undeclared": undeclared, "spirv_val": validator})


@app.command("list")
def list_command(
    kernel: KernelOption = None, both: BothFlag = False, json_output: JsonFlag = False, verbose: VerboseOption = 0
) -> None:
    """List the declared variants, and .comp files that no kernel declares."""
    with command(json_output, verbose):
        from vkep.kernels import tool

        declared = tool.declared_variants(_kernels(kernel), both)
        undeclared = [] if kernel else tool.undeclared_sources()
        if json_output:
            rows = [
                {
                    "source": d.variant.source,
                    "defines": dict(d.variant.defines),
                    "arguments_in_memory": d.arguments_in_memory,
                    "operands": [{"name": o.name, "writes": o.writes} for o in interface.operands],
                    "params": [{"name": name, "type": kind} for name, kind in interface.params],
                    "spec": dict(interface.spec),
                }
                for d, interface in ((d, d.kernel.interface(dict(d.variant.defines))) for d in declared)
            ]
            print_json({"environment": tool.environment(), "variants": rows, "undeclared": undeclared})
            return
        for d in declared:
            echo(_label(d.variant, d.arguments_in_memory))
        for source in undeclared:
            echo(f"{source}  (no kernel declares it)")
        echo(f"{len(declared)} variants of {len({d.variant.source for d in declared})} kernels", err=True)


@app.command("reflect")
def reflect_command(
    file: Annotated[Path, typer.Argument(help="A .spv or .comp file.", exists=True, dir_okay=False)],
    define: DefineOption = None,
    include: IncludeOption = None,
    args_in_memory: MemoryFlag = False,
    json_output: JsonFlag = False,
    verbose: VerboseOption = 0,
) -> None:
    """Print a shader's interface: arguments, spec constants, workgroup size, shared memory, capabilities."""
    with command(json_output, verbose):
        from vkep.kernels import tool
        from vkep.shaders.library import ShaderLibrary

        with _as_usage():
            reflection = tool.reflect_file(ShaderLibrary(include), file, _defines(define), args_in_memory)
        described = tool.reflection_to_json(reflection)
        if json_output:
            print_json(described)
            return
        for argument in described.pop("arguments"):
            echo(f"argument  {argument['offset']:4d}  {argument['type']:12s} {argument['name']}")
        for constant in described.pop("spec_constants"):
            echo(f"constant  {constant['id']:4d}  {constant['type']:12s} {constant['name']} = {constant['default']}")
        for binding in described.pop("bindings"):
            echo(f"binding   {binding['set']}.{binding['binding']}  {binding['name']}")
        for name, value in described.items():
            shown = ", ".join(str(item) for item in value) if isinstance(value, list) else value
            echo(f"{name.replace('_', ' ')}: {shown}")


def _compile_files(
    files: Sequence[Path],
    out: Path | None,
    defines: Mapping[str, str],
    include: Sequence[Path],
    args_in_memory: bool,
    json_output: bool,
) -> None:
    from vkep.kernels import tool
    from vkep.shaders.library import ShaderLibrary

    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise typer.BadParameter(f"no such file: {', '.join(missing)}")
    single = len(files) == 1 and out is not None and out.suffix == ".spv"
    if len(files) > 1 and out is not None and out.suffix == ".spv":
        raise typer.BadParameter(f"--out is one file ({out}), but {len(files)} shaders are given; name a folder")
    outputs = [out if single and out else (out or file.parent) / (file.stem + ".spv") for file in files]
    if len(set(outputs)) < len(outputs):
        raise typer.BadParameter("two shaders would be written to the same .spv file; compile them apart")
    library, results = ShaderLibrary(include), []
    with _as_usage():
        for file, output in zip(files, outputs, strict=True):
            results.append(tool.compile_file(library, file, output, defines, args_in_memory))
    if json_output:
        print_json({"files": [result.to_json() for result in results]})
    else:
        for result in results:
            for problem in result.problems:
                echo(problem, err=True)
            if result.output:
                echo(f"{result.output}: {result.bytes} bytes")
    if any(result.problems for result in results):
        raise typer.Exit(1)


def _build(
    kernels: Sequence[str] | None, both: bool, jobs: int | None, json_output: bool, validator: bool
) -> list[tool.VariantResult]:
    from vkep.kernels import tool
    from vkep.shaders.library import ShaderLibrary

    declared = tool.declared_variants(_kernels(kernels), both)
    with _as_usage(), progress_bars(show=not json_output) as bars:
        say(bars, "building variants")

        def progress(done: int, total: int, variant: ShaderVariant) -> None:
            if bars is not None:
                bars("shaders", done, total, variant.source)

        return tool.build(ShaderLibrary(), declared, jobs=jobs, progress=progress, run_validator=validator)


def _report(results: Sequence[tool.VariantResult], json_output: bool, more: Mapping[str, Any]) -> None:
    failed = [result for result in results if result.problems]
    if json_output:
        print_json({"variants": [result.to_json() for result in results], "failed": len(failed), **more})
    else:
        for result in failed:
            echo(_label(result.declared.variant, result.declared.arguments_in_memory), err=True)
            for problem in result.problems:
                echo("  " + problem.replace("\n", "\n  "), err=True)
        for source in more.get("undeclared", ()):
            echo(f"{source}: no kernel declares it", err=True)
        counts = dict.fromkeys(("compiler", "cache", "prebuilt"), 0)
        for result in results:
            if result.shader:
                counts[result.shader.origin] += 1
        echo(
            f"{len(results)} variants, {len(failed)} with problems; {counts['compiler']} compiled now, "
            f"{counts['cache']} from the cache, {counts['prebuilt']} prebuilt"
        )
        if more.get("out"):
            echo(f"written to {more['out']}")
    if failed:
        raise typer.Exit(1)


def _kernels(names: Sequence[str] | None) -> tuple[Kernel, ...]:
    from vkep.kernels import tool

    try:
        return tool.select_kernels(names or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _defines(definitions: Sequence[str] | None) -> dict[str, str]:
    defines: dict[str, str] = {}
    for definition in definitions or ():
        name, given, value = definition.partition("=")
        if not name.strip():
            raise typer.BadParameter(f"--define {definition!r}: expected NAME or NAME=VALUE")
        defines[name.strip()] = value if given else "1"
    return defines


def _label(variant: ShaderVariant, in_memory: bool) -> str:
    parts = [variant.source, *(f"{name}={' '.join(value.split())}" for name, value in variant.defines)]
    return "  ".join([*parts, "(arguments in memory)"] if in_memory else parts)


@contextmanager
def _as_usage() -> Iterator[None]:
    """Raise `UsageError` for arguments that fit no shader, and files that cannot be read or written."""
    from vkep.shaders.errors import ShaderError

    try:
        yield
    except ShaderError:
        raise
    except (ValueError, OSError) as error:
        filename = getattr(error, "filename", None)
        raise UsageError(
            f"{filename}: {error.strerror}" if isinstance(error, OSError) and filename else str(error)
        ) from error
