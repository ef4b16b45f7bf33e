"""Networks of torch, transformers and diffusers in ONNX files with open sizes, by both exporters of torch."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tools.bench.sizes import images, music, speech, video
from tools.half_precision.networks import prepare

Tensor = Any
#: sizes at which networks are traced, and the names of the dimensions that are open
_HEIGHT, _WIDTH = 96, 128
_IMAGE = {2: "height", 3: "width"}
_TOKENS = {0: "batch", 1: "sequence"}
_PAST = {0: "batch", 2: "past"}


class Traced(NamedTuple):
    """What an exporter takes: the network, its inputs by name, and the names of their open dimensions."""

    network: nn.Module
    inputs: Mapping[str, Tensor]
    names: Mapping[str, Mapping[int, str]]
    outputs: tuple[str, ...] = ()


class Flat(nn.Module):  # type: ignore[misc]
    """A network that returns the floating-point tensors of its results."""

    def __init__(self, inner: nn.Module, call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        found = self.inner(*given) if self.call is None else self.call(self.inner, *given)
        if isinstance(found, torch.Tensor):
            return (found,)
        found = found.values() if isinstance(found, dict) else found
        return tuple(r for r in found if isinstance(r, torch.Tensor) and r.is_floating_point())


class Cached(nn.Module):  # type: ignore[misc]
    """A decoder in optimum's form: keys and values of the past are inputs, with those of the new tokens they are outputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        cache = DynamicCache([(past[k], past[k + 1]) for k in range(0, len(past), 2)])
        positions = mask.cumsum(-1)[:, -ids.shape[1] :] - 1
        found = self.inner(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        kept = [t for layer in cache.layers for t in (layer.keys, layer.values)]
        return (found.logits, *kept)


def export(name: str, path: Path) -> None:
    """Write a network of `TRACED`. Raises ImportError, and what its library or the exporter raises."""
    short, _, exporter = name.partition("@")
    torch.manual_seed(0)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        traced = TRACED[short]()
        traced.network.eval()
        given = tuple(traced.inputs.values())
        names = {key: dict(dims) for key, dims in traced.names.items()}
        outputs = list(traced.outputs) or None
        if exporter == "dynamo":
            shapes: tuple[Any, ...] = tuple(names.get(key, {}) for key in traced.inputs)
            if any(p.kind is p.VAR_POSITIONAL for p in _parameters(traced.network)):
                fixed = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in _parameters(traced.network))
                shapes = (*shapes[:fixed], shapes[fixed:])
            program = torch.onnx.export(
                traced.network,
                given,
                dynamo=True,
                verbose=False,
                input_names=list(traced.inputs),
                output_names=outputs,
                dynamic_shapes=shapes,
            )
            program.save(str(path))
        else:
            torch.onnx.export(
                traced.network,
                given,
                str(path),
                dynamo=False,
                opset_version=17,
                input_names=list(traced.inputs),
                output_names=outputs,
                dynamic_axes=names,
            )


def _parameters(network: nn.Module) -> list[Any]:
    return list(inspect.signature(network.forward).parameters.values())


def _own(kind: str, channels: int = 3, batch: bool = False) -> Traced:
    height = 32 if kind.startswith("Text") and kind != "TextDetector" else _HEIGHT
    x = torch.rand(1, channels, height, _WIDTH)
    dims = {3: "width"} if height == 32 else dict(_IMAGE)
    return Traced(getattr(images, kind)(), {"x": x}, {"x": {0: "batch", **dims} if batch else dims})


def _known(name: str) -> Traced:
    """A network of `tools.half_precision`, whose input's sizes are open."""
    network, x = prepare(name)
    dims: Mapping[int, str] = {0: "batch", 1: "samples"} if x.is_floating_point() else _TOKENS
    if x.dim() == 4:
        x, dims = torch.rand(1, 3, _HEIGHT, _WIDTH), _IMAGE
    return Traced(network, {"x": x[:2]}, {"x": dims})


def _image(config: str, kind: str, call: Callable[..., Any] | None = None, **arguments: Any) -> Traced:
    import transformers

    inner = getattr(transformers, kind)(getattr(transformers, config)(**arguments))
    return Traced(Flat(inner, call), {"x": torch.rand(1, 3, _HEIGHT, _WIDTH)}, {"x": _IMAGE})


