"""Real models, end to end: the light models of the onnx package, and the project's own benchmark models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.nightly import nightly_but
from tools.models.catalog import Options, build_model, reference_inputs, reference_outputs, write_model
from vkep import InferenceSession
from vkep.shaders.compiler import Compiler

Open = Callable[..., InferenceSession]
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def _relative(got: Any, expected: Any) -> float:
    """The largest error, relative to the largest expected value."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape and np.isfinite(got).all()
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-30))


# ---- the light models of the onnx package, whose reference outputs lie beside them


LIGHT_BY_DEFAULT = [
    LIGHT / f"light_{name}.onnx" for name in ("bvlc_alexnet", "inception_v2", "shufflenet", "squeezenet")
]


@pytest.mark.parametrize(
    "path",
    nightly_but(LIGHT_BY_DEFAULT, sorted(LIGHT.glob("light_*.onnx"))),
    ids=lambda p: p.stem.removeprefix("light_"),
)
def test_light_models(open_session: Open, path: Path) -> None:
    expected = onnx.TensorProto()
    expected.ParseFromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    session = open_session(path)
    assert session.report().all_on_vulkan, str(session.report())
    [argument] = session.get_inputs()
    shape = tuple(d if isinstance(d, int) else 1 for d in argument.shape or ())
    # the input that onnx's own backend tests give these models (onnx.backend.test.runner)
    image = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)
    [got] = session.run(None, {argument.name: image})
    assert _relative(got, numpy_helper.to_array(expected)) < 1e-4
    for island in session.report().islands:
        assert island.live_peak_bytes <= island.activation_bytes <= 1.1 * island.live_peak_bytes


def test_there_are_nine_light_models() -> None:
    assert len(list(LIGHT.glob("light_*.onnx"))) == 9


# ---- the benchmark models

MODELS = ["mobilenetv2", "resnet18", "bert", "bert_enc", "gpt2step", "resnet50"]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """Writes a model of the catalog once for the whole test session."""
    paths: dict[tuple[str, Options], Path] = {}

    def write(name: str, **options: Any) -> Path:
        key = (name, Options(**options))
        if key not in paths:
            paths[key] = write_model(name, tmp_path_factory.mktemp("models"), key[1])
        return paths[key]

    yield write
    for path in paths.values():
        path.unlink(missing_ok=True)


def _stored(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(path.with_suffix(".npz")) as stored:
        inputs = {k[3:]: stored[k] for k in stored if k.startswith("in_")}
        return inputs, {k[4:]: stored[k] for k in stored if k.startswith("out_")}


@pytest.mark.parametrize("name", nightly_but(("mobilenetv2", "resnet18", "bert_enc", "gpt2step"), MODELS))
def test_benchmark_models(open_session: Open, written: Callable[..., Path], name: str) -> None:
    path = written(name)
    inputs, outputs = _stored(path)
    session = open_session(path)
    report = session.report()
    assert report.all_on_vulkan, str(report)
    for _ in range(2):
        for output, got in zip(session.get_outputs(), session.run(None, inputs), strict=True):
            assert _relative(got, outputs[output.name]) < 1e-4
    for island in report.islands:
        assert island.live_peak_bytes <= island.activation_bytes <= 1.1 * island.live_peak_bytes


@pytest.mark.parametrize("name", nightly_but(("gpt2step",), ("mobilenetv2", "bert_enc", "gpt2step")))
def test_float16_models(open_session: Open, written: Callable[..., Path], name: str) -> None:
    """Against float32 arithmetic on the same rounded weights. Activations are rounded to float16 (11 bits) at every
    store, so that errors grow with the depth: 2e-2 bounds the deepest model here.
    """
    path = written(name, float16=True)
    inputs, outputs = _stored(path)
    session = open_session(path)
    assert session.report().all_on_vulkan, str(session.report())
    for output, got in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        assert got.dtype == np.float16
        assert _relative(got, outputs[output.name]) < 2e-2


# ---- dynamic dimensions


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that a GLSL compiler was run for."""
    sources: list[str] = []
    real = Compiler.compile_source

    def count(self: Compiler, source: Any, defines: Any) -> bytes:
        sources.append(str(source.path))
        return real(self, source, defines)

    monkeypatch.setattr(Compiler, "compile_source", count)
    return sources


def _dynamic(name: str, batch: int, **sizes: int) -> tuple[onnx.ModelProto, dict[str, Any], dict[str, Any]]:
    options = Options(batch=batch, dynamic=True)
    model = build_model(name, options)
    inputs = reference_inputs(name, model, options)
    for axis, size in sizes.items():
        for value in model.graph.input:
            dims = [d.dim_param for d in value.type.tensor_type.shape.dim]
            if axis in dims:
                inputs[value.name] = np.ascontiguousarray(np.take(inputs[value.name], range(size), dims.index(axis)))
    return model, inputs, reference_outputs(name, model, inputs, options)


@pytest.mark.parametrize(
    ("name", "signatures"),
    [
        ("bert_enc", [(1, {"sequence": 16}), (2, {"sequence": 48}), (1, {"sequence": 32}), (3, {"sequence": 16})]),
        pytest.param(
            "gpt2step",
            [(1, {"past": 8}), (1, {"past": 48}), (1, {"past": 64}), (1, {"past": 16})],
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_new_signature_plans_but_compiles_nothing(
    open_session: Open, compiles: list[str], tmp_path: Path, name: str, signatures: list[tuple[int, dict[str, int]]]
) -> None:
    """Sizes compile nothing. What shapes decide about a kernel's structure (a batch of 1 merges axes, a lane takes
    a short row alone) is compiled when first met, and plans with sizes read arguments from memory: by the first four
    signatures here.
    """
    model = build_model(name, Options(dynamic=True))
    session = open_session(model, plan_cache_size=2, cache_dir=tmp_path)
    counts = []
    for batch, sizes in [*signatures, signatures[0]]:
        _, inputs, outputs = _dynamic(name, batch, **sizes)
        for output, got in zip(session.get_outputs(), session.run(None, inputs), strict=True):
            assert _relative(got, outputs[output.name]) < 1e-4
        counts.append(len(compiles))
        assert session.report().all_on_vulkan
    assert counts[0] > 0, "the empty cache was filled"
    assert counts[3:] == [counts[3]] * (len(counts) - 3), f"compiled again: {compiles[counts[3] :]}"
    assert session._parts.graph.plan_count <= 3


def test_a_dynamic_batch(open_session: Open) -> None:
    session = open_session(build_model("resnet18", Options(dynamic=True)))
    for batch in (1, 3):
        _, inputs, outputs = _dynamic("resnet18", batch)
        [got] = session.run(None, inputs)
        assert _relative(got, next(iter(outputs.values()))) < 1e-4
