"""`vkep.optimum`: Optimum's models generate ONNX Runtime's tokens, and their states stay on the device. Run where optimum-onnx is
installed."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.calls import noted
from vkep.models.language import write_language
from vkep.models.sources import write_sources

torch = pytest.importorskip("torch")
optimum = pytest.importorskip("optimum.onnxruntime")

pytestmark = pytest.mark.gpu

TOKENS = 8
#: by the form of the folder: optimum's class, and what writes the folder
KINDS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "gpt2": ("ORTModelForCausalLM", lambda folder: write_language(folder, "gpt2")),
    "t5": ("ORTModelForSeq2SeqLM", lambda folder: write_sources(folder, "t5")),
    "whisper": ("ORTModelForSpeechSeq2Seq", lambda folder: write_sources(folder, "whisper")),
}
WAYS: list[dict[str, Any]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 2},
    {"do_sample": True, "top_k": 20},
    {"use_cache": False},
]


@pytest.fixture
def opened(registered: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a kind of model."""
    import vkep.optimum

    vkep.optimum.register()

    def open_(kind: str, **options: Any) -> Any:
        name, write = KINDS[kind]
        folder = tmp_path / kind
        if not folder.exists():
            write(folder)
        return getattr(optimum, name).from_pretrained(folder, **options)

    yield open_
    vkep.optimum.unregister()


def inputs_of(kind: str) -> dict[str, Any]:
    torch.manual_seed(0)
    if kind == "whisper":
        return {"input_features": torch.randn(2, 80, 3000)}
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[0, :2] = 0  # prompts of two lengths
    return {"input_ids": torch.randint(3, 200, (2, 7)), "attention_mask": mask}