def _decoder(config: str, kind: str, heads: int, size: int, layers: int, **arguments: Any) -> Traced:
    import transformers

    made = getattr(transformers, config)(**arguments)
    made._attn_implementation = "eager"
    inner = getattr(transformers, kind)(made)
    inputs = {"ids": torch.ones(2, 3, dtype=torch.int64), "mask": torch.ones(2, 8, dtype=torch.int64)}
    names: dict[str, Mapping[int, str]] = {"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "total"}}
    for k in range(layers):
        for part in ("key", "value"):
            inputs[f"past.{k}.{part}"] = torch.rand(2, heads, 5, size)
            names[f"past.{k}.{part}"] = _PAST
    outputs = ("logits", *[f"present.{k}.{part}" for k in range(layers) for part in ("key", "value")])
    return Traced(Cached(inner), inputs, names, outputs)


_TEXT = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT |= {"vocab_size": 256}
_GROUPED = _TEXT | {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}


def _unet() -> Traced:
    from diffusers import UNet2DConditionModel

    inner = UNet2DConditionModel(
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    )

    def call(model: nn.Module, sample: Tensor, step: Tensor, text: Tensor) -> Tensor:
        return model(sample, step, text, return_dict=False)[0]

    inputs = {"sample": torch.rand(2, 4, 24, 32), "step": torch.tensor([7]), "text": torch.rand(2, 9, 32)}
    names = {"sample": {0: "batch", **_IMAGE}, "text": {0: "batch", 1: "sequence"}}
    return Traced(Flat(inner, call), inputs, names)


def _vae(part: str) -> Traced:
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    inner = AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=8, **blocks)
    calls = {"decoder": lambda m, x: m.decode(x).sample, "encoder": lambda m, x: m.encode(x).latent_dist.mean}
    x = torch.rand(1, 4, 24, 32) if part == "decoder" else torch.rand(1, 3, _HEIGHT, _WIDTH)
    return Traced(Flat(inner, calls[part]), {"x": x}, {"x": _IMAGE})


def _recurrent(kind: str, hidden: int, **arguments: Any) -> Traced:
    layer = getattr(nn, kind)(32, hidden, batch_first=True, **arguments)

    def call(model: nn.Module, x: Tensor) -> Tensor:
        return model(x)[0]

    return Traced(Flat(layer, call), {"x": torch.rand(1, 20, 32)}, {"x": {1: "sequence"}})


def _audio(config: str, kind: str, call: Callable[..., Any] | None = None, **arguments: Any) -> Traced:
    import transformers

    inner = getattr(transformers, kind)(getattr(transformers, config)(**arguments))
    return Traced(Flat(inner, call), {"x": torch.randn(1, 1, 4000)}, {"x": {2: "samples"}})


def _moonshine() -> Traced:
    import transformers

    config = transformers.MoonshineConfig(
        **{k: v for k, v in _TEXT.items() if "num" not in k},
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
    )
    inner = transformers.MoonshineModel(config).encoder
    return Traced(Flat(inner), {"x": torch.randn(1, 8000)}, {"x": {1: "samples"}})


def _vits() -> Traced:
    import transformers

    config = transformers.VitsConfig(
        vocab_size=40,
        **{k: v for k, v in _TEXT.items() if k not in ("vocab_size", "intermediate_size")},
        ffn_dim=64,
        flow_size=32,
        spectrogram_bins=33,
        upsample_initial_channel=32,
        duration_predictor_filter_channels=32,
        prior_encoder_num_wavenet_layers=2,
        posterior_encoder_num_wavenet_layers=2,
    )
    inner = transformers.VitsModel(config)

    def call(model: nn.Module, ids: Tensor) -> Tensor:
        return model(input_ids=ids).waveform

    return Traced(Flat(inner, call), {"x": torch.randint(1, 39, (1, 12))}, {"x": {1: "sequence"}})


def _kokoro() -> Traced:
    inputs = {"x": torch.randint(1, 39, (1, 12)), "style": torch.randn(1, 256), "speed": torch.ones(1)}
    return Traced(Flat(speech.kokoro()), inputs, {"x": {1: "sequence"}})


def _piper() -> Traced:
    inputs = {"x": torch.randint(1, 39, (1, 12)), "count": torch.tensor([12]), "scales": torch.tensor([0.6, 1.0, 0.8])}
    return Traced(speech.piper(), inputs, {"x": {1: "sequence"}})


