"""Plans for ten sizes on devices that are not there: on a GPU as few as on a CPU driver, but for one more for few rows
(docs/shapes.md#preferences)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import onnx
import pytest

import vkep
from tests.lowering.written_attention import exported_decoder
from tests.session.models import model
from tools.bench.sizes.texts import text_model
from tools.discrete import take_for_discrete
from tools.imagined_plans import ALL, USUAL, ImaginedPlans, followed
from tools.models.catalog import Options, build_model
from tools.size_conditions import declared
from vkep.graph import load_model
from vkep.models import diffusion
from vkep.models.builder import GraphBuilder
from vkep.models.language import ARCHITECTURES, language_model

Model = Callable[[], onnx.ModelProto]
Range = tuple[int, int, int]
_SIDE, _EVEN, _EIGHT = (8, 40, 1), (8, 40, 2), (32, 160, 8)
_UNET = {"batch": (2, 2, 1), "height": _EVEN, "width": _EVEN, "sequence": (9, 9, 1)}
_ENCODED = {"batch": (4, 4, 1), "sample_height": _EIGHT, "sample_width": _EIGHT}
_DECODED = {"latent_height": _SIDE, "latent_width": _SIDE}
_TEXT = {"batch": (2, 7, 1), "sequence": (3, 120, 1)}
#: models, the ranges of their sizes (the least, the most, what they are multiples of), and the most plans of ten sizes: one of
#: the first signature, one with sizes, and one more where few rows have other kernels, or a size is divisible by chance
MODELS: Mapping[str, tuple[Model, Mapping[str, Range], int]] = {
    "unet": (diffusion.unet, _UNET, 3),
    "encoder of images": (diffusion.vae_encoder, _ENCODED, 3),
    "decoder of images": (diffusion.vae_decoder, {"batch": (1, 1, 1), **_DECODED}, 3),
    "decoder of more elements than a line of workgroups": (
        diffusion.vae_decoder,
        {"batch": (30, 40, 1), **_DECODED},
        3,
    ),
    "bert": (lambda: build_model("bert_enc", Options(dynamic=True)), _TEXT, 3),
    "bert in float16": (lambda: build_model("bert_enc", Options(dynamic=True, float16=True)), _TEXT, 3),
    "prompts of a decoder as exporters write it": (lambda: exported_decoder("length"), {"length": (300, 4000, 1)}, 3),
    "the same in a window": (lambda: exported_decoder("length", 256), {"length": (300, 4000, 1)}, 3),
    "positions": (lambda: text_model("relative positions"), {"n": (9, 120, 1)}, 2),
}


def made(model: onnx.ModelProto, device: str, sizes: list[dict[str, int]]) -> list[int]:
    """The signatures, by number, for which plans are made."""
    loaded = load_model(model.SerializeToString())
    plans = ImaginedPlans.of(loaded, ALL[device])
    for dims in sizes:
        plans.run(declared(loaded, dims).inputs)
    assert not any(weight.packed for weight in loaded.graph.weights.values()), "plans elsewhere are not changed"
    return [plan.signature for plan in plans.made]


def drawn(ranges: Mapping[str, Range], seed: int) -> list[dict[str, int]]:
    rng = np.random.default_rng(seed)
    return [
        {
            name: step * int(rng.integers(least // step, most // step + 1))
            for name, (least, most, step) in ranges.items()
        }
        for _ in range(10)
    ]


@pytest.mark.parametrize("device", USUAL)
@pytest.mark.parametrize("name", MODELS)
def test_ten_sizes(name: str, device: str) -> None:
    build, ranges, most = MODELS[name]
    for seed in (1, 2):
        assert len(made(build(), device, drawn(ranges, seed))) <= most


@pytest.mark.parametrize("device", USUAL)
def test_a_hundred_signatures(device: str) -> None:
    """Of which the number of rows is a product: few rows are served by the plans of more."""
    rng = np.random.default_rng(3)
    sizes = {(int(rng.integers(1, 9)), int(rng.integers(1, 129))) for _ in range(100)}
    found = made(MODELS["bert"][0](), device, [{"batch": batch, "sequence": length} for batch, length in sizes])
    assert len(found) <= 4


def test_images_in_float16_on_cooperative_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions take channels last there."""
    monkeypatch.setattr(diffusion, "GraphBuilder", partial(GraphBuilder, float16=True))
    sizes = {"batch": (2, 2, 1), "sample_height": (16, 160, 4), "sample_width": (16, 160, 4)}
    for seed in range(4):
        assert len(made(diffusion.vae_encoder(), "NVIDIA H200", drawn(sizes, seed))) <= 3