def generated(model: Any, inputs: dict[str, Any], **settings: Any) -> Any:
    torch.manual_seed(1)
    return model.generate(**inputs, max_new_tokens=TOKENS, min_new_tokens=TOKENS, pad_token_id=0, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_those_of_the_cpu(opened: Callable[..., Any], kind: str) -> None:
    theirs, ours = opened(kind), opened(kind, provider="VulkanExecutionProvider")
    inputs = inputs_of(kind)
    for settings in WAYS:
        assert torch.equal(generated(theirs, inputs, **settings), generated(ours, inputs, **settings)), settings


def crossing(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> int:
    """Bytes that a call copies between host and device."""
    from vkep.ort.memory.transfers import Transfers

    sizes = noted(monkeypatch, Transfers, "run", lambda _, key, hosts, n: sum(key[2 * k + 1] for k in range(n)))
    run()
    monkeypatch.undo()
    return sum(sizes)


@pytest.mark.parametrize("kind", KINDS)
def test_states_do_not_cross_the_bus(opened: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def bytes_of(model: Any) -> int:
        """Bytes between host and device, but for the inputs."""
        generated(model, inputs_of(kind), num_beams=3)
        copied = crossing(monkeypatch, lambda: generated(model, inputs_of(kind), num_beams=3))
        return copied - sum(tensor.nbytes for tensor in inputs_of(kind).values())

    import vkep.optimum

    kept = bytes_of(opened(kind, provider="VulkanExecutionProvider"))
    vkep.optimum.unregister()
    copied = bytes_of(opened(kind, provider="VulkanExecutionProvider"))
    assert kept < copied / 2 and kept < 3 * TOKENS * (4 * 2 * 3 * 320), (
        kept,
        copied,
    )  # about the logits of 2 times 3 beams


def test_a_state_is_a_tensor(registered: Any) -> None:
    from vkep.optimum import DeviceState

    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    expected = torch.from_numpy(array)

    def state() -> Any:
        return DeviceState(registered.to_device(array))

    one = state()
    assert (one.shape, one.dtype, one.device.type, one.ndim, len(one)) == ((2, 3, 4), torch.float32, "cpu", 3, 2)
    chosen = one.index_select(0, torch.tensor([1, 1, 0], dtype=torch.int32))
    assert isinstance(chosen, DeviceState) and one.index_select(0, torch.tensor([0, 1])) is one
    assert one._host is None and chosen._host is None  # nothing was copied
    assert torch.equal(chosen, expected[[1, 1, 0]])
    for made in (one * 2 / 2, copy.deepcopy(one), pickle.loads(pickle.dumps(one)), torch.cat([one])):
        assert torch.equal(made, expected)
    assert one.tolist() == array.tolist() and one.sum() == array.sum() and "24" not in repr(one.shape)
    np.testing.assert_array_equal(one.numpy(), array)
    assert one.on_device() is None  # the array may have been changed
    assert torch.equal(one.index_select(1, torch.tensor([2])), expected[:, 2:])

    changed = state()
    changed[0, 0, 0] = 7
    assert changed.on_device() is None and changed[0, 0, 0] == 7


def test_the_methods_of_optimum_come_back(opened: Callable[..., Any]) -> None:
    from optimum.onnxruntime.base import ORTSessionMixin

    import vkep.optimum

    vkep.optimum.register()  # the second call
    vkep.optimum.unregister()
    assert ORTSessionMixin._prepare_onnx_inputs.__module__ == "optimum.onnxruntime.base"
    model = opened("t5", provider="VulkanExecutionProvider")
    vkep.optimum.register()
    ours = opened("t5", provider="VulkanExecutionProvider")
    given = {k: v.numpy() for k, v in inputs_of("t5").items()}
    results = [one.encoder(**given).last_hidden_state for one in (model, ours)]
    assert [type(result) for result in results] == [np.ndarray] * 2  # as the inputs are
    np.testing.assert_array_equal(*results)


def test_a_tensor_is_uploaded_again_only_if_it_changed(registered: Any) -> None:
    from vkep.optimum import _Uploaded

    uploaded, tensor = _Uploaded(), torch.ones(2, 3)
    first = uploaded.of(tensor)
    assert uploaded.of(tensor) is first
    tensor.add_(1)
    np.testing.assert_array_equal(uploaded.of(tensor).numpy(), np.full((2, 3), 2, np.float32))
    assert uploaded.of(torch.ones(2, 3)) is not first


def write_diffusion(folder: Path) -> int:
    """A small Stable Diffusion, exported by Optimum. Returns the bytes of a prompt's embedding with guidance."""
    diffusers = pytest.importorskip("diffusers")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    letters = {f"{c}{end}": 2 + k for k, (c, end) in enumerate((c, e) for c in "act" for e in ("", "</w>"))}
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({"<|startoftext|>": 0, "<|endoftext|>": 1, **letters}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    text = transformers.CLIPTextConfig(
        vocab_size=20,
        hidden_size=32,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(32, 32),
            latent_channels=4,
            norm_num_groups=8,
        ),
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=transformers.CLIPTokenizer(
            str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16
        ),
        unet=diffusers.UNet2DConditionModel(
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            sample_size=16,
            block_out_channels=(32, 64),
            layers_per_block=1,
            cross_attention_dim=32,
            attention_head_dim=8,
            norm_num_groups=8,
        ),
        scheduler=diffusers.DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder / "torch")
    made = optimum.ORTStableDiffusionPipeline.from_pretrained(str(folder / "torch"), export=True)
    made.save_pretrained(folder / "onnx")
    return 4 * 2 * 16 * 32


@pytest.mark.slow
def test_an_image_uploads_its_prompt_once(registered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vkep.optimum

    embedding = write_diffusion(tmp_path / "sd")

    def opened(**options: Any) -> Callable[[], Any]:
        pipeline = optimum.ORTStableDiffusionPipeline.from_pretrained(str(tmp_path / "sd" / "onnx"), **options)
        settings = {"num_inference_steps": 4, "guidance_scale": 5.0, "output_type": "np"}
        return lambda: pipeline("a cat", generator=torch.Generator().manual_seed(3), **settings).images

    expected, plain = opened()(), opened(provider="VulkanExecutionProvider")
    vkep.optimum.register()
    ours = opened(provider="VulkanExecutionProvider")
    for run in (plain, ours):
        np.testing.assert_allclose(run(), expected, atol=1e-4)
    assert crossing(monkeypatch, plain) - crossing(monkeypatch, ours) == 3 * embedding  # of four steps
    vkep.optimum.unregister()
