"""The nets whose programs the tests run: small, seeded, defined here (no model zoo is needed)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class UnifiedVgfVulkan(nn.Module):
    """The RFC's example: TOSA-friendly ends around an island of index operations."""

    channel_index: Tensor
    row_index: Tensor
    col_gather_index: Tensor

    def __init__(self) -> None:
        super().__init__()
        order = torch.tensor([3, 1, 2, 0], dtype=torch.int64)
        self.register_buffer("channel_index", torch.tensor([2, 0, 1], dtype=torch.int64))
        self.register_buffer("row_index", order.clone())
        self.register_buffer("col_gather_index", order.view(1, 1, 1, 4).repeat(1, 3, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(x.transpose(-1, -2), kernel_size=2, stride=2)
        x = torch.index_select(x, dim=1, index=self.channel_index)
        x = torch.gather(x, dim=3, index=self.col_gather_index)
        x = torch.index_select(x, dim=2, index=self.row_index)
        return (torch.sin(x) * torch.reciprocal(torch.cos(x))).transpose(-1, -2)


class ConvNorm(nn.Sequential):
    """Convolution, batch norm with statistics that are not trivial, and an activation."""

    def __init__(
        self, i: int, o: int, k: int = 3, s: int = 1, g: int = 1, act: type[nn.Module] | None = nn.ReLU
    ) -> None:
        norm = nn.BatchNorm2d(o)
        nn.init.uniform_(norm.running_mean, -0.2, 0.2)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
        layers: list[nn.Module] = [nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), norm]
        super().__init__(*layers, *([act()] if act else []))


class CnnMaxPool(nn.Module):
    """Two convolutions with max pooling, and a classifier; the input is [n, 3, 16, 16]."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.a, self.b = ConvNorm(3, width), ConvNorm(width, 2 * width)
        self.fc = nn.Linear(2 * width * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.a(x), 2)
        x = F.max_pool2d(self.b(x), 3, stride=2, padding=1)
        return self.fc(torch.flatten(x, 1))


class InvertedResidual(nn.Module):
    def __init__(self, i: int, o: int, stride: int, expand: int) -> None:
        super().__init__()
        h = i * expand
        self.skip = stride == 1 and i == o
        first = [] if expand == 1 else [ConvNorm(i, h, 1, act=nn.ReLU6)]
        self.body = nn.Sequential(*first, ConvNorm(h, h, 3, stride, h, nn.ReLU6), ConvNorm(h, o, 1, act=None))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.skip else self.body(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 (arXiv 1801.04381, table 2); ``stages`` are its rows (expansion, channels, repeats, stride)."""

    ROWS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    SMALL_ROWS = ((1, 8, 1, 1), (3, 8, 2, 2), (3, 16, 2, 2), (3, 24, 1, 1))

    def __init__(
        self,
        rows: tuple[tuple[int, int, int, int], ...] = ROWS,
        first: int = 32,
        last: int = 1280,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = [ConvNorm(3, first, 3, 2, act=nn.ReLU6)]
        width = first
        for expand, channels, repeats, stride in rows:
            for index in range(repeats):
                blocks.append(InvertedResidual(width, channels, stride if index == 0 else 1, expand))
                width = channels
        blocks.append(ConvNorm(width, last, 1, act=nn.ReLU6))
        self.features, self.fc = nn.Sequential(*blocks), nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), 1)
        return self.fc(torch.flatten(x, 1))


class BasicBlock(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = ConvNorm(i, o, 3, stride), ConvNorm(o, o, 3, act=None)
        self.shortcut = None if stride == 1 and i == o else ConvNorm(i, o, 1, stride, act=None)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b(self.a(x)) + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(nn.Module):
    """ResNet-18 (arXiv 1512.03385, table 1), ``width`` channels in its first stage (64 in the paper)."""

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = ConvNorm(3, width, 7, 2)
        blocks, i = [], width
        for stage in range(4):
            for index in range(2):
                o = width << stage
                blocks.append(BasicBlock(i, o, 2 if stage and not index else 1))
                i = o
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(i, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.max_pool2d(self.stem(x), 3, 2, 1))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class TransformerBlock(nn.Module):
    """Pre-norm self-attention and a GELU feed-forward part on [n, tokens, width], its products written out."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, tokens, 3, self.heads, width // self.heads).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(n, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SdpaBlock(nn.Module):
    """torch's own scaled_dot_product_attention with a causal mask, layer norm and tanh GELU."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.gelu(self.proj(self.norm(x)), approximate="tanh")


class LstmCell(nn.Module):
    """One step: input, hidden and cell state to hidden and cell state."""

    def __init__(self, inputs: int = 12, hidden: int = 16) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return self.cell(x, (h, c))


class Upsample(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        corners = False if self.mode == "bilinear" else None
        return F.interpolate(F.relu(self.conv(x)), scale_factor=2.0, mode=self.mode, align_corners=corners)


class GroupNormNet(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, channels, 3, padding=1), nn.GroupNorm(4, channels)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.uniform_(self.norm.bias, -0.5, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x)))


class EmbeddingNet(nn.Module):
    """Token ids (int64 [n, tokens]) to class scores."""

    def __init__(self, vocabulary: int = 50, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(vocabulary, width), nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.softmax(self.fc(self.table(ids).mean(dim=1)), dim=-1)


class Mlp(nn.Module):
    def __init__(self, inputs: int = 24, hidden: int = 32, outputs: int = 10) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


class Decoder(nn.Module):
    """A second method beside `Mlp`: shares its weights where given the same module."""

    def __init__(self, mlp: Mlp) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return torch.tanh(self.mlp(x)) * scale


class Aliases(nn.Module):
    """Outputs that are views of an input, the input itself, and one output twice."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x + y
        return x.view(-1), x, z, z.reshape(2, -1), z


class ZeroSized(nn.Module):
    """Tensors without elements: an empty slice, joined and returned."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        empty = x[:, :0]
        return torch.cat([empty * 2.0, x + 1.0], dim=1), empty.sum(dim=1)


class Counter(nn.Module):
    """A buffer that each run changes: y = x + state, then state += 1."""

    state: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.state
        self.state.add_(1.0)
        return y


class ManyOperators(nn.Module):
    """Elementwise operators, reductions and movement in one net."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = torch.sigmoid(x) * torch.tanh(y) + torch.exp(-x.abs()) - torch.sqrt(y * y + 1.0)
        b = torch.cat([a, x], dim=1).permute(0, 2, 1)
        c = torch.where(x > 0.25, x.pow(2.0), y.clamp(-0.5, 0.5))
        d = torch.amax(c, dim=-1, keepdim=True) + c.sum(dim=1, keepdim=True)
        e = F.pad(F.leaky_relu(d, 0.1), (1, 2), value=0.5)
        return a.mean(dim=-1), b, torch.minimum(c, x / (y.abs() + 1.0)), e, F.hardswish(x)[:, 1:, ::2]


class ChannelsLast(nn.Module):
    """For an input whose channels lie last; so do those of the second output, and of what passes between delegates."""

    index: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.register_buffer("index", torch.tensor([2, 0, 3]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        last = F.relu(self.conv(x))
        y = torch.index_select(last, 1, self.index)
        return torch.reciprocal(y + x + 9.0), last
