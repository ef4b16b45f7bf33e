"""Small pipelines of diffusers with random weights, by form, as their users export them with Optimum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import optimum.onnxruntime
import tokenizers
import torch
import transformers

from vkep.models.diffusion import write_diffusion

#: tokens of a prompt
TOKENS = 16


def export(form: str, folder: Path, dtype: torch.dtype) -> None:
    """Write the pipeline of a form, exported in a type."""
    torch.manual_seed(0)
    write_diffusion(folder / "letters")  # whose tokenizer all forms have
    pipeline = FORMS[form](_clip_tokenizer(folder / "letters" / "tokenizer"))
    pipeline.save_pretrained(folder / "torch")
    kind = getattr(optimum.onnxruntime, f"ORT{type(pipeline).__name__}")
    made = kind.from_pretrained(str(folder / "torch"), export=True, torch_dtype=dtype)
    if made.vae_decoder.config.force_upcast:  # which Optimum's pipelines of XL do not have in float16
        for part in (made.vae_encoder, made.vae_decoder):
            part.register_to_config(force_upcast=False)
    made.save_pretrained(folder / "onnx")


def _clip_tokenizer(folder: Path) -> Any:
    return transformers.CLIPTokenizer.from_pretrained(folder, model_max_length=TOKENS)


def _t5_tokenizer() -> Any:
    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("▁", -1.0),
        *((c, -2.0) for c in "abcdefghijklmnopqrstuvwxyz"),
    ]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "extra_ids": 0}
    return transformers.T5TokenizerFast(tokenizer_object=made, model_max_length=TOKENS, **special)


def _clip(projects: bool = False, **more: Any) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": 512, "eos_token_id": 513, "pad_token_id": 513}
    config = transformers.CLIPTextConfig(
        vocab_size=514, max_position_embeddings=TOKENS, projection_dim=32, **sizes, **ends, **more
    )
    return (transformers.CLIPTextModelWithProjection if projects else transformers.CLIPTextModel)(config)


def _t5(size: int) -> Any:
    config = transformers.T5Config(vocab_size=32, d_model=size, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    return transformers.T5EncoderModel(config)


def _vae(**more: Any) -> Any:
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    sizes = {"block_out_channels": (32, 32), "norm_num_groups": 8, "latent_channels": 4}
    return diffusers.AutoencoderKL(**blocks, **{**sizes, **more})


def unet(**more: Any) -> Any:
    """A UNet of two levels, for text of 32 channels."""
    blocks = {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
    }
    sizes = {"sample_size": 16, "cross_attention_dim": 32, "attention_head_dim": 8, "norm_num_groups": 8}
    return diffusers.UNet2DConditionModel(**{**blocks, **sizes, **more})


def _stable(kind: str, tokenizer: Any, scheduler: Any, **of_unet: Any) -> Any:
    none = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    parts = {"vae": _vae(), "text_encoder": _clip(), "tokenizer": tokenizer, "unet": unet(**of_unet)}
    return getattr(diffusers, kind)(**parts, scheduler=scheduler, **none)


def _xl(tokenizer: Any) -> Any:
    net = unet(
        cross_attention_dim=64,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        attention_head_dim=(2, 4),
        projection_class_embeddings_input_dim=80,
    )
    texts = {"text_encoder": _clip(), "text_encoder_2": _clip(projects=True, hidden_act="gelu")}
    scheduler = diffusers.EulerDiscreteScheduler()
    return diffusers.StableDiffusionXLPipeline(
        vae=_vae(),
        **texts,
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        unet=net,
        scheduler=scheduler,
        add_watermarker=False,
    )


_UNQUANTIZED = {"shift_factor": 0.06, "use_quant_conv": False, "use_post_quant_conv": False}


def _sd3(tokenizer: Any) -> Any:
    net = diffusers.SD3Transformer2DModel(
        sample_size=16,
        in_channels=16,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        out_channels=16,
        pos_embed_max_size=32,
        qk_norm="rms_norm",
        dual_attention_layers=(0,),
    )
    texts = {"text_encoder": _clip(True), "text_encoder_2": _clip(True, hidden_act="gelu"), "text_encoder_3": _t5(64)}
    tokens = {"tokenizer": tokenizer, "tokenizer_2": tokenizer, "tokenizer_3": _t5_tokenizer()}
    vae, scheduler = _vae(latent_channels=16, **_UNQUANTIZED), diffusers.FlowMatchEulerDiscreteScheduler()
    return diffusers.StableDiffusion3Pipeline(vae=vae, **texts, **tokens, transformer=net, scheduler=scheduler)


def _flux(tokenizer: Any) -> Any:
    net = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
        guidance_embeds=True,
    )
    texts = {"text_encoder": _clip(), "text_encoder_2": _t5(32), "tokenizer": tokenizer, "tokenizer_2": _t5_tokenizer()}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    return diffusers.FluxPipeline(vae=_vae(**_UNQUANTIZED), **texts, transformer=net, scheduler=scheduler)


FORMS: Mapping[str, Callable[[Any], Any]] = {
    "StableDiffusion": lambda t: _stable("StableDiffusionPipeline", t, diffusers.DDIMScheduler()),
    "inpainting": lambda t: _stable("StableDiffusionInpaintPipeline", t, diffusers.PNDMScheduler(), in_channels=9),
    "LatentConsistencyModel": lambda t: _stable(
        "LatentConsistencyModelPipeline", t, diffusers.LCMScheduler(), time_cond_proj_dim=32
    ),
    "StableDiffusionXL": _xl,
    "StableDiffusion3": _sd3,
    "Flux": _flux,
}
