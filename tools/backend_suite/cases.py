"""The cases of the installed onnx package: models, inputs and expected outputs, ready to run."""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.loader as loader
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

from vkep.cache import cache_folder, read_sealed, write_sealed

#: stands for the operator of a case that has several
GRAPHS = "(graphs)"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
#: cases whose expected values are draws of numpy's generator, which no other generator can repeat
_RANDOM = re.compile(r"/test_(bernoulli|training_dropout(_default)?(_mask)?$)")
#: cases compared with other tolerances (rtol, atol) than their own, and why
TOLERANCES: dict[str, tuple[float, float, str]] = {
    name: (rtol, atol, why)
    for names, rtol, atol, why in (
        (
            ("node/test_dft_inverse", "node/test_dft_inverse_opset19"),
            1e-3,
            1e-6,
            "the expected values hold rounding of 1.9e-7 where the exact ones are 0",
        ),
        (
            ("node/test_attention_4d_causal_fp16", "node/test_attention_4d_causal_fp16_expanded"),
            2**-9,
            1e-7,
            "the expected values are rounded to float16 after every step: two units in the last place, as ONNX's runner "
            "allows bfloat16",
        ),
    )
    for name in names
}
#: results of cases that onnx has corrected since release 1.23, for the inputs of that release: they are right too
CORRECTED: dict[str, np.ndarray] = {
    "node/test_resize_downsample_scales_linear_align_corners": np.array([[[[1, 4]]]], np.float32),
    "node/test_resize_downsample_scales_cubic_align_corners": np.array(
        [[[[1, 2.5, 4], [7, 8.5, 10], [13, 14.5, 16]]]], np.float32
    ),
    # its indices count in the output, not in an output of the default shape
    "node/test_maxunpool_export_with_output_shape": np.array(
        [[[[0, 0, 0, 0, 0], [5, 0, 6, 0, 0], [0, 0, 0, 7, 0], [8, 0, 0, 0, 0], [0, 0, 0, 0, 0]]]], np.float32
    ),
}
#: of the node cases in the cache folder; those of onnx 1.23 take 10 MB
_MOST_BYTES = 1 << 28
_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


@dataclass(frozen=True)
class Case:
    """One case: ``name`` is its kind and ONNX's name, as in ``node/test_abs``."""

    name: str
    source: Any  #: onnx's TestCase
    rtol: float
    atol: float

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]

    @property
    def is_random(self) -> bool:
        """The expected values are random: only their shapes and types can be compared."""
        return _RANDOM.search(self.name) is not None

    def model(self) -> onnx.ModelProto:
        if self.source.model is not None:
            return self.source.model
        return onnx.load(_folder(self.source) / "model.onnx" if self.source.model_dir else _light(self.source))

    def data(self, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
        """Inputs and expected outputs of each data set."""
        if self.source.data_sets is not None:
            for inputs, outputs in self.source.data_sets:
                yield [_array(v) for v in inputs], [_array(v) for v in outputs]
        elif self.source.model_dir is None:
            weights = {t.name for t in model.graph.initializer}
            infos = [i for i in model.graph.input if i.name not in weights]
            stem = _light(self.source).with_suffix("")
            outputs = [_read(stem.parent / f"{stem.name}_output_{k}.pb") for k in range(len(model.graph.output))]
            yield [Runner.generate_dummy_data(i) for i in infos], outputs
        else:
            for folder in sorted(_folder(self.source).glob("test_data_set*")):
                yield (
                    [_read(folder / f"input_{k}.pb", i.type) for k, i in enumerate(_present(folder, "input", model))],
                    [_read(folder / f"output_{k}.pb", o.type) for k, o in enumerate(_present(folder, "output", model))],
                )

    def operator(self) -> str:
        """The operator that the case is about: its model's only one, else what most of the name says."""
        nodes = self.model().graph.node
        kinds = {(n.domain, n.op_type) for n in nodes if n.op_type != "Constant"}
        if len(kinds) == 1:
            domain, op_type = kinds.pop()
            return f"{domain}.{op_type}" if domain not in ("", "ai.onnx") else op_type
        return GRAPHS


@functools.cache
def load_cases() -> dict[str, Case]:
    """Every case by name."""
    found: dict[str, Case] = {}
    for kind in KINDS:
        for source in _sources(kind):
            name = f"{kind}/{source.name}"
            rtol, atol, _ = TOLERANCES.get(name, (source.rtol, source.atol, ""))
            found[name] = Case(name, source, rtol, atol)
    return dict(sorted(found.items(), key=lambda item: (KINDS.index(item[1].kind), item[0])))


def _sources(kind: str) -> list[Any]:
    """onnx's cases of one kind. The node cases are kept in the cache folder: onnx computes them in five seconds, and the tests
    load them in many processes.
    """
    if kind != "node":
        return list(loader.load_model_tests(kind="real" if kind == "light" else kind))
    # a weekly build has the version of the last release
    made = Path(onnx.__file__).stat().st_mtime_ns
    path = cache_folder("onnx_cases") / f"{onnx.__version__}_{made}_numpy_{np.__version__}.sealed"
    kept = read_sealed(path, _MOST_BYTES)
    if kept is not None:
        return list(pickle.loads(kept))  # sealed: a process of this user wrote it
    found = list(loader.load_model_tests(kind="node"))
    with contextlib.suppress(OSError):  # the next process computes them again
        write_sealed(path, pickle.dumps(found, protocol=5))
    return found


def check_outputs(case: Case, expected: list[Any], got: list[Any]) -> None:
    """ONNX's own comparison, with the case's tolerances; `AssertionError` where they differ."""
    corrected = CORRECTED.get(case.name)
    if (
        corrected is not None
        and [np.shape(y) for y in got] == [corrected.shape]
        and np.allclose(got[0], corrected, case.rtol)
    ):
        return
    if len(expected) != len(got):
        raise AssertionError(f"{len(got)} outputs, expected {len(expected)}")
    for ours, theirs in zip(got, expected, strict=True):
        if isinstance(theirs, list):  # ONNX's comparison takes no scalars within a sequence
            if not isinstance(ours, list):
                raise AssertionError(f"an output is {type(ours).__name__}, expected a sequence")
            check_outputs(case, theirs, ours)
        elif case.is_random and np.shape(ours) == np.shape(theirs):
            np.testing.assert_equal(ours.dtype, theirs.dtype)
        else:
            Runner.assert_similar_outputs([theirs], [ours], case.rtol, case.atol)


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, np.ndarray)) or value is None:
        return value
    return np.asarray(value)


def _folder(source: Any) -> Path:
    return Path(source.model_dir)


def _light(source: Any) -> Path:
    return _DATA / "light" / Path(source.url).name


def _present(folder: Path, what: str, model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    count = len(list(folder.glob(f"{what}_*.pb")))
    return list(model.graph.input if what == "input" else model.graph.output)[:count]


def _read(path: Path, type_proto: onnx.TypeProto | None = None) -> Any:
    data = path.read_bytes()
    if type_proto is not None and type_proto.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if type_proto is not None and type_proto.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
