"""Converts options of ONNX Runtime's CUDA provider to vkep's.

Source of the names: ONNX Runtime's documentation of the CUDA execution provider, "Configuration options", and the CUDA
plugin provider's design (options of its arena).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

logger = logging.getLogger("vkep.session")

#: maps CUDA's option to vkep's
_SAME = {
    "gpu_mem_limit": "arena.max_mem",
    "arena_extend_strategy": "arena.extend_strategy",
    "enable_cuda_graph": "enable_graph_capture",
    "device_id": "device",
    "prefer_nhwc_layout": "prefer_nhwc",
}
#: options that permit what vkep does not do, or request what it always does: ignored with a warning
_WITHOUT_EFFECT = {
    "use_tf32": "float32 is computed in float32",
    "do_copy_in_default_stream": "copies are in order with kernels, on one queue",
    "use_ep_level_unified_stream": "a context has one timeline",
    "cudnn_conv_algo_search": "`vkep tune` measures kernels",
    "cudnn_conv_use_max_workspace": "`vkep tune` measures kernels",
    "cudnn_conv1d_pad_to_nc1d": "convolutions of one dimension have a kernel",
    "fuse_conv_bias": "what can be fused is",
    "tunable_op_enable": "`vkep tune` measures kernels",
    "tunable_op_tuning_enable": "`vkep tune` measures kernels",
    "tunable_op_max_tuning_duration_ms": "`vkep tune` measures kernels",
    "enable_skip_layer_norm_strict_mode": "norms are summed in float32",
    "sdpa_kernel": "attention kernels are chosen by the device's capabilities",
}
_INSTEAD = "docs/ort.md, 'An application's own Vulkan memory', has what there is instead"
_STREAM = f"a CUDA stream orders no Vulkan work; {_INSTEAD}"
_ALLOCATOR = f"a CUDA allocator gives no Vulkan memory; {_INSTEAD}"
#: options that vkep cannot support, except with the value that disables them
_REFUSED = {
    "user_compute_stream": _STREAM,
    "has_user_compute_stream": _STREAM,
    "gpu_external_alloc": _ALLOCATOR,
    "gpu_external_free": _ALLOCATOR,
    "gpu_external_empty_cache": _ALLOCATOR,
}
_NO = ("", "0", "none", "false", "nullptr", "0x0")
_NO_LIMIT = ("-1", str((1 << 64) - 1), str((1 << 63) - 1))  # CUDA's default is the largest size_t


def translated(options: Mapping[str, str], *, say: bool = True) -> dict[str, str]:
    """The options with vkep's names for CUDA's; those without effect are left out, with a warning in the log (``say``).

    Raises ``ValueError`` for one that vkep cannot serve, and for one that is given by both names.
    """
    made: dict[str, str] = {}
    for name, text in options.items():
        if name in _WITHOUT_EFFECT:
            if say:
                logger.warning("option %s=%s has no effect on Vulkan: %s", name, text, _WITHOUT_EFFECT[name])
            continue
        if name in _REFUSED:
            if text.strip().lower() not in _NO:
                raise ValueError(f"option {name!r} is {text!r}: {_REFUSED[name]}")
            continue
        key = _SAME.get(name, name)
        if key in made or (key != name and key in options):
            raise ValueError(f"option {name!r} is {key!r} by another name; expected one of them")
        made[key] = "0" if key == "arena.max_mem" and text.strip() in _NO_LIMIT else text
    return made
