"""`vkep.optimum`: Optimum's models generate ONNX Runtime's tokens, and their states stay on the device. Run where optimum-onnx is
installed."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.calls import noted
from tests.processes import python
from tools.waiting import comes_true
from vkep.models.diffusion import LATENT, WIDTH, write_diffusion
from vkep.models.diffusion import TOKENS as TOKENS_OF_A_PROMPT
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
        encoder = getattr(
            model, "encoder", None
        )  # which Whisper runs for the language too, and for each part of a sound
        runs = noted(monkeypatch, type(encoder), "_prepare_onnx_inputs", lambda *_: 1) if encoder is not None else [1]
        copied = crossing(monkeypatch, lambda: generated(model, inputs_of(kind), num_beams=3))
        return copied - len(runs) * sum(tensor.nbytes for tensor in inputs_of(kind).values())

    import vkep.optimum

    ours = opened(kind, provider="VulkanExecutionProvider")
    kept = bytes_of(ours)
    vkep.optimum.unregister()
    copied = bytes_of(opened(kind, provider="VulkanExecutionProvider"))
    most = 3 * TOKENS * (4 * 2 * 3 * ours.config.vocab_size)  # about the logits of 2 times 3 beams
    assert kept < copied / 2 and kept < most, (kept, copied)


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


# ---- images


@pytest.fixture
def images(registered: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a pipeline for images by its class."""
    import vkep.optimum

    pytest.importorskip("diffusers")
    write_diffusion(tmp_path / "diffusion")
    vkep.optimum.register()

    def open_(kind: str = "ORTStableDiffusionPipeline", **options: Any) -> Any:
        pipeline = getattr(optimum, kind).from_pretrained(tmp_path / "diffusion", **options)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    yield open_
    vkep.optimum.unregister()


def drawn(pipeline: Any, **settings: Any) -> Any:
    """An image float32 [1, height, width, 3] of four steps."""
    settings = {"num_inference_steps": 4, "guidance_scale": 5.0, "output_type": "np"} | settings
    return pipeline("a cat", generator=torch.Generator().manual_seed(3), **settings).images


