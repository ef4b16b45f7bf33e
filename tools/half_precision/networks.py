"""The networks that are compared, and how to build them with random weights. Their packages are imported when one is built."""

from __future__ import annotations

import functools
import importlib
from typing import Any

ROWS = 4  #: of an input: the error of one image or sentence varies by a third from one to the next
#: torchvision: side of the image by name
TORCHVISION = {
    **dict.fromkeys(
        ("resnet18", "resnet50", "wide_resnet50_2", "resnext50_32x4d", "mobilenet_v2", "mobilenet_v3_small"), 64
    ),
    **dict.fromkeys(
        ("mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "densenet121", "squeezenet1_1", "swin_t"), 64
    ),
    **dict.fromkeys(
        ("shufflenet_v2_x1_0", "regnet_y_400mf", "regnet_x_400mf", "mnasnet1_0", "googlenet", "alexnet"), 64
    ),
    **dict.fromkeys(
        ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large", "fcn_resnet50", "vgg11", "VisionTransformer"), 64
    ),
    "inception_v3": 96,
}
SEGMENTATION = (
    "lraspp_mobilenet_v3_large",
    "deeplabv3_mobilenet_v3_large",
    "fcn_resnet50",
)  #: their backbones are random too
VISION_TRANSFORMER = {
    "image_size": 64,
    "patch_size": 16,
    "num_layers": 4,
    "num_heads": 6,
    "hidden_dim": 192,
    "mlp_dim": 768,
}

#: timm: side of the image by name
TIMM = {
    "repvgg_a0": 64,
    "ghostnet_100": 64,
    "res2net50_26w_4s": 64,
    "rexnet_100": 64,
    "levit_128s": 224,
    "mixer_s32_224": 224,
}

_BODY = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
_TEXT = _BODY | {"vocab_size": 1000}
_DECODER = _TEXT | {"num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0}
_IMAGE = _BODY | {"image_size": 64, "patch_size": 16}
_AUDIO = _TEXT | {
    "conv_dim": [64] * 4,
    "conv_kernel": [10, 3, 3, 2],
    "conv_stride": [5, 2, 2, 2],
    "num_feat_extract_layers": 4,
}
_ENCODER = {
    "d_model": 128,
    "encoder_layers": 4,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "vocab_size": 1000,
}
_ENCODER |= {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 256}
_T5 = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 4, "num_heads": 4, "vocab_size": 1000}
_SWIN = {"image_size": 64, "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6]}
_GPT2 = {"n_embd": 128, "n_layer": 4, "n_head": 4, "vocab_size": 1000, "use_cache": False}
_RESNET = {"embedding_size": 16, "hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 1, 1]}

#: transformers: classes of the configuration and of the network (and a part of it), the input's kind, the configuration
TRANSFORMERS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", "tokens", _TEXT),
    "minilm": ("BertConfig", "BertModel", "tokens", _TEXT | {"hidden_size": 384, "num_attention_heads": 12}),
    "roberta": ("RobertaConfig", "RobertaModel", "tokens", _TEXT),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        "tokens",
        {"dim": 128, "n_layers": 4, "n_heads": 4, "hidden_dim": 512},
    ),
    "albert": ("AlbertConfig", "AlbertModel", "tokens", _TEXT),
    "electra": ("ElectraConfig", "ElectraModel", "tokens", _TEXT | {"embedding_size": 64}),
    "mpnet": ("MPNetConfig", "MPNetModel", "tokens", _TEXT),
    "gpt2": ("GPT2Config", "GPT2Model", "tokens", _GPT2),
    "llama": ("LlamaConfig", "LlamaModel", "tokens", _DECODER),
    "qwen2": ("Qwen2Config", "Qwen2Model", "tokens", _DECODER),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXModel", "tokens", _TEXT | {"use_cache": False}),
    "t5_encoder": ("T5Config", "T5EncoderModel", "tokens", _T5),
    "bart_encoder": ("BartConfig", "BartModel.encoder", "tokens", _ENCODER),
    "clip_text": ("CLIPTextConfig", "CLIPTextModel", "tokens", _TEXT),
    "clip_vision": ("CLIPVisionConfig", "CLIPVisionModel", "image64", _IMAGE),
    "vit": ("ViTConfig", "ViTModel", "image64", _IMAGE),
    "deit": ("DeiTConfig", "DeiTModel", "image64", _IMAGE),
    "dinov2": ("Dinov2Config", "Dinov2Model", "image64", _IMAGE),
    "yolos": ("YolosConfig", "YolosModel", "image64", _IMAGE | {"image_size": [64, 64], "num_detection_tokens": 10}),
    "swin": ("SwinConfig", "SwinModel", "image64", _SWIN),
    "convnext": (
        "ConvNextConfig",
        "ConvNextModel",
        "image64",
        {"depths": [2, 2], "hidden_sizes": [48, 96], "num_stages": 2},
    ),
    "segformer": ("SegformerConfig", "SegformerModel", "image64", {}),
    "resnet": ("ResNetConfig", "ResNetModel", "image64", _RESNET),
    "whisper_encoder": (
        "WhisperConfig",
        "WhisperModel.encoder",
        "spectrum",
        _ENCODER | {"max_source_positions": 100, "pad_token_id": 0},
    ),
    "wav2vec2": ("Wav2Vec2Config", "Wav2Vec2Model", "audio", _AUDIO),
    "hubert": ("HubertConfig", "HubertModel", "audio", _AUDIO),
}
NETWORKS = (*TORCHVISION, *TRANSFORMERS, *(f"timm/{name}" for name in TIMM))


def build(name: str) -> tuple[Any, str]:
    """A network with random weights, and its input's kind. Raises ImportError, or what its library raises."""
    if name in TRANSFORMERS:
        library = importlib.import_module("transformers")
        config, path, kind, arguments = TRANSFORMERS[name]
        whole, *part = path.split(".")
        return functools.reduce(getattr, part, getattr(library, whole)(getattr(library, config)(**arguments))), kind
    if name in TORCHVISION:
        models, kind = importlib.import_module("torchvision.models"), f"image{TORCHVISION[name]}"
        if name == "VisionTransformer":
            return models.VisionTransformer(**VISION_TRANSFORMER), kind
        return models.get_model(
            name, weights=None, **({"weights_backbone": None} if name in SEGMENTATION else {})
        ), kind
    short = name.removeprefix("timm/")
    return importlib.import_module("timm").create_model(short, pretrained=False), f"image{TIMM[short]}"


def draw_input(kind: str, rows: int) -> Any:
    """An input whose numbers float16 represents exactly."""
    import torch

    if kind == "tokens":
        return torch.randint(3, 1000, (rows, 32))
    shape = {"audio": (8000,), "spectrum": (80, 200)}.get(kind) or (3, int(kind[5:]), int(kind[5:]))
    return torch.randn(rows, *shape).half().float()


def prepare(name: str) -> tuple[Any, Any]:
    """The network, which returns its floating-point outputs as a tuple, and its input.

    Weights that begin at zero or next to it (heads, scales of residual branches) would leave layers without effect: they are
    drawn. Batch norms get the statistics of a batch, so that values neither vanish nor overflow.
    """
    import torch

    torch.manual_seed(0)
    inner, kind = build(name)
    inner.eval()
    for key, weight in inner.named_parameters():
        if not key.endswith("bias") and weight.abs().max() < 1e-4:
            weight.normal_(std=0.02) if weight.dim() == 2 else weight.fill_(0.2)
    if norms := [m for m in inner.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]:
        for norm in norms:
            norm.train()
            norm.momentum = 1.0
        inner(draw_input(kind, ROWS))
        inner.eval()

    class Outputs(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            results = self.inner(x)
            if isinstance(results, torch.Tensor):
                return (results,)
            results = results.values() if isinstance(results, dict) else results
            return tuple(r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point())

    return Outputs().eval(), draw_input(kind, ROWS)
