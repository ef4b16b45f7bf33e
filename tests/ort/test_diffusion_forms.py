"""Image pipelines that Optimum exports: whole on the device, images as the CPU provider's, two plans for all sizes, and only
latents cross the bus at a step. Run where diffusers and optimum-onnx are installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ort.conftest import OpenSession, reference
from tests.ort.test_optimum import crossing

torch = pytest.importorskip("torch")
optimum = pytest.importorskip("optimum.onnxruntime")
diffusers = pytest.importorskip("diffusers")

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.nightly]

#: classes of Optimum by the form that they open
CLASSES = {
    "StableDiffusion": ["StableDiffusion", "StableDiffusionImg2Img", "StableDiffusionInpaint"],
    "inpainting": ["StableDiffusionInpaint"],
    "LatentConsistencyModel": ["LatentConsistencyModel", "LatentConsistencyModelImg2Img"],
    "StableDiffusionXL": ["StableDiffusionXL", "StableDiffusionXLImg2Img", "StableDiffusionXLInpaint"],
    "StableDiffusion3": ["StableDiffusion3", "StableDiffusion3Img2Img", "StableDiffusion3Inpaint"],
    "Flux": ["Flux"],
}
SIZES = [(32, 32), (48, 32), (32, 48), (64, 64), (40, 64), (64, 32), (16, 16), (64, 48), (64, 24), (56, 64)]
STEPS = 3


def drawn(pipeline: Any, size: tuple[int, int], steps: int = STEPS) -> Any:
    """An image float [1, height, width, 3]."""
    height, width = size
    kind, given = type(pipeline).__name__, dict[str, Any](num_inference_steps=steps, output_type="np")
    before = torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(1))
    if "Latent" not in kind:
        given["guidance_scale"] = 5.0
    if "Img2Img" in kind or "Inpaint" in kind:
        given["image"] = before
        given["strength"] = 0.8  # XL's own leaves none of three steps
    if "Inpaint" in kind:
        mask = torch.zeros(1, 1, height, width)
        mask[..., height // 4 : height // 2, width // 4 :] = 1
        given |= {"mask_image": mask, "strength": 1.0}
    if "Img2Img" not in kind:
        given |= {"height": height, "width": width}
    return pipeline("a cat", generator=torch.Generator().manual_seed(3), **given).images


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a form in a type, exported once."""
    from tests.ort.diffusion_forms import export

    made: dict[Any, Path] = {}

    def folder(form: str, dtype: Any) -> Path:
        if (form, dtype) not in made:
            made[form, dtype] = tmp_path_factory.mktemp("form")
            export(form, made[form, dtype], dtype)
        return made[form, dtype] / "onnx"

    return folder


def opened(kind: str, folder: Path, **options: Any) -> Any:
    pipeline = getattr(optimum, f"ORT{kind}Pipeline").from_pretrained(folder, **options)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("form", "kind"), [(form, kind) for form, kinds in CLASSES.items() for kind in kinds])