#: new tokens and those before them: prompts, drafts, and single tokens
_STEPS = [
    (9, 64),
    (3, 73),
    (25, 76),
    (5, 101),
    (40, 106),
    (2, 146),
    (33, 148),
    (7, 181),
    (70, 188),
    (17, 258),
    (1, 275),
    (1, 276),
]


@pytest.mark.parametrize(("precision", "most"), [("fp32", 4), ("fp16", 4), ("int4", 4), ("int4-fp16", 5)])
@pytest.mark.parametrize("device", USUAL)
def test_steps_of_a_decoder(device: str, precision: str, most: int) -> None:
    """Of one token, of up to 8 and of more; weights of 4 bits in float16 have other kernels for up to 32. The first signature has
    its own."""
    sizes = [{"batch": 1, "length": new, "past": past, "total": new + past} for new, past in _STEPS]
    assert len(made(language_model(ARCHITECTURES["llama"], precision), device, sizes)) <= most


@pytest.mark.gpu
def test_those_of_the_device_that_is_there() -> None:
    """The graph of a session that runs has as many plans as the same graph on an imaginary device of its kind."""
    rng = np.random.default_rng(1)
    with (
        followed({"cpu": ALL["cpu"]}) as found,
        vkep.InferenceSession(text_model("relative positions"), save_plans=False) as session,
    ):
        for n in (9, 14, 9, 40, 115):
            session.run(None, {"x": rng.standard_normal((1, 4, n, 16), np.float32)})
        [(graph, plans)] = found.values()
        assert graph.plan_count == len(plans["cpu"].made) == 2
        assert [made.signature for made in plans["cpu"].made] == [0, 1]


_ATTENTION = (
    "g (float[b,16,2,16] q, float[b,16,t,16] k, float[b,16,t,16] v) => (float[b,16,2,16] y) { y = Attention(q, k, v) }"
)


#: sequences, and keys of each: with more than 4, one workgroup for each head fills the device (132 cores); 20 keys are one part
_WHOLE = ((2, 97), (3, 100), (9, 97), (33, 20), (2, 20))


def test_keys_in_one_part_have_no_plan_of_their_own() -> None:
    """A plan that divides keys among workgroups also serves sizes of which one reads all."""
    sizes = [{"b": batch, "t": keys} for batch, keys in _WHOLE]
    assert made(model(_ATTENTION, opset=23), "NVIDIA H200", sizes) == [0, 1]


@pytest.mark.gpu
def test_results_of_keys_in_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    take_for_discrete(monkeypatch.setattr)
    with vkep.InferenceSession(model(_ATTENTION, opset=23).SerializeToString(), save_plans=False) as session:
        for batch, keys in _WHOLE:
            q = rng.standard_normal((batch, 16, 2, 16), np.float32)
            k, v = rng.standard_normal((2, batch, 16, keys, 16), np.float32)
            powers = np.exp(q @ k.swapaxes(2, 3) / 4)
            wanted = powers / powers.sum(-1, keepdims=True) @ v
            np.testing.assert_allclose(session.run(None, {"q": q, "k": k, "v": v})[0], wanted, rtol=1e-4, atol=1e-5)
        assert session._parts.graph.plan_count == 2
