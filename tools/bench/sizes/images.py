"""Networks for images of any height and width in torch, narrow and with random weights: the forms of ESRGAN, YOLO, PP-OCR, RIFE,
U-Net and older classifiers."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

Tensor = Any


def conv(inside: int, outside: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution with a batch norm and SiLU."""
    pad = size // 2
    layer = nn.Conv2d(inside, outside, size, stride, pad, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outside), nn.SiLU())


class Dense(nn.Module):  # type: ignore[misc]
    """ESRGAN's block: each convolution reads all results before it."""

    def __init__(self, wide: int = 16, more: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(wide + k * more, more if k < 4 else wide, 3, 1, 1) for k in range(5)])

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers[:-1]:
            found.append(f.leaky_relu(layer(torch.cat(found, 1)), 0.2))
        return self.layers[-1](torch.cat(found, 1)) * 0.2 + x


class Esrgan(nn.Module):  # type: ignore[misc]
    """Four times as high and wide, by two nearest resizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Conv2d(3, 16, 3, 1, 1), nn.Sequential(Dense(), Dense())
        self.up = nn.ModuleList([nn.Conv2d(16, 16, 3, 1, 1) for _ in range(2)])
        self.last = nn.Conv2d(16, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.body(x)
        for layer in self.up:
            x = f.leaky_relu(layer(f.interpolate(x, scale_factor=2.0, mode="nearest")), 0.2)
        return self.last(x)


class PixelShuffle(nn.Module):  # type: ignore[misc]
    """Real-ESRGAN's compact form: the image is added to shuffled pixels."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1), nn.PReLU(16)]
        for _ in range(4):
            layers += [nn.Conv2d(16, 16, 3, 1, 1), nn.PReLU(16)]
        self.body = nn.Sequential(*layers, nn.Conv2d(16, 3 * 4 * 4, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return f.pixel_shuffle(self.body(x), 4) + f.interpolate(x, scale_factor=4.0, mode="nearest")


class Split(nn.Module):  # type: ignore[misc]
    """YOLOv8's C2f."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.half = outside // 2
        self.first, self.last = conv(inside, outside, 1), conv(self.half * 3, outside, 1)
        self.inner = nn.Sequential(conv(self.half, self.half), conv(self.half, self.half))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x).chunk(2, 1)
        return self.last(torch.cat([a, b, b + self.inner(b)], 1))


class Yolo(nn.Module):  # type: ignore[misc]
    """YOLOv8's backbone, neck and head of distances, whose anchors follow from the shapes as ultralytics exports them."""

    def __init__(self, classes: int = 8, bins: int = 8) -> None:
        super().__init__()
        self.bins, self.classes = bins, classes
        self.stem = nn.Sequential(conv(3, 8, 3, 2), conv(8, 16, 3, 2), Split(16, 16))
        self.down = nn.ModuleList([nn.Sequential(conv(w // 2, w, 3, 2), Split(w, w)) for w in (32, 64, 128)])
        self.before, self.after = conv(128, 64, 1), conv(64 * 4, 128, 1)
        self.up = nn.ModuleList([Split(128 + 64, 64), Split(64 + 32, 32)])
        self.again = nn.ModuleList([conv(32, 32, 3, 2), conv(64, 64, 3, 2)])
        self.join = nn.ModuleList([Split(32 + 64, 64), Split(64 + 128, 128)])
        self.boxes = nn.ModuleList([nn.Conv2d(w, 4 * bins, 1) for w in (32, 64, 128)])
        self.scores = nn.ModuleList([nn.Conv2d(w, classes, 1) for w in (32, 64, 128)])

    def forward(self, x: Tensor) -> Tensor:
        a = self.down[0](self.stem(x))
        b = self.down[1](a)
        c = self.before(self.down[2](b))
        pools = [c]
        for _ in range(3):
            pools.append(f.max_pool2d(pools[-1], 5, 1, 2))
        c = self.after(torch.cat(pools, 1))
        b = self.up[0](torch.cat([f.interpolate(c, scale_factor=2.0), b], 1))
        a = self.up[1](torch.cat([f.interpolate(b, scale_factor=2.0), a], 1))
        b = self.join[0](torch.cat([self.again[0](a), b], 1))
        c = self.join[1](torch.cat([self.again[1](b), c], 1))
        boxes, scores, anchors, strides = [], [], [], []
        for k, level in enumerate((a, b, c)):
            boxes.append(self.boxes[k](level).flatten(2))
            scores.append(self.scores[k](level).flatten(2))
            height, width = level.shape[2:]
            ys, xs = (torch.arange(size, device=x.device).float() + 0.5 for size in (height, width))
            grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy")).flatten(1)
            anchors.append(grid)
            strides.append(torch.full_like(grid[:1], 8.0 * 2**k))
        box, place, stride = torch.cat(boxes, 2), torch.cat(anchors, 1), torch.cat(strides, 1)
        weights = box.reshape(box.shape[0], 4, self.bins, -1).softmax(2)
        near, far = (weights * torch.arange(self.bins, device=x.device).float().reshape(1, 1, -1, 1)).sum(2).chunk(2, 1)
        low, high = place - near, place + far
        return torch.cat([(low + high) / 2 * stride, (high - low) * stride, torch.cat(scores, 2).sigmoid()], 1)


def _lively(network: nn.Module) -> nn.Module:
    """The network with weights that keep the size of values, so that scores differ by more than roundings."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)
    return network


class YoloWithNms(nn.Module):  # type: ignore[misc]
    """YOLO with non-maximum suppression in the model, as ultralytics exports it: boxes are shifted by their class, so that only
    those of one class suppress each other."""

    def __init__(self) -> None:
        importlib.import_module("torchvision")  # declares the operator
        super().__init__()
        self.inner = _lively(Yolo())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        [found] = self.inner(x)
        middle, size = found[:2].T, found[2:4].T
        corners = torch.cat([middle - size / 2, middle + size / 2], 1)
        scores, kind = found[4:].max(0)
        kept = scores > 0.5
        corners, scores, kind = corners[kept], scores[kept], kind[kept]
        chosen = torch.ops.torchvision.nms(corners + kind[:, None] * 1024.0, scores, 0.6)[:100]
        return corners[chosen], scores[chosen]


class YoloOfMost(nn.Module):  # type: ignore[misc]
    """YOLOv10's end: the most probable places, then the most probable classes of these, without suppression."""

    def __init__(self, most: int = 40) -> None:
        super().__init__()
        self.inner, self.most = _lively(Yolo()), most

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = self.inner(x).transpose(1, 2).split([4, self.inner.classes], 2)
        places = scores.amax(2).topk(self.most, 1)[1][:, :, None]
        boxes = boxes.gather(1, places.expand(-1, -1, 4))
        scores = scores.gather(1, places.expand(-1, -1, scores.shape[2])).flatten(1)
        best, index = scores.topk(self.most, 1)
        row = torch.div(index, self.inner.classes, rounding_mode="floor")
        return boxes.gather(1, row[:, :, None].expand(-1, -1, 4)), best


class TextDetector(nn.Module):  # type: ignore[misc]
    """PP-OCR's detection (DBNet): depthwise convolutions with squeeze and excitation, a pyramid, and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        widths = (8, 16, 24, 32)
        self.stem = conv(3, 8, 3, 2)
        self.down = nn.ModuleList([])
        for inside, outside in zip((8, *widths), widths, strict=False):
            self.down.append(nn.Sequential(conv(inside, inside, 3, 2, inside), conv(inside, outside, 1)))
        self.squeeze = nn.ModuleList([nn.Conv2d(w, w, 1) for w in widths])
        self.lateral = nn.ModuleList([nn.Conv2d(w, 16, 1) for w in widths])
        self.head = nn.Sequential(
            conv(64, 16), nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        x, levels = self.stem(x), []
        for step, squeeze, lateral in zip(self.down, self.squeeze, self.lateral, strict=True):
            x = step(x)
            x = x * f.hardsigmoid(squeeze(f.adaptive_avg_pool2d(x, 1)))
            levels.append(lateral(x))
        for k in (2, 1, 0):
            levels[k] = levels[k] + f.interpolate(levels[k + 1], scale_factor=2.0, mode="nearest")
        scaled = [f.interpolate(level, scale_factor=2.0**k, mode="nearest") for k, level in enumerate(levels)]
        return self.head(torch.cat(scaled, 1))


class TextReader(nn.Module):  # type: ignore[misc]
    """A recogniser of lines (PP-OCR, captchas): convolutions, then LSTMs over the width."""

    def __init__(self, classes: int = 64, hidden: int = 48) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(3, 16), nn.MaxPool2d(2), conv(16, 32), nn.MaxPool2d((2, 1)), conv(32, 48), nn.MaxPool2d((2, 1))
        )
        self.lstm = nn.LSTM(48, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.last = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).mean(2).transpose(1, 2)
        return self.last(self.lstm(x)[0]).softmax(2)


class TextAttention(nn.Module):  # type: ignore[misc]
    """PP-OCR's later recogniser (SVTR): local and global attention over the width."""

    def __init__(self, wide: int = 48, heads: int = 4, classes: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.stem = nn.Sequential(conv(3, 24, 3, 2), conv(24, wide, 3, 2), nn.AvgPool2d((8, 1)))
        self.mix = conv(wide, wide, 5, 1, wide)
        self.norm, self.qkv, self.out = nn.LayerNorm(wide), nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.wide = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, 2 * wide), nn.GELU(), nn.Linear(2 * wide, wide))
        self.last = nn.Linear(wide, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(self.stem(x)).squeeze(2).transpose(1, 2)
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(f.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return self.last(x + self.wide(x)).softmax(2)


class Frames(nn.Module):  # type: ignore[misc]
    """RIFE: the flow between two images at two scales, images warped by it, and a blend."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([])
        for inside in (6, 6 + 5 + 6):
            self.blocks.append(nn.Sequential(conv(inside, 16, 3, 2), conv(16, 16), nn.ConvTranspose2d(16, 5, 4, 2, 1)))

    @staticmethod
    def warp(x: Tensor, flow: Tensor) -> Tensor:
        height, width = x.shape[2:]
        xs = torch.linspace(-1.0, 1.0, width, device=x.device).reshape(1, 1, 1, -1).expand(x.shape[0], -1, height, -1)
        ys = torch.linspace(-1.0, 1.0, height, device=x.device).reshape(1, 1, -1, 1).expand(x.shape[0], -1, -1, width)
        scaled = torch.cat([flow[:, :1] / ((width - 1.0) / 2.0), flow[:, 1:2] / ((height - 1.0) / 2.0)], 1)
        grid = (torch.cat([xs, ys], 1) + scaled).permute(0, 2, 3, 1)
        return f.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=True)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x[:, :3], x[:, 3:]
        small = f.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False)
        found = f.interpolate(self.blocks[0](small), scale_factor=2.0, mode="bilinear", align_corners=False)
        flow, mask = found[:, :4] * 2.0, found[:, 4:5]
        warped = torch.cat([self.warp(a, flow[:, :2]), self.warp(b, flow[:, 2:4])], 1)
        found = self.blocks[1](torch.cat([x, flow, mask, warped], 1))
        flow, blend = flow + found[:, :4], (mask + found[:, 4:5]).sigmoid()
        return self.warp(a, flow[:, :2]) * blend + self.warp(b, flow[:, 2:4]) * (1.0 - blend)


class UNet(nn.Module):  # type: ignore[misc]
    """The U-Net of segmentation, whose upper half is padded to the shape of the lower one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(8, 16), conv(16, 32)
        self.up = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.join = nn.ModuleList([conv(32, 16), conv(16, 8)])
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(f.max_pool2d(a, 2))
        x = self.c(f.max_pool2d(b, 2))
        for up, join, beside in zip(self.up, self.join, (b, a), strict=True):
            x = up(x)
            dy, dx = beside.shape[2] - x.shape[2], beside.shape[3] - x.shape[3]
            x = join(torch.cat([beside, f.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])], 1))
        return self.last(x)


class Residual(nn.Module):  # type: ignore[misc]
    """U2-Net's block: a U-Net inside, down by pools that round up, and up to the sizes that were there before."""

    def __init__(self, inside: int, middle: int, outside: int, levels: int) -> None:
        super().__init__()
        self.first, self.bottom = conv(inside, outside), conv(middle, middle)
        self.down = nn.ModuleList([conv(outside if k == 0 else middle, middle) for k in range(levels)])
        self.up = nn.ModuleList([conv(2 * middle, outside if k == 0 else middle) for k in range(levels)])

    def forward(self, x: Tensor) -> Tensor:
        first, kept = self.first(x), []
        x = first
        for k, layer in enumerate(self.down):
            kept.append(layer(x if k == 0 else f.max_pool2d(x, 2, 2, ceil_mode=True)))
            x = kept[-1]
        x = self.bottom(x)
        for layer, beside in zip(reversed(self.up), reversed(kept), strict=True):
            x = f.interpolate(x, size=beside.shape[2:], mode="bilinear", align_corners=False)
            x = layer(torch.cat([x, beside], 1))
        return x + first


class SaliencyNet(nn.Module):  # type: ignore[misc]
    """U2-Net, which removes backgrounds: blocks that are U-Nets in a U-Net, and masks of each level in the image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([Residual(3, 8, 16, 3), Residual(16, 8, 24, 2), Residual(24, 8, 32, 1)])
        self.up = nn.ModuleList([Residual(24 + 32, 8, 24, 2), Residual(16 + 24, 8, 16, 3)])
        self.sides = nn.ModuleList([nn.Conv2d(w, 1, 3, 1, 1) for w in (16, 24, 32)])
        self.last = nn.Conv2d(3, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a = self.down[0](x)
        b = self.down[1](f.max_pool2d(a, 2, 2, ceil_mode=True))
        c = self.down[2](f.max_pool2d(b, 2, 2, ceil_mode=True))
        resized = [x.shape[2:], b.shape[2:], a.shape[2:]]
        b = self.up[0](torch.cat([f.interpolate(c, size=resized[1], mode="bilinear"), b], 1))
        a = self.up[1](torch.cat([f.interpolate(b, size=resized[2], mode="bilinear"), a], 1))
        masks = [
            f.interpolate(side(level), size=resized[0], mode="bilinear")
            for side, level in zip(self.sides, (a, b, c), strict=True)
        ]
        return tuple(mask.sigmoid() for mask in (self.last(torch.cat(masks, 1)), *masks))


class Inception(nn.Module):  # type: ignore[misc]
    """Inception's and SqueezeNet's parts: convolutions and pools without padding, branches side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.branches = nn.ModuleList([nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 5, 1, 2)])
        self.down = nn.Conv2d(48, 32, 3, 2)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        x = torch.cat([f.relu(branch(x)) for branch in self.branches], 1)
        x = self.pool(f.relu(self.down(x)))
        return self.last(f.adaptive_avg_pool2d(x, 1).flatten(1))


class Vgg(nn.Module):  # type: ignore[misc]
    """VGG's plain chain, with a head for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inside, outside in ((3, 16), (16, 16), (16, 32), (32, 32), (32, 64)):
            layers += [nn.Conv2d(inside, outside, 3, 1, 1), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if inside == outside or inside == 3 else []
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Style(nn.Module):  # type: ignore[misc]
    """Fast style transfer: reflect pads and instance norms."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 8, 9), nn.Conv2d(8, 16, 3, 2), nn.Conv2d(16, 24, 3, 2)])
        self.up = nn.ModuleList([nn.Conv2d(24, 16, 3), nn.Conv2d(16, 8, 3)])
        self.last = nn.Conv2d(8, 3, 9)

    @staticmethod
    def padded(layer: nn.Conv2d, x: Tensor) -> Tensor:
        side = layer.kernel_size[0] // 2
        return layer(f.pad(x, [side] * 4, mode="reflect"))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.down:
            x = f.relu(f.instance_norm(self.padded(layer, x)))
        for layer in self.up:
            x = f.relu(f.instance_norm(self.padded(layer, f.interpolate(x, scale_factor=2.0, mode="nearest"))))
        return self.padded(self.last, x)