def _whisper() -> Traced:
    """The decoder, whose cross attention reads an encoder's results."""
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=256,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        pad_token_id=0,
        decoder_start_token_id=1,
    )
    config._attn_implementation = "eager"
    inner = transformers.WhisperForConditionalGeneration(config)

    class Step(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, ids: Tensor, states: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
            from transformers import DynamicCache, EncoderDecoderCache

            own = DynamicCache([(past[k], past[k + 1]) for k in range(0, len(past), 2)])
            cache = EncoderDecoderCache(own, DynamicCache())
            found = self.inner.model.decoder(
                input_ids=ids, encoder_hidden_states=states, past_key_values=cache, use_cache=True
            )
            kept = [t for layer in own.layers for t in (layer.keys, layer.values)]
            return (self.inner.proj_out(found[0]), *kept)

    inputs = {"ids": torch.ones(1, 1, dtype=torch.int64), "states": torch.rand(1, 50, 64)}
    names: dict[str, Mapping[int, str]] = {"ids": {1: "length"}, "states": {1: "frames"}}
    for k in range(2):
        for part in ("key", "value"):
            inputs[f"past.{k}.{part}"] = torch.rand(1, 4, 5, 16)
            names[f"past.{k}.{part}"] = {2: "past"}
    outputs = ("logits", *[f"present.{k}.{part}" for k in range(2) for part in ("key", "value")])
    return Traced(Step(), inputs, names, outputs)


def _rt_detr() -> Traced:
    import transformers

    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[16, 24, 32, 40],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.RTDetrConfig(
        backbone_config=backbone,
        encoder_in_channels=[24, 32, 40],
        encoder_hidden_dim=32,
        encoder_ffn_dim=64,
        encoder_attention_heads=4,
        feat_strides=[8, 16, 32],
        decoder_in_channels=[32, 32, 32],
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        num_queries=10,
        anchor_image_size=None,
    )
    inner = transformers.RTDetrForObjectDetection(config)
    for weight in inner.parameters():  # else all places have the same score, and any of them are the best
        if weight.dim() > 1:
            nn.init.kaiming_normal_(weight)

    def call(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        found = model(pixel_values=x)
        return found.logits, found.pred_boxes

    return Traced(Flat(inner, call), {"x": torch.rand(1, 3, _HEIGHT, _WIDTH)}, {"x": _IMAGE})


def _sam2(part: str) -> Traced:
    """Open are images, the points of objects, the objects, and the memories of earlier images (`video.FEATURES` squared each)."""
    edge, wide, pixels, thin = video.FEATURES, video.WIDE, video.FEATURES**2, video.MEMORY
    inputs = {
        "image": {"x": torch.rand(2, 3, video.EDGE, video.EDGE)},
        "masks": {
            "features": torch.rand(1, wide, edge, edge),
            "first": torch.rand(1, wide // 8, 4 * edge, 4 * edge),
            "second": torch.rand(1, wide // 4, 2 * edge, 2 * edge),
            "points": torch.rand(2, 3, 2) * video.EDGE,
            "labels": torch.ones(2, 3, dtype=torch.int32),
        },
        "attention": {
            "features": torch.rand(pixels, 1, wide),
            "places": torch.rand(pixels, 1, wide),
            "memory": torch.rand(3 * pixels, 1, thin),
            "memory_places": torch.rand(3 * pixels, 1, thin),
            "pointers": torch.rand(8, 1, thin),
        },
        "memory": {"features": torch.rand(2, wide, edge, edge), "object": torch.rand(2, 1, video.EDGE, video.EDGE)},
    }
    batch, prompt = {0: "batch"}, {0: "objects", 1: "count"}
    names = {
        "image": {"x": batch},
        "masks": {"points": prompt, "labels": prompt},
        "attention": {"memory": {0: "kept"}, "memory_places": {0: "kept"}, "pointers": {0: "pointers"}},
        "memory": {"features": batch, "object": batch},
    }
    return Traced(video.Part(part), inputs[part], names[part])


def _pairs(kind: str) -> Traced:
    """A model that compares images with texts: of CLIP, SigLIP, and BLIP, whose text reads the image by cross attention."""
    import transformers as tf

    text = {k: v for k, v in _TEXT.items() if k != "vocab_size"} | {"vocab_size": 64, "max_position_embeddings": 64}
    image = {**_SMALL, "hidden_size": 64, "intermediate_size": 128, "image_size": 64, "patch_size": 16}
    if kind == "blip":
        text |= {"encoder_hidden_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "sep_token_id": 2}
        config = tf.BlipConfig(text_config=text, vision_config=image, projection_dim=32, image_text_hidden_size=32)
        inner: nn.Module = tf.BlipForImageTextRetrieval(config)
    else:
        text |= {"eos_token_id": 63, "projection_dim": 32} if kind == "clip" else {"projection_size": 64}
        name = {"clip": "CLIP", "siglip": "Siglip"}[kind]
        inner = getattr(tf, f"{name}Model")(getattr(tf, f"{name}Config")(text_config=text, vision_config=image))

    def call(model: nn.Module, x: Tensor, ids: Tensor) -> Tensor:
        if kind == "blip":
            return model(input_ids=ids, pixel_values=x, attention_mask=torch.ones_like(ids)).itm_score
        return model(input_ids=ids, pixel_values=x).logits_per_image

    images, names = (2, "batch") if kind == "blip" else (3, "images")
    inputs = {"x": torch.rand(images, 3, 64, 64), "ids": torch.randint(3, 63, (2, 12))}
    texts = "batch" if kind == "blip" else "texts"
    return Traced(Flat(inner, call), inputs, {"x": {0: names}, "ids": {0: texts, 1: "sequence"}})


def _interpolated(model: nn.Module, x: Tensor) -> Tensor:
    return model(pixel_values=x, interpolate_pos_encoding=True).last_hidden_state


_PART = functools.partial
_SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
#: a network by its name
TRACED: Mapping[str, Callable[[], Traced]] = {
    **{
        name.lower(): _PART(_own, name)
        for name in ("Esrgan", "PixelShuffle", "TextDetector", "TextReader", "TextAttention", "UNet", "Vgg", "Style")
    },
    "yolo": _PART(_own, "Yolo"),
    "u2net": _PART(_own, "SaliencyNet"),
    **{kind: _PART(_pairs, kind) for kind in ("clip", "siglip", "blip")},
    "yolo_nms": _PART(_own, "YoloWithNms"),
    "yolo_end": _PART(_own, "YoloOfMost"),
    **{f"sam2_{part}": _PART(_sam2, part) for part in video.PARTS},
    "demucs": lambda: Traced(Flat(music.Separator()), {"x": torch.randn(1, 2, 4000)}, {"x": {2: "samples"}}),
    "inception": _PART(_own, "Inception", batch=True),
    "frames": _PART(_own, "Frames", channels=6),
    "sd_unet": _unet,
    "vae_decoder": _PART(_vae, "decoder"),
    "vae_encoder": _PART(_vae, "encoder"),
    **{
        name: _PART(_known, name)
        for name in ("resnet", "convnext", "segformer", "swin", "bert", "roberta", "distilbert", "albert", "electra")
    },
    **{name: _PART(_known, name) for name in ("mpnet", "t5_encoder", "bart_encoder", "gpt_neox", "wav2vec2", "hubert")},
    "mobilenet": _PART(_image, "MobileNetV2Config", "MobileNetV2Model", depth_multiplier=0.25),
    "regnet": _PART(
        _image, "RegNetConfig", "RegNetModel", embedding_size=8, hidden_sizes=[16, 24], depths=[1, 1], groups_width=8
    ),
    "swin2sr": _PART(
        _image,
        "Swin2SRConfig",
        "Swin2SRForImageSuperResolution",
        lambda m, x: m(pixel_values=x).reconstruction,
        embed_dim=24,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=4,
        upscale=2,
    ),
    "dinov2": _PART(
        _image, "Dinov2Config", "Dinov2Model", lambda m, x: m(pixel_values=x).last_hidden_state, **_SMALL, patch_size=8
    ),
    "vit": _PART(_image, "ViTConfig", "ViTModel", _interpolated, **_SMALL, image_size=64, patch_size=8),
    "rt_detr": _rt_detr,
    "lstm": _PART(_recurrent, "LSTM", 64),
    "lstm_large": _PART(_recurrent, "LSTM", 512),
    "gru_large": _PART(_recurrent, "GRU", 512, bidirectional=True),
    "gpt2_cache": _PART(
        _decoder, "GPT2Config", "GPT2LMHeadModel", 4, 16, 2, n_embd=64, n_layer=2, n_head=4, vocab_size=256
    ),
    "llama_cache": _PART(_decoder, "LlamaConfig", "LlamaForCausalLM", 2, 16, 2, **_GROUPED),
    "qwen3_cache": _PART(_decoder, "Qwen3Config", "Qwen3ForCausalLM", 2, 16, 2, **_GROUPED),
    "gemma3_cache": _PART(_decoder, "Gemma3TextConfig", "Gemma3ForCausalLM", 2, 16, 2, **_GROUPED, sliding_window=16),
    "phi_cache": _PART(_decoder, "PhiConfig", "PhiForCausalLM", 4, 16, 2, **_TEXT),
    "whisper_cache": _whisper,
    "moonshine": _moonshine,
    "encodec": _PART(
        _audio, "EncodecConfig", "EncodecModel", lambda m, x: m(x).audio_values, num_filters=4, hidden_size=16
    ),
    "dac": _PART(
        _audio,
        "DacConfig",
        "DacModel",
        lambda m, x: m(x).audio_values,
        encoder_hidden_size=8,
        decoder_hidden_size=32,
        downsampling_ratios=[2, 4],
        upsampling_ratios=[4, 2],
    ),
    "vits": _vits,
    "kokoro": _kokoro,
    "piper": _piper,
}
