"""Separation of music, as Demucs does it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

Tensor = Any
#: samples of a window, and between two of them
WINDOW, HOP = 128, 32


class Separator(nn.Module):  # type: ignore[misc]
    """Demucs' form: a U-Net over the spectrogram, whose complex numbers are channels, and one over the samples, LSTMs in their
    middle, and the inverse transform. Input: [batch, 2, samples], output: [batch, sources, 2, samples]."""

    def __init__(self, sources: int = 2, wide: int = 8) -> None:
        super().__init__()
        self.sources = sources
        window = torch.hann_window(WINDOW)
        turns = 2 * torch.pi * torch.outer(torch.arange(WINDOW // 2 + 1), torch.arange(WINDOW)) / WINDOW
        both = torch.full((WINDOW // 2 + 1, 1), 2.0)
        both[[0, -1]] = 1.0  # the other frequencies stand for two each
        waves = torch.cat([both * turns.cos(), -both * turns.sin()]) * window / WINDOW**0.5
        self.window, self.waves = nn.Buffer(window), nn.Buffer(waves[:, None])
        self.down = nn.ModuleList(
            [nn.Conv2d(4, wide, (8, 1), (4, 1), (2, 0)), nn.Conv2d(wide, 2 * wide, (8, 1), (4, 1), (2, 0))]
        )
        self.up = nn.ModuleList(
            [
                nn.ConvTranspose2d(2 * wide, wide, (8, 1), (4, 1), (2, 0)),
                nn.ConvTranspose2d(wide, 4 * sources, (8, 1), (4, 1), (2, 0)),
            ]
        )
        self.glu = nn.Conv2d(2 * wide, 4 * wide, 1)
        self.lstm = nn.LSTM(2 * wide * 4, 16, batch_first=True, bidirectional=True)
        self.after = nn.Linear(32, 2 * wide * 4)
        self.time_down, self.time_up = nn.Conv1d(2, wide, 8, 4, 2), nn.ConvTranspose1d(wide, 2 * sources, 8, 4, 2)
        self.norm = nn.GroupNorm(1, 2 * wide)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, length = x.shape
        mean, std = x.mean((1, 2), keepdim=True), x.std((1, 2), keepdim=True)
        x = (x - mean) / (1e-5 + std)
        flat = x.reshape(batch * channels, length)
        spectrum = torch.stft(flat, WINDOW, HOP, WINDOW, self.window, return_complex=False, normalized=True)
        frames = spectrum.shape[2]
        y = spectrum[:, :-1].permute(0, 3, 1, 2).reshape(batch, 2 * channels, WINDOW // 2, frames)
        first = f.gelu(self.down[0](y))
        y = self.norm(self.down[1](first))
        y = f.glu(self.glu(y), 1)
        rows = y.permute(0, 3, 1, 2).flatten(2)
        rows = rows + self.after(self.lstm(rows)[0])
        y = rows.unflatten(2, (y.shape[1], y.shape[2])).permute(0, 2, 3, 1)
        y = f.gelu(self.up[0](y)) + first
        y = self.up[1](y).reshape(batch * self.sources * channels, 2, WINDOW // 2, frames)
        made = self.sound(f.pad(y, (0, 0, 0, 1)).flatten(1, 2), length)
        beside = self.time_up(f.gelu(self.time_down(x)))
        beside = f.pad(beside, (0, length - beside.shape[2]))
        both = made.reshape(batch, self.sources, channels, length) + beside.reshape(
            batch, self.sources, channels, length
        )
        return both * std[:, None] + mean[:, None]

    def sound(self, y: Tensor, length: int) -> Tensor:
        """The inverse transform [rows, samples] of [rows, real and imaginary parts, frames]: frames are added, and divided by the
        squares of their windows."""
        weight = (self.window**2)[None, None].expand(1, 1, -1)
        whole = f.conv_transpose1d(y, self.waves, stride=HOP)
        weights = f.conv_transpose1d(torch.ones_like(y[:1, :1]), weight, stride=HOP)
        return (whole / weights.clamp(min=1e-8))[:, 0, WINDOW // 2 : WINDOW // 2 + length]
