"""Files on the command line: sessions on models, and ExecuTorch programs behind the same interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkep.cli.common import InputTexts, Progress, UsageError
from vkep.session import InferenceSession, NodeArg
from vkep.session.session import options_of

if TYPE_CHECKING:
    import numpy as np

    from vkep.executorch.metadata import MethodMeta
    from vkep.executorch.report import MethodReport
    from vkep.view.page import Page

SUFFIX = ".pte"
#: the options' defaults: with them the program's compile specs decide
_DEFAULTS = {"group_id": 0, "context_mode": "lookup_or_create", "sync_mode": "timeline", "prefer": "auto"}


def is_program(model: Path) -> bool:
    """Whether the file is an ExecuTorch program, by its suffix."""
    return model.suffix == SUFFIX


def named_inputs(model: Path, texts: InputTexts) -> InputTexts:
    """Assign names to files given without one: they are a program's inputs in order: ``-i a.npy -i b.npy``."""
    if not is_program(model):
        return texts
    named, count = [], 0
    for text in texts[0] or ():
        if "=" not in text and not text.endswith(".npz"):
            text, count = f"input_{count}={text}", count + 1
        named.append(text)
    return named, *texts[1:]


def refuse(model: Path, options: Mapping[str, bool]) -> None:
    """Raise `UsageError` for options that apply to ONNX models only."""
    asked = [name for name, given in options.items() if given]
    if asked and is_program(model):
        raise UsageError(f"{', '.join(asked)}: for .onnx models; {model} is an ExecuTorch program")


def open_session(model: Path, options: Mapping[str, Any], progress: Progress | None = None) -> InferenceSession:
    """Open a session on the file, or a `ProgramSession` on a .pte.

    Raises `UsageError` where the file does not exist, and the errors of `vkep.InferenceSession`.
    """
    if not model.is_file():
        raise UsageError(f"{model}: is a folder, expected a file" if model.is_dir() else f"no such file: {model}")
    if is_program(model):
        refuse(model, {"--prefer": options.get("prefer", "auto") != "auto"})
        return ProgramSession(model, options, progress)  # type: ignore[return-value]  # the parts that commands use
    try:
        checked = options_of(**options, progress=progress)
        checked.compile_spec()
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    return InferenceSession(model, checked)


class ProgramSession:
    """One method of a program. Inputs and outputs are called ``input_0`` ... and ``output_0`` ..."""

    def __init__(
        self, path: Path, options: Mapping[str, Any], progress: Progress | None, name: str = "forward"
    ) -> None:
        """Raises `UsageError` for a program without the method, and as `vkep.executorch.Program.load`."""
        from vkep.executorch import Program
        from vkep.executorch.options import ProgramOptions

        given = {key: value for key, value in options.items() if _DEFAULTS.get(key) != value}
        unknown = sorted(given.keys() - ProgramOptions.__dataclass_fields__)
        if unknown:
            raise UsageError(f"--set {unknown[0]}: for .onnx models; {path} is an ExecuTorch program")
        data = sorted(path.parent.glob(f"{path.stem}*.ptd"))
        self.program = Program.load(path, data, progress=progress, **given)
        names = self.program.method_names
        if name not in names:
            if len(names) != 1:
                raise UsageError(f"{path} has no method {name!r}; it has {sorted(names)}")
            (name,) = names
        try:
            self.method = self.program.load_method(name)
        except BaseException:
            self.program.close()
            raise

    def get_inputs(self) -> list[NodeArg]:
        """The method's inputs. A dynamic size is a symbol named after the input and the axis."""
        meta = self.method.metadata
        return [self._argument(meta, k, f"input_{k}", "input") for k in range(meta.num_inputs())]

    def get_outputs(self) -> list[NodeArg]:
        """The method's outputs; their types and shapes are not known."""
        meta = self.method.metadata
        return [NodeArg(f"output_{k}", "", None) for k in range(meta.num_outputs())]

    @staticmethod
    def _argument(meta: MethodMeta, index: int, name: str, what: str) -> NodeArg:
        from vkep import dtypes

        info = meta.input_tensor_meta(index)
        kind = dtypes.DTYPES[info.numpy_dtype].onnx_name
        sizes: list[int | str | None] = [f"{name}_{k}" if info.is_dynamic else n for k, n in enumerate(info.sizes())]
        return NodeArg(name, f"tensor({kind})", sizes)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Run the method; returns all its outputs, whatever ``names`` are."""
        return self.method.execute([feeds[info.name] for info in self.get_inputs()])

    def view(self, feeds: Mapping[str, np.ndarray], runs: int = 3) -> Page:
        """A page of the method; see `vkep.InferenceSession.view`."""
        return self.method.view([feeds[info.name] for info in self.get_inputs()], runs)

    def report(self) -> MethodReport:
        """Return where each node runs."""
        return self.method.report()

    def islands(self) -> list[Any]:
        """None: a program's plans are not shown."""
        return []

    def close(self) -> None:
        """Close the program."""
        self.program.close()

    def __enter__(self) -> ProgramSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
