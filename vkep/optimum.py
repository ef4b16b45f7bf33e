"""Optimum's models for ONNX Runtime with their states on the device.

    import vkep.optimum
    from optimum.onnxruntime import ORTModelForCausalLM

    vkep.optimum.register()
    model = ORTModelForCausalLM.from_pretrained(folder, provider="VulkanExecutionProvider")

Optimum binds device memory for CUDA alone, since its tensors are torch's, and torch has no device for Vulkan. After `register`
models with the provider keep these in device memory: past and present keys and values, the encoder's states, and embeddings of
prompts that an image pipeline passes in each step. For torch they are tensors on the CPU; what reads one copies it to the host.

Image pipelines, with any provider, also get the methods for tiles and for batches that diffusers' autoencoders have
(``pipeline.vae.enable_tiling()``, ``pipeline.enable_vae_slicing()``).

Needs optimum-onnx and torch (``pip install vkep[optimum]``).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import helper
from onnxruntime.transformers.io_binding_helper import TypeHelper
from optimum.onnxruntime import modeling_seq2seq
from optimum.onnxruntime.base import ORTParentMixin, ORTSessionMixin

import vkep.ort
from vkep.ort.names import EP_NAME
from vkep.tiles import run_in_tiles

__all__ = ["DeviceState", "register", "unregister"]

#: inputs that a pipeline passes in many runs as the same tensor, which is therefore uploaded once
_REPEATED = {
    *("encoder_hidden_states", "text_embeds", "time_ids", "timestep_cond"),
    *("pooled_projections", "txt_ids", "img_ids", "guidance"),
}
#: optimum's methods, while `register`'s are in their place; None: there was none
_own: dict[tuple[type, str], Any] = {}
#: in place of what is on the device, where optimum's methods expect a tensor
_NOTHING = torch.empty(0)
_torch_type = functools.cache(TypeHelper.ort_type_to_torch_type)


def register() -> None:
    """Register the provider with ONNX Runtime, and keep states on the device in models of optimum that are opened from now on
    with it. A second call does nothing. Raises as `vkep.ort.register`."""
    vkep.ort.register()
    if not _own:
        _replace(ORTSessionMixin, _METHODS)
        _replace(ORTParentMixin, {"initialize_ort_attributes": _parts})


def unregister() -> None:
    """Undo `register` for models that are opened from now on. The provider stays registered with ONNX Runtime."""
    for kind, name in list(_own):
        method = _own.pop((kind, name))
        if method is None:
            delattr(kind, name)
        else:
            setattr(kind, name, method)


def _replace(kind: type, methods: Mapping[str, Callable[..., Any]]) -> None:
    for name, method in methods.items():
        _own[kind, name] = getattr(kind, name, None)
        setattr(kind, name, method)


class DeviceState(torch.Tensor):
    """A tensor on the CPU for torch, whose content is in device memory until something reads it.

    Shapes and types are known without a copy, and `index_select` along the first axis (the choice of beams) runs on the device.
    Every other function of torch gets a copy on the host, which is made once.
    """

    value: Any  #: the ``onnxruntime.OrtValue``; None where the host's copy may differ from it
    _host: torch.Tensor | None

    @staticmethod
    def __new__(cls, value: Any) -> DeviceState:
        dtype = _torch_type(value.data_type())
        made = torch.Tensor._make_wrapper_subclass(cls, value.shape(), dtype=dtype)
        made.value, made._host = value, None
        return made

    def on_device(self) -> Any:
        """The ``onnxruntime.OrtValue``; None where the host's copy was changed, or may be."""
        with torch._C.DisableTorchFunctionSubclass():
            changed = self._host is not None and self._host._version > 0
            return None if changed else self.value

    def on_host(self) -> torch.Tensor:
        """The copy on the host."""
        with torch._C.DisableTorchFunctionSubclass():
            if self._host is None:
                self._host = torch.from_numpy(self.value.numpy())
            return self._host

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func in _WITHOUT_CONTENT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func is torch.Tensor.index_select and not kwargs and args[1] == 0:
            chosen = _rows(args[0], args[2])
            if chosen is not None:
                return chosen
        host = _hosted(args, escapes=func in _ESCAPES)
        return func(*host, **_hosted(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Called for code in C++, which does not call `__torch_function__`."""
        return func(*_hosted(args), **_hosted(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.on_host().__reduce_ex__(protocol)


#: functions that do not read the content
_WITHOUT_CONTENT = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "is_cuda")),
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("requires_grad", "is_meta", "is_sparse", "is_quantized", "grad")
    ),
    *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "nelement", "element_size", "__len__")),
    *(getattr(torch.Tensor, name) for name in ("is_floating_point", "is_complex", "is_contiguous", "get_device")),
}
#: functions whose result shares memory with the copy on the host where torch does not see changes
_ESCAPES = {
    getattr(torch.Tensor, name)
    for name in ("numpy", "data_ptr", "__array__", "__dlpack__", "untyped_storage", "detach")
}


def _hosted(value: Any, escapes: bool = False) -> Any:
    """An argument with copies on the host in place of device states."""
    if isinstance(value, DeviceState):
        host = value.on_host()
        if escapes:
            value.value = None
        return host
    if isinstance(value, (list, tuple)):
        return type(value)(_hosted(v, escapes) for v in value)
    return {k: _hosted(v, escapes) for k, v in value.items()} if isinstance(value, dict) else value


def _rows(state: Any, index: torch.Tensor) -> Any:
    """The entries ``index`` [n] of the first axis, chosen on the device; None where the content is on the host."""
    value = state.on_device() if isinstance(state, DeviceState) else None
    if value is None or isinstance(index, DeviceState) or index.ndim != 1 or not len(state):
        return None
    if np.array_equal(index.numpy(), np.arange(len(state))):
        return state
    chosen = _index.of(index)
    session = _gather(value.element_type(), len(value.shape()), chosen.element_type())
    binding = vkep.ort.bind(session, {"x": value, "index": chosen})
    session.run_with_iobinding(binding)
    return DeviceState(binding.get_outputs()[0])


class _Uploaded:
    """The value on the device of the tensor that was asked for last: callers pass the same one again."""

    def __init__(self, device: Any = None) -> None:
        self._device = device
        #: the tensor, its version and its value: one tuple, since threads share this
        self._last: tuple[Callable[[], Any], int, Any] = (lambda: None, 0, None)

    def of(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> Any:
        """The value of a tensor on the host; in ``dtype``, which is the same at every call."""
        known, version, value = self._last
        if known() is not tensor or version != tensor._version:
            value = vkep.ort.to_device(tensor.to(dtype or tensor.dtype).numpy(force=True), self._device)
            self._last = weakref.ref(tensor), tensor._version, value
        return value


_index = _Uploaded()


@functools.cache
def _gather(element: int, rank: int, index: int) -> Any:
    """A session that chooses entries of the first axis, for the ONNX types of tensor and index."""
    sizes = [f"d{k}" for k in range(rank)]
    inputs = [
        helper.make_tensor_value_info("x", element, sizes),
        helper.make_tensor_value_info("index", index, ["n"]),
    ]
    output = helper.make_tensor_value_info("y", element, ["n", *sizes[1:]])
    graph = helper.make_graph([helper.make_node("Gather", ["x", "index"], ["y"])], "rows", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=[EP_NAME])


# ---- the methods of ORTSessionMixin


def _initialize(self: Any, session: Any, use_io_binding: bool | None = None) -> None:
    """As optimum's; a model with the provider also gets a session that leaves its states on the device."""
    _own[ORTSessionMixin, "initialize_ort_attributes"](self, session, use_io_binding)
    names = [name for name in self.output_names if ".key" in name or ".value" in name]
    if isinstance(self, modeling_seq2seq.ORTEncoder):
        names.append("last_hidden_state")
    if self.provider == EP_NAME:
        session.run = _Run(session, names)


def _onnx_inputs(self: Any, use_torch: bool, model_inputs: Mapping[str, Any]) -> dict[str, Any]:
    """As optimum's, with an ``onnxruntime.OrtValue`` for what is on the device."""
    run = self.session.run
    values: dict[str, Any] = {}
    if use_torch and isinstance(run, _Run) and self.provider == EP_NAME:
        found = ((name, run.value_of(name, model_inputs.get(name), kind)) for name, kind in self.input_dtypes.items())
        values = {name: value for name, value in found if value is not None}
    rest = {name: _NOTHING if name in values else tensor for name, tensor in model_inputs.items()}
    return _own[ORTSessionMixin, "_prepare_onnx_inputs"](self, use_torch, rest) | values


def _onnx_outputs(self: Any, use_torch: bool, onnx_outputs: Sequence[Any]) -> dict[str, Any]:
    """As optimum's, with a `DeviceState` for what is on the device."""
    kept = {
        name: onnx_outputs[k] for name, k in self.output_names.items() if not isinstance(onnx_outputs[k], np.ndarray)
    }
    if not use_torch:
        return _own[ORTSessionMixin, "_prepare_onnx_outputs"](
            self, use_torch, [o if isinstance(o, np.ndarray) else o.numpy() for o in onnx_outputs]
        )
    rest = [o if isinstance(o, np.ndarray) else _NOTHING.numpy() for o in onnx_outputs]
    return _own[ORTSessionMixin, "_prepare_onnx_outputs"](self, use_torch, rest) | {
        n: DeviceState(v) for n, v in kept.items()
    }


_METHODS: dict[str, Callable[..., Any]] = {
    "initialize_ort_attributes": _initialize,
    "_prepare_onnx_inputs": _onnx_inputs,
    "_prepare_onnx_outputs": _onnx_outputs,
}


class _Run:
    """``session.run`` of a model: some outputs stay on the device."""

    def __init__(self, session: Any, kept: Sequence[str]) -> None:
        self._session = weakref.proxy(session)  # which refers to this object
        self._kept = set(kept)
        self._outputs = [o.name for o in session.get_outputs()]
        device = session.get_provider_options().get(EP_NAME, {}).get("device")
        device = int(device) if device is not None and device.isdecimal() else device
        self._repeated = {name: _Uploaded(device) for name in _REPEATED}

    def value_of(self, name: str, tensor: torch.Tensor | None, kind: str) -> Any:
        """The value of an input on the device, of ONNX Runtime's type ``kind``; None where it is on the host alone."""
        if isinstance(tensor, DeviceState):
            value = tensor.on_device()
            return value if value is not None and value.data_type() == kind and 0 not in value.shape() else None
        repeated = name in _REPEATED and tensor is not None and tensor.numel()
        return self._repeated[name].of(tensor, _torch_type(kind)) if repeated else None

    def __call__(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any = None) -> Any:
        session = self._session
        names = list(output_names or self._outputs)
        there = any(not isinstance(value, np.ndarray) for value in feeds.values())
        if session.get_providers()[0] != EP_NAME or not (there or self._kept.intersection(names)):
            return onnxruntime.InferenceSession.run(session, output_names, feeds, run_options)
        values = {n: v for n, v in feeds.items() if not isinstance(v, np.ndarray)}
        binding = vkep.ort.bind(session, values, {name: None if name in self._kept else "cpu" for name in names})
        for name, array in feeds.items():
            if name not in values:
                binding.bind_cpu_input(name, array)
        session.run_with_iobinding(binding, run_options)
        found = zip(names, binding.get_outputs(), strict=True)
        return [value if name in self._kept else value.numpy() for name, value in found]


# ---- autoencoders in tiles, and image by image


def _parts(self: Any, parts: Any) -> None:
    """As optimum's; an autoencoder gets methods for tiles and batches. Its class is not imported before: that takes seconds."""
    _own[ORTParentMixin, "initialize_ort_attributes"](self, parts)
    kind = type(self)
    if kind.__name__ == "ORTVae" and (kind, "enable_tiling") not in _own:
        coded = {name: functools.partialmethod(_coded, getattr(kind, name)) for name in ("encode", "decode")}
        _replace(kind, _OF_AN_AUTOENCODER | coded)  # type: ignore[arg-type]


def _enable_tiling(self: Any, use_tiling: bool = True) -> None:
    """Encode and decode images in tiles that overlap, as ``diffusers.AutoencoderKL.enable_tiling``, with its attributes:
    ``tile_sample_min_size`` (pixels of a tile's side; at first the configuration's ``sample_size``) and ``tile_overlap_factor``
    (the part of a tile that neighbours share)."""
    self.use_tiling = use_tiling
    if not hasattr(self, "tile_sample_min_size"):
        self.tile_sample_min_size, self.tile_overlap_factor = self.config.sample_size, 0.25


def _disable_tiling(self: Any) -> None:
    """Encode and decode whole images again."""
    self.use_tiling = False


def _enable_slicing(self: Any) -> None:
    """Encode and decode the images of a batch one after another, as ``diffusers.AutoencoderKL.enable_slicing``: temporary memory
    is that of one image."""
    self.use_slicing = True


def _disable_slicing(self: Any) -> None:
    """Encode and decode batches at once again."""
    self.use_slicing = False


_OF_AN_AUTOENCODER = {
    "enable_tiling": _enable_tiling,
    "disable_tiling": _disable_tiling,
    "enable_slicing": _enable_slicing,
    "disable_slicing": _disable_slicing,
}


def _coded(self: Any, own: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """``encode`` or ``decode`` of an autoencoder: optimum's, for each tile and each image where these are on."""
    tiles, slices = getattr(self, "use_tiling", False), getattr(self, "use_slicing", False)
    encodes = own.__name__ == "encode"
    read, name = ("sample", "latent_dist") if encodes else ("latent_sample", "sample")
    more = named | dict(zip((read, "generator", "return_dict"), args, strict=False))
    images = more.pop(read, None)
    if not ((tiles or slices) and images is not None and len(images)):
        return own(self, *args, **named)
    given, made = torch.as_tensor(images), list[Any]()

    def run(part: Any) -> Any:
        made[:] = [own(self, torch.from_numpy(part), **(more | {"return_dict": True}))]
        found = made[0][name]
        return (found.parameters if encodes else found).numpy(force=True)

    def run_tiles(image: Any) -> Any:
        scale = 2 ** (len(self.config.block_out_channels) - 1)
        shared = int(self.tile_sample_min_size * self.tile_overlap_factor) // scale
        each = scale if encodes else 1
        return run_in_tiles(run, image, self.tile_sample_min_size // scale * each, shared * each, step=each)

    parts = [part.numpy(force=True) for part in (given.split(1) if slices else [given])]
    whole = np.concatenate([(run_tiles if tiles else run)(part) for part in parts])
    if encodes:
        made[0][name] = type(made[0][name])(torch.from_numpy(whole))
    else:
        made[0][name] = whole if isinstance(images, np.ndarray) else torch.from_numpy(whole)
    return made[0] if more.get("return_dict", True) else tuple(made[0].values())
