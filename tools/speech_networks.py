"""Small networks of transformers with random weights that recognize speech: Whisper, whose times are about as probable as its
texts, and Moonshine."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from vkep.models.language import BEGIN, END
from vkep.models.sources import SPEECH, WHISPER, speech_generation

SUPPRESSED = [3, 7, 200, SPEECH["<|startofprev|>"]]


def whisper() -> Any:
    """Of features [batch, 80, frames]."""
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=WHISPER.vocabulary,
        num_mel_bins=80,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=1500,
        max_target_positions=64,
        decoder_start_token_id=BEGIN,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        init_std=0.4,
    )
    made = transformers.WhisperForConditionalGeneration(config).eval()
    given = {**speech_generation(), "suppress_tokens": SUPPRESSED, "begin_suppress_tokens": [32, END]}
    made.generation_config = transformers.GenerationConfig(**given, max_length=64)
    return made


def moonshine() -> Any:
    """Of samples [batch, samples]."""
    torch.manual_seed(1)
    config = transformers.MoonshineConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        max_position_embeddings=64,
        bos_token_id=BEGIN,
        eos_token_id=END,
        decoder_start_token_id=BEGIN,
        pad_token_id=256,
    )
    made = transformers.MoonshineForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.2)
    return made
