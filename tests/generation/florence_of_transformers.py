"""A small Florence-2 of transformers with random weights, exported by torch into the files that transformers.js reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from vkep.models.language import BEGIN, END, write_tokenizer

Tensor = Any
WIDE, HEADS, LAYERS, EDGE, VOCABULARY, MARK = 32, 2, 2, 64, 260, 259
_PARTS = [(kind, part) for kind in ("decoder", "encoder") for part in ("key", "value")]


def _model() -> Any:
    text = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=WIDE,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=128,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=BEGIN,
        forced_eos_token_id=None,
        forced_bos_token_id=None,
        init_std=0.2,
    )
    vision = transformers.models.florence2.Florence2VisionConfig(
        depths=(1, 1, 1, 1),
        embed_dim=(8, 16, 16, 16),
        num_heads=(1, 2, 2, 2),
        num_groups=(1, 2, 2, 2),
        window_size=4,
        projection_dim=WIDE,
        max_temporal_embeddings=4,
        max_position_embeddings=8,
        initializer_range=0.6,
    )
    config = transformers.Florence2Config(
        text_config=text.to_dict(), vision_config=vision.to_dict(), image_token_id=MARK, attn_implementation="eager"
    )
    torch.manual_seed(1)
    model = transformers.Florence2ForConditionalGeneration(config).eval()
    model.generation_config.decoder_start_token_id = BEGIN
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = END
    return model


class _Decoder(nn.Module):  # type: ignore[misc]
    """The decoder's step: the first one has no past, and computes the keys and values of the source too."""

    def __init__(self, model: Any, first: bool) -> None:
        super().__init__()
        self.decoder, self.head, self.first = model.model.language_model.decoder, model.lm_head, first

    def forward(self, mask: Tensor, embeds: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        own, cross = transformers.DynamicCache(), transformers.DynamicCache()
        states = more[0] if self.first else torch.zeros(1, 1, WIDE)
        if not self.first:
            own = transformers.DynamicCache([(more[4 * k], more[4 * k + 1]) for k in range(LAYERS)])
            cross = transformers.DynamicCache([(more[4 * k + 2], more[4 * k + 3]) for k in range(LAYERS)])
        made = self.decoder(
            inputs_embeds=embeds,
            encoder_hidden_states=states,
            encoder_attention_mask=mask,
            past_key_values=transformers.EncoderDecoderCache(own, cross),
            use_cache=True,
        )
        results = [self.head(made.last_hidden_state)]
        for k in range(LAYERS):
            results += [own.layers[k].keys, own.layers[k].values]
            results += [cross.layers[k].keys, cross.layers[k].values] if self.first else []
        return tuple(results)


class _Call(nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any, call: Any) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *given: Tensor) -> Tensor:
        return self.call(self.model, *given)


def exported(folder: Path) -> tuple[Any, Any]:
    """The model and its processor of images, whose files are written."""
    model = _model()
    processor = transformers.CLIPImageProcessor(
        size={"height": EDGE, "width": EDGE}, do_center_crop=False, resample=3, do_convert_rgb=True
    )
    processor.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
    model.generation_config.save_pretrained(folder)
    write_tokenizer(folder)
    (folder / "onnx").mkdir()
    names = [f"{k}.{kind}.{part}" for k in range(LAYERS) for kind, part in _PARTS]
    pasts = {f"past_key_values.{name}": torch.rand(1, HEADS, 5, WIDE // HEADS) for name in names}
    mask, embeds, states = torch.ones(1, 5, dtype=torch.int64), torch.rand(1, 3, WIDE), torch.rand(1, 5, WIDE)
    cases: dict[str, tuple[nn.Module, dict[str, Tensor], list[str]]] = {
        "vision_encoder": (
            _Call(model, lambda m, x: m.get_image_features(x)),
            {"pixel_values": torch.rand(1, 3, EDGE, EDGE)},
            ["image_features"],
        ),
        "embed_tokens": (
            _Call(model, lambda m, x: m.get_input_embeddings()(x)),
            {"input_ids": torch.ones(1, 5, dtype=torch.int64)},
            ["inputs_embeds"],
        ),
        "encoder_model": (
            _Call(
                model,
                lambda m, mask, x: m.model.language_model.encoder(inputs_embeds=x, attention_mask=mask)[0],
            ),
            {"attention_mask": mask, "inputs_embeds": states},
            ["last_hidden_state"],
        ),
        "decoder_model": (
            _Decoder(model, first=True),
            {"encoder_attention_mask": mask, "inputs_embeds": embeds, "encoder_hidden_states": states},
            ["logits", *[f"present.{name}" for name in names]],
        ),
        "decoder_with_past_model": (
            _Decoder(model, first=False),
            {"encoder_attention_mask": mask, "inputs_embeds": embeds[:, :1], **pasts},
            ["logits", *[f"present.{name}" for name in names if ".decoder." in name]],
        ),
    }
    for name, (module, inputs, outputs) in cases.items():
        opened: dict[str, dict[int, str]] = {
            key: {2: "past"} if key.startswith("past") else {} if key == "pixel_values" else {1: f"{key}.length"}
            for key in inputs
        }
        with torch.no_grad():
            torch.onnx.export(
                module.eval(),
                tuple(inputs.values()),
                str(folder / f"onnx/{name}.onnx"),
                dynamo=False,
                opset_version=17,
                input_names=list(inputs),
                output_names=outputs,
                dynamic_axes=opened,
            )
    return model, processor
