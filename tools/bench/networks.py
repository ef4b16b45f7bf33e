"""Networks at their published sizes with random weights, for `tools.bench.unseen`: built with transformers, none downloaded.

`MEASURED` are those whose times have been looked at while kernels were chosen; `HELD_BACK` take no part in that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers as tf
from torch import nn

Tensor = Any  # torch is skipped by the type checker


@dataclass(frozen=True)
class Network:
    """``build`` makes the module (float32, on the CPU); ``inputs`` its arguments by name, for a batch."""

    build: Callable[[], Any]
    inputs: Callable[[int], dict[str, Tensor]]


def _image(size: int) -> Callable[[int], dict[str, Tensor]]:
    return lambda batch: {"pixel_values": torch.randn(batch, 3, size, size)}


def _tokens(length: int, masked: bool = True) -> Callable[[int], dict[str, Tensor]]:
    def inputs(batch: int) -> dict[str, Tensor]:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[:, length * 3 // 4 :] = 0
        ids = torch.randint(10, 1000, (batch, length))
        return {"input_ids": ids, "attention_mask": mask} if masked else {"input_ids": ids}

    return inputs


def _speech(seconds: int) -> Callable[[int], dict[str, Tensor]]:
    return lambda batch: {"input_values": torch.randn(batch, 16000 * seconds)}


class _Block(nn.Module):  # type: ignore[misc]
    """A residual block of a VAE: group norm, SiLU and a convolution, twice."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, given, eps=1e-6), nn.GroupNorm(32, made, eps=1e-6)])
        self.convs = nn.ModuleList([nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)])
        self.short = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = conv(nn.functional.silu(norm(y)))
        return self.short(x) + y


class _Attention(nn.Module):  # type: ignore[misc]
    """Attention of all pixels, with one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.projections = nn.ModuleList([nn.Linear(channels, channels) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (project(pixels)[:, None] for project in self.projections[:3])
        y = self.projections[3](nn.functional.scaled_dot_product_attention(q, k, v)[:, 0])
        return x + y.transpose(1, 2).reshape(x.shape)


class VaeDecoder(nn.Module):  # type: ignore[misc]
    """The decoder of Stable Diffusion 1.5's autoencoder: latents [n, 4, h, w] to images [n, 3, 8 h, 8 w]."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(4, 512, 3, padding=1), _Block(512, 512), _Attention(512), _Block(512, 512)]
        given = 512
        for level, made in enumerate((512, 512, 256, 128)):
            for _ in range(3):
                parts.append(_Block(given, made))
                given = made
            if level < 3:
                parts += [nn.Upsample(scale_factor=2.0), nn.Conv2d(made, made, 3, padding=1)]
        parts += [nn.GroupNorm(32, 128, eps=1e-6), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1)]
        self.parts = nn.Sequential(*parts)

    def forward(self, latents: Tensor) -> Tensor:
        return self.parts(latents)


def _unet() -> Any:
    """Stable Diffusion 1.5's, of the package diffusers, which this module needs for it alone."""
    from diffusers import UNet2DConditionModel

    down, up = "CrossAttnDownBlock2D", "CrossAttnUpBlock2D"
    return UNet2DConditionModel(
        sample_size=64,
        block_out_channels=(320, 640, 1280, 1280),
        down_block_types=(down, down, down, "DownBlock2D"),
        up_block_types=("UpBlock2D", up, up, up),
        cross_attention_dim=768,
        attention_head_dim=8,
    )


def _latents(batch: int) -> dict[str, Tensor]:
    states = torch.randn(batch, 77, 768)
    return {"sample": torch.randn(batch, 4, 64, 64), "timestep": torch.tensor([10]), "encoder_hidden_states": states}


def _detr() -> Any:
    backbone = tf.ResNetConfig(out_features=["stage4"])
    options = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    config = tf.DetrConfig(backbone_config=backbone, num_queries=100, **options)
    config._attn_implementation = "eager"  # its backbone has no other
    return tf.DetrModel(config)


def _depth_anything() -> Any:
    backbone = tf.Dinov2Config(
        hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14, reshape_hidden_states=False,
        out_indices=[3, 6, 9, 12], apply_layernorm=True,
    )  # fmt: skip
    return tf.DepthAnythingForDepthEstimation(
        tf.DepthAnythingConfig(backbone_config=backbone, reassemble_hidden_size=384)
    )