def test_images(
    form: str, kind: str, dtype: str, folders: Any, registered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    import vkep.optimum
    from vkep.ort.boundary import live

    vkep.optimum.register()
    try:
        folder, others = folders(form, getattr(torch, dtype)), set(live("OrtNodeComputeInfo"))
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        exact = opened(kind, folders(form, torch.float32))
        theirs, ours = opened(kind, folder), opened(kind, folder, provider=registered.EP_NAME, session_options=options)
        for part in ours.parts:
            assert {p.ep_name for p in part.session.get_provider_graph_assignment_info()} == {registered.EP_NAME}
        for size in SIZES:
            expected = drawn(theirs, size)
            assert expected.std() > 0.05
            # what float16 rounds, ONNX Runtime rounds at fewer places
            bound = 1e-4 if dtype == "float32" else 4 * np.abs(expected - drawn(exact, size)).max()
            np.testing.assert_allclose(drawn(ours, size), expected, atol=bound)
        nodes = [node for node in live("OrtNodeComputeInfo") if node not in others]
        assert 0 < max(node.planned.plan_count for node in nodes) <= 2
        # of an image to image only a part of the steps is done
        few, many = (crossing(monkeypatch, lambda n=n: drawn(ours, (32, 32), n)) for n in (5, 10))  # type: ignore[misc]
        done = 4 if "Img2Img" in kind and "Latent" not in kind else 5
        assert many - few <= done * latents(ours), (few, many)
    finally:
        vkep.optimum.unregister()


def latents(pipeline: Any) -> int:
    """Bytes that a step may copy: what the network reads and computes for an image of 32 by 32 pixels, and a number."""
    net = pipeline.unet or pipeline.transformer
    size, batch = np.dtype(np.float16 if net.dtype == torch.float16 else np.float32).itemsize, 2
    channels = (net.config.in_channels, net.config.out_channels or net.config.in_channels)
    if "Flux" in type(pipeline).__name__:  # packs 2 by 2 latents
        return 2 * 64 * channels[0] * size + 8
    if "Latent" in type(pipeline).__name__:  # without guidance
        batch = 1
    return batch * 16 * 16 * sum(channels) * size + 8 * batch


# ---- plain exports of diffusers' networks


def exported(net: Any, path: Path, inputs: Mapping[str, Any], outputs: list[str], **more: Any) -> None:
    """Write a module as torch's exporter does; batches, heights and widths are open."""
    axes = {
        name: {k: f"{name}_{k}" for k in ((0, 2, 3) if value.ndim == 4 else (0, 1))}
        for name, value in inputs.items()
        if value.ndim > 2
    }
    names = {"input_names": list(inputs), "output_names": outputs}
    values = tuple(inputs.values())
    torch.onnx.export(net.eval(), values, path, **names, dynamic_axes=axes, opset_version=18, dynamo=False, **more)


class Called(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A module whose forward is a function of it and of tensors."""

    def __init__(self, net: Any, call: Any) -> None:
        super().__init__()
        self.net, self.call = net, call

    def forward(self, *given: Any) -> Any:
        return self.call(self.net, *given)


def feeds(height: int = 16, width: int = 16) -> dict[str, Any]:
    torch.manual_seed(height + width)
    return {
        "sample": torch.randn(2, 4, height, width),
        "timestep": torch.tensor(7),
        "encoder_hidden_states": torch.randn(2, 16, 32),
    }


def arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.numpy() for name, value in tensors.items()}


def test_a_control_net(session: OpenSession, tmp_path: Path, registered: Any) -> None:
    from tests.ort.diffusion_forms import unet
    from vkep.ort.boundary import live

    torch.manual_seed(0)
    net, others = unet(), set(live("OrtNodeComputeInfo"))
    control = diffusers.ControlNetModel.from_unet(net, conditioning_embedding_out_channels=(16, 32))
    for weight in control.parameters():  # a new one adds nothing
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.1)

    def scaled(net: Any, x: Any, step: Any, text: Any, image: Any, scale: Any) -> Any:
        down, middle = net(x, step, text, image, return_dict=False)
        return tuple(residual * scale for residual in (*down, middle))

    def helped(net: Any, x: Any, step: Any, text: Any, *residuals: Any) -> Any:
        both = {"down_block_additional_residuals": residuals[:-1], "mid_block_additional_residual": residuals[-1]}
        return net(x, step, text, **both, return_dict=False)[0]

    def drawing(height: int, width: int) -> dict[str, Any]:
        seen = {"controlnet_cond": torch.rand(2, 3, 2 * height, 2 * width), "conditioning_scale": torch.tensor(0.8)}
        return feeds(height, width) | seen

    module = Called(control, scaled)
    residuals = [value.detach() for value in module(*drawing(16, 16).values())]
    names = [f"residual_{k}" for k in range(len(residuals))]
    exported(module, tmp_path / "control.onnx", drawing(16, 16), names)
    given = feeds() | dict(zip(names, residuals, strict=True))
    exported(Called(net, helped), tmp_path / "unet.onnx", given, ["out_sample"])
    models = [(tmp_path / name).read_bytes() for name in ("control.onnx", "unet.onnx")]
    sessions = [session(model) for model in models]
    for height, width in [(8 * a, 4 * b) for a, b in ((2, 4), (3, 4), (2, 6), (4, 8), (3, 5), (1, 2), (5, 10))]:
        seen = arrays(drawing(height, width))
        expected = reference(models[0], seen)
        binding = registered.bind(sessions[0], seen)
        sessions[0].run_with_iobinding(binding)
        found = binding.get_outputs()
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-4)
        rest = {name: seen[name] for name in ("sample", "timestep", "encoder_hidden_states")}
        binding = registered.bind(sessions[1], rest | dict(zip(names, found, strict=True)), {"out_sample": "cpu"})
        sessions[1].run_with_iobinding(binding)  # residuals stay on the device
        (theirs,) = reference(models[1], rest | dict(zip(names, expected, strict=True)))
        np.testing.assert_allclose(binding.get_outputs()[0].numpy(), theirs, atol=1e-4)
    nodes = [node for node in live("OrtNodeComputeInfo") if node not in others]
    assert max(node.planned.plan_count for node in nodes) == 2


def test_low_rank_weights(session: OpenSession, tmp_path: Path) -> None:
    """Merged, as inputs, and as inputs with defaults of rank 0."""
    import onnxruntime

    from tests.ort.diffusion_forms import unet

    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    net, path = unet(), tmp_path / "unet.onnx"
    net.add_adapter(peft.LoraConfig(r=4, lora_alpha=4, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
    for name, weight in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)
    module = Called(net.eval().requires_grad_(False), lambda net, *given: net(*given, return_dict=False)[0])
    (given, other), expected = (feeds(), feeds(24, 16)), module(*feeds().values()).numpy()
    exported(module, path, given, ["out_sample"], do_constant_folding=False)
    model = onnx.load(path)
    weights = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer if "lora" in w.name}
    assert len(weights) > 20
    kept = [w for w in model.graph.initializer if w.name not in weights]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    defaults = []
    for name, value in weights.items():
        axis = 0 if "lora_A" in name else 1
        shape = [*value.shape]
        empty = np.delete(value, slice(None), axis)
        model.graph.input.append(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [*shape[:axis], "rank", *shape[axis + 1 :]])
        )
        defaults.append(numpy_helper.from_array(empty, name))
    required = model.SerializeToString()
    model.graph.initializer.extend(defaults)
    optional = model.SerializeToString()

    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({n: onnxruntime.OrtValue.ortvalue_from_numpy(w) for n, w in weights.items()})
    adapter.export_adapter(str(tmp_path / "a.onnx_adapter"))
    lora, active = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    lora.Load(str(tmp_path / "a.onnx_adapter"))
    active.add_active_adapter(lora)

    def close(found: Any, expected: Any) -> None:
        np.testing.assert_allclose(found, expected, atol=1e-4)

    for form in (required, optional):
        ours = session(form)
        close(ours.run(None, arrays(given) | weights)[0], expected)
        close(ours.run(None, arrays(other) | weights)[0], reference(form, arrays(other) | weights)[0])
    close(
        ours.run(None, arrays(given), active)[0], expected
    )  # not of the other, whose inputs ONNX Runtime's Python class asks for
    (without,) = ours.run(None, arrays(given))
    close(without, reference(optional, arrays(given))[0])
    assert np.abs(without - expected).max() > 0.05
    net.fuse_lora()
    exported(module, path, given, ["out_sample"])
    close(session(path.read_bytes()).run(None, arrays(given))[0], expected)