def test_an_image_uploads_its_prompt_once(images: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import vkep.optimum

    expected, ours = drawn(images()), images(provider="VulkanExecutionProvider")
    vkep.optimum.unregister()
    plain = images(provider="VulkanExecutionProvider")
    vkep.optimum.register()
    for pipeline in (plain, ours):
        np.testing.assert_allclose(drawn(pipeline), expected, atol=1e-4)
    copied = [crossing(monkeypatch, lambda p=p: drawn(p)) for p in (plain, ours)]  # type: ignore[misc]
    assert copied[0] - copied[1] == 3 * (4 * 2 * TOKENS_OF_A_PROMPT * WIDTH)  # of four steps
    steps = [crossing(monkeypatch, lambda n=n: drawn(ours, num_inference_steps=n)) for n in (4, 5)]  # type: ignore[misc]
    assert (
        steps[1] - steps[0] == 2 * (4 * 2 * LATENT * 8 * 8) + 8
    )  # latents up and noise down, and the number of the step


def test_steps_are_seen_changed_and_ended(images: Callable[..., Any]) -> None:
    def changed(pipeline: Any, step: int, _: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        seen.append(step)
        if step == 1:
            pipeline._interrupt = True
        return {"latents": tensors["latents"] * 0.9}

    results = []
    for pipeline in (images(), images(provider="VulkanExecutionProvider")):
        seen: list[int] = []
        results.append(drawn(pipeline, callback_on_step_end=changed))
        assert seen == [0, 1]
        results.append(drawn(pipeline))  # the next image is a whole one
    np.testing.assert_allclose(results[2:], results[:2], atol=1e-4)
    assert np.abs(results[0] - results[1]).max() > 0.1


def test_a_pipeline_in_less_memory_than_its_parts_take(tmp_path: Path) -> None:
    """In a process of its own: other tests' sessions and values are in the same arena."""
    pytest.importorskip("diffusers")
    write_diffusion(tmp_path)
    for part, output, mib in (
        ("text_encoder", "last_hidden_state", 4),
        ("unet", "out_sample", 8),
        ("vae_decoder", "sample", 4),
    ):
        add_weights(tmp_path / part / "model.onnx", output, mib)
    done = python(f"from tests.ort.test_optimum import draw_in_less_memory\ndraw_in_less_memory({str(tmp_path)!r})")
    assert done.returncode == 0, done.stderr


def add_weights(path: Path, output: str, mib: int) -> None:
    """Add a number to an output of a model, which is computed with a weight of ``mib`` MiB."""
    proto = onnx.load(path)
    weight = np.random.default_rng(mib).standard_normal((1024, 256 * mib), np.float32)
    shape = np.array([1, 1024])
    proto.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in (("more", weight), ("more_shape", shape))
    )
    for node in proto.graph.node:
        node.output[:] = ["before_more" if name == output else name for name in node.output]
    mean, row, many, one = ("more_mean", "more_row", "more_many", "more_one")
    proto.graph.node.extend(
        [
            helper.make_node("ReduceMean", ["before_more"], [mean], keepdims=0),
            helper.make_node("Expand", [mean, "more_shape"], [row]),
            helper.make_node("MatMul", [row, "more"], [many]),
            helper.make_node("ReduceMean", [many], [one], keepdims=0),
            helper.make_node("Add", ["before_more", one], [output]),
        ]
    )
    onnx.save(proto, path)


def draw_in_less_memory(folder: str) -> None:
    import vkep.optimum

    def open_(**options: Any) -> Any:
        gc.collect()
        pipeline = optimum.ORTStableDiffusionPipeline.from_pretrained(folder, **options)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    vkep.optimum.register()
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    from vkep.device.constants import ConstantStore

    stats = vkep.ort.memory_stats
    sizes = [{"height": 64, "width": 64}, {"height": 96, "width": 64}, {"height": 128, "width": 64}]
    theirs = open_()
    expected = [drawn(theirs, **size) for size in sizes]
    pipeline = open_(provider="VulkanExecutionProvider")
    for size in sizes:
        drawn(pipeline, **size)
    whole = stats().total_allocated_bytes
    del pipeline

    outcomes, uploads, own = set(), [0], ConstantStore._upload

    def counted(*given: Any) -> None:
        uploads[0] += 1
        own(*given)

    ConstantStore._upload = counted  # type: ignore[assignment,method-assign]
    for most in (whole * share // 100 for share in (90, 45, 34)):
        pipeline = open_(provider="VulkanExecutionProvider", provider_options={"max_memory": most})
        seen: list[tuple[int, int]] = []
        refused: list[str] = []
        for _ in range(4):
            for size, image in zip(sizes, expected, strict=True):
                try:
                    np.testing.assert_allclose(drawn(pipeline, **size), image, atol=1e-4)
                except (Fail, RuntimeError) as error:  # the autoencoder alone takes more
                    refused.append(f"{size['height']}: {error}")
                assert stats().total_allocated_bytes <= most == stats().bytes_limit
            seen.append((stats().bytes_in_use, uploads[0]))
        assert all("max_memory" in text and not text.startswith("64") for text in refused)
        with pytest.raises(KeyboardInterrupt):  # between two parts: the autoencoder has not run
            drawn(pipeline, callback_on_step_end=lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        np.testing.assert_allclose(drawn(pipeline, **sizes[0]), expected[0], atol=1e-4)
        assert pipeline.vae_decoder.session.get_providers()[0] == "VulkanExecutionProvider"
        assert abs(seen[3][0] - seen[1][0]) < most // 20
        outcomes.add("refused" if refused else "weights in turn" if seen[3][1] > seen[1][1] else "kept")
        del pipeline
    gc.collect()
    assert outcomes == {"kept", "weights in turn", "refused"}
    assert comes_true(lambda: stats().bytes_limit == 0)  # another thread closes the last one's sessions


def test_images_in_tiles(images: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"image": torch.rand(1, 3, 160, 224), "strength": 0.9}
    results = []
    for options in ({}, {"provider": "VulkanExecutionProvider"}):
        pipeline = images("ORTStableDiffusionImg2ImgPipeline", **options)
        whole = drawn(pipeline, **settings)
        pipeline.vae.enable_tiling()
        with monkeypatch.context() as patch:
            parts = [type(part) for part in (pipeline.vae.encoder, pipeline.vae.decoder)]
            sizes = [noted(patch, part, "forward", lambda _, given, *a, **b: given.shape[2:]) for part in parts]
            results.append(drawn(pipeline, **settings))
        assert sizes == [[(64, 64)] * 3 * 5, [(8, 8)] * 3 * 5]
        assert np.abs(results[-1] - whole).max() > 1e-3
        pipeline.vae.disable_tiling()
        np.testing.assert_array_equal(drawn(pipeline, **settings), whole)
    np.testing.assert_allclose(results[1], results[0], atol=1e-4)
    assert results[0].shape == (1, 160, 224, 3)


@pytest.mark.parametrize("tiles", [False, True])
def test_batches_image_by_image(images: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tiles: bool) -> None:
    settings: dict[str, Any] = {"image": torch.rand(3, 3, 64, 96), "strength": 0.9, "prompt": ["a", "b", "c"]}
    results = []
    for options in ({}, {"provider": "VulkanExecutionProvider"}):
        pipeline = images("ORTStableDiffusionImg2ImgPipeline", **options)
        (pipeline.vae.enable_tiling if tiles else pipeline.vae.disable_tiling)()
        whole = batch(pipeline, **settings)
        pipeline.enable_vae_slicing()  # diffusers' own, which calls that of the autoencoder
        with monkeypatch.context() as patch:
            parts = [type(part) for part in (pipeline.vae.encoder, pipeline.vae.decoder)]
            counts = [noted(patch, part, "forward", lambda _, given, *a, **b: len(given)) for part in parts]
            results.append(batch(pipeline, **settings))
        assert counts == [[1] * (6 if tiles else 3)] * 2
        np.testing.assert_allclose(results[-1], whole, atol=1e-5)
        pipeline.disable_vae_slicing()
        np.testing.assert_array_equal(batch(pipeline, **settings), whole)
    np.testing.assert_allclose(results[1], results[0], atol=1e-4)
    assert results[0].shape == (3, 64, 96, 3)


def test_an_autoencoder_takes_its_arguments_as_before(images: Callable[..., Any]) -> None:
    vae = images().vae
    latents, pictures = torch.rand(2, 4, 8, 12), torch.rand(2, 3, 64, 96)

    def results() -> list[Any]:
        return [
            vae.decode(latents, None, False)[0],
            vae.decode(latent_sample=latents, return_dict=False)[0],
            vae.decode(latents.numpy()).sample.copy(),  # an array
            vae.encode(sample=pictures).latent_dist.parameters,
            vae.encode(pictures, None, True).latent_dist.parameters,
        ]

    whole = results()
    vae.enable_slicing()
    for found, expected in zip(results(), whole, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(TypeError):
        vae.decode()


def test_image_by_image_takes_the_memory_of_one(images: Callable[..., Any], registered: Any) -> None:
    """Batches of text to image, with several images for each prompt."""
    theirs, ours = images(), images(provider="VulkanExecutionProvider")
    expected = batch(theirs, prompt=["a", "b"], num_images_per_prompt=2)
    assert expected.shape == (4, 64, 64, 3)
    ours.enable_vae_slicing()
    np.testing.assert_allclose(batch(ours, prompt=["a", "b"], num_images_per_prompt=2), expected, atol=1e-4)
    one = registered.memory_stats().bytes_in_use
    ours.disable_vae_slicing()
    np.testing.assert_allclose(batch(ours, prompt=["a", "b"], num_images_per_prompt=2), expected, atol=1e-4)
    assert registered.memory_stats().bytes_in_use - one > 1 << 20  # buffers for four images


def batch(pipeline: Any, prompt: list[str], **settings: Any) -> Any:
    """Images float32 [images, height, width, 3] of four steps."""
    settings = {"num_inference_steps": 4, "guidance_scale": 5.0, "output_type": "np"} | settings
    return pipeline(prompt, generator=torch.Generator().manual_seed(3), **settings).images


def test_an_autoencoder_has_its_own_methods_again(images: Callable[..., Any]) -> None:
    import vkep.optimum

    vae = images().vae
    assert hasattr(vae, "enable_tiling")
    vkep.optimum.unregister()
    assert not hasattr(vae, "enable_tiling") and type(vae).decode.__module__ == "optimum.onnxruntime.modeling_diffusion"
    vkep.optimum.register()
    assert hasattr(images().vae, "enable_tiling")


def test_repeated_tensors_are_uploaded_in_the_models_type(registered: Any) -> None:
    from vkep.optimum import _Uploaded

    uploaded, tensor = _Uploaded(), torch.arange(6.0)
    first = uploaded.of(tensor, torch.int64)
    assert uploaded.of(tensor, torch.int64) is first and first.data_type() == "tensor(int64)"
    np.testing.assert_array_equal(first.numpy(), np.arange(6))