MEASURED: Mapping[str, Network] = {
    "vit_b16": Network(lambda: tf.ViTModel(tf.ViTConfig()), _image(224)),
    "bert_base_128": Network(lambda: tf.BertModel(tf.BertConfig()), _tokens(128)),
    "whisper_base_enc": Network(
        lambda: tf.WhisperModel(
            tf.WhisperConfig(
                d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048,
                decoder_layers=1, decoder_attention_heads=8,
            )
        ).encoder,
        lambda batch: {"input_features": torch.randn(batch, 80, 3000)},
    ),
    "wav2vec2_base_5s": Network(lambda: tf.Wav2Vec2Model(tf.Wav2Vec2Config()), _speech(5)),
    "detr_r50_800": Network(_detr, _image(800)),
    "convnext_t": Network(lambda: tf.ConvNextModel(tf.ConvNextConfig()), _image(224)),
    "resnet50": Network(lambda: tf.ResNetModel(tf.ResNetConfig()), _image(224)),
    "dinov2_s_518": Network(
        lambda: tf.Dinov2Model(tf.Dinov2Config(hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14)),
        _image(518),
    ),
    "clip_text_77": Network(
        lambda: tf.CLIPTextModel(
            tf.CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=12)
        ),
        _tokens(77, masked=False),
    ),
    "sd_vae_dec": Network(VaeDecoder, lambda batch: {"latents": torch.randn(batch, 4, 64, 64)}),
    "sd_unet": Network(_unet, _latents),
    "swin_t": Network(lambda: tf.SwinModel(tf.SwinConfig()), _image(224)),
    "clip_vision_b32": Network(lambda: tf.CLIPVisionModel(tf.CLIPVisionConfig()), _image(224)),
    "bert_base_512": Network(lambda: tf.BertModel(tf.BertConfig()), _tokens(512)),
    "minilm_l6_256": Network(
        lambda: tf.BertModel(
            tf.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
        ),
        _tokens(256),
    ),
    "segformer_b0_512": Network(lambda: tf.SegformerForSemanticSegmentation(tf.SegformerConfig()), _image(512)),
    "effnet_b0": Network(
        lambda: tf.EfficientNetModel(
            tf.EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, image_size=224)
        ),
        _image(224),
    ),
    "regnety_032": Network(
        lambda: tf.RegNetModel(
            tf.RegNetConfig(depths=[2, 5, 13, 1], hidden_sizes=[72, 216, 576, 1512], groups_width=24, layer_type="y")
        ),
        _image(224),
    ),
    "depth_anything_s": Network(_depth_anything, _image(518)),
    "vit_l16": Network(
        lambda: tf.ViTModel(
            tf.ViTConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        ),
        _image(224),
    ),
}  # fmt: skip

HELD_BACK: Mapping[str, Network] = {
    "beit_b16": Network(lambda: tf.BeitModel(tf.BeitConfig()), _image(224)),
    "deit_s16": Network(
        lambda: tf.DeiTModel(tf.DeiTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)), _image(224)
    ),
    "mobilevit_s": Network(lambda: tf.MobileViTModel(tf.MobileViTConfig()), _image(256)),
    "poolformer_s12": Network(lambda: tf.PoolFormerModel(tf.PoolFormerConfig()), _image(224)),
    "hubert_base_5s": Network(lambda: tf.HubertModel(tf.HubertConfig()), _speech(5)),
    "albert_base_128": Network(
        lambda: tf.AlbertModel(tf.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)),
        _tokens(128),
    ),
    "xlmr_base_128": Network(lambda: tf.XLMRobertaModel(tf.XLMRobertaConfig(vocab_size=2000)), _tokens(128)),
    "glpn_480": Network(lambda: tf.GLPNForDepthEstimation(tf.GLPNConfig()), _image(480)),
}

NETWORKS: Mapping[str, Network] = {**MEASURED, **HELD_BACK}


class Positional(nn.Module):  # type: ignore[misc]
    """A network with its arguments by position, and its first result."""

    def __init__(self, network: Any, names: list[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *given: Tensor) -> Tensor:
        if isinstance(self.network, VaeDecoder):
            return self.network(*given)
        made = self.network(**dict(zip(self.names, given, strict=True)), return_dict=False)
        return made[0] if isinstance(made, tuple | list) else made
