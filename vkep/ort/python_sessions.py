"""Additions to Python's ``onnxruntime.InferenceSession`` for plugin providers, installed while the provider is
registered.

ONNX Runtime reads ``device_id`` among provider options as the number of a hardware device (a PCI id) and uses the CPU
where none matches, and it has no options for the sessions of a plugin. One method is wrapped for both, and for programs
that name other providers, or none (`vkep.ort.programs`). In DLPack ``onnxruntime.OrtValue`` reports Vulkan memory as
CUDA's; that is fixed. Where Vulkan replaces CUDA's provider, its device's name means the Vulkan device too.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from types import ModuleType
from typing import Any

from vkep.arena.config import ArenaConfig
from vkep.ort import library
from vkep.ort.memory.values import device_maker, dlpack_methods, replaced_names
from vkep.ort.names import EP_NAME, users_operators
from vkep.ort.options import SESSION_PREFIX, EpOptions, as_texts
from vkep.session.ort_interface.foreign_options import translated
from vkep.session.ort_interface.options import NOT_REPLACED

logger = logging.getLogger("vkep.ort")

CPU = "CPUExecutionProvider"
#: a session entry that marks options with the users' operators added
_KNOWS_OPERATORS = "vkep.knows_operators"
_METHOD = "_create_inference_session"

#: names of providers that are replaced by Vulkan; "" means that no provider is named
replaced: set[str] = set()
_undo: list[Callable[[], None]] = []


def install(onnxruntime: ModuleType) -> None:
    """Wrap ``onnxruntime.InferenceSession``; a second call does nothing."""
    kind: Any = onnxruntime.InferenceSession
    original = getattr(kind, _METHOD, None)
    if _undo or original is None:
        if original is None:
            logger.warning(
                "onnxruntime %s makes its sessions in another way: device_id is its own, get_provider_options() has nothing "
                "of %s, and sessions that name other providers get those",
                onnxruntime.__version__,
                EP_NAME,
            )
        return

    def create(self: Any, providers: Any, provider_options: Any, *rest: Any, **more: Any) -> None:
        own, asked = self._sess_options, providers
        if not (own is not None and (_entry(own, NOT_REPLACED) or _writes_a_model(own, providers))):
            configured = own is not None and own.has_providers()
            providers, provider_options = rewritten(providers, provider_options, configured)
            # where options name the provider, ONNX Runtime itself requests its operators
            if not configured and EP_NAME in (providers or ()):
                self._sess_options = _knowing_operators(own, onnxruntime)
        original(self, providers, provider_options, *rest, **more)
        if EP_NAME in self._providers:
            given = dict(zip(providers or (), provider_options or (), strict=False)).get(EP_NAME, {})
            options = options_of(self._sess_options, given)
            self._provider_options = {**self._provider_options, EP_NAME: options}
            for name in _stood_for(asked, self._providers):  # some programs check that they got the requested provider
                self._providers.insert(self._providers.index(EP_NAME) + 1, name)
                self._provider_options[name] = options

    available, device = onnxruntime.get_available_providers, onnxruntime.get_device

    def get_available_providers() -> list[str]:
        """By their priority. ONNX Runtime puts plugins last, so a program that passes all would get the CPU."""
        names: list[str] = [name for name in available() if name != EP_NAME]
        if len(names) < len(available()):
            names.insert(0 if "" in replaced or CPU not in names else names.index(CPU), EP_NAME)
        return [*(n for n in sorted(replaced) if n and n not in names), *names]

    def get_device() -> str:  # some programs read it before they look at providers
        return "GPU" if replaced - {"", CPU} else str(device())

    _replace(kind, _METHOD, create)
    _replace(onnxruntime, "get_available_providers", get_available_providers)
    _replace(onnxruntime, "get_device", get_device)
    devices: Any = getattr(onnxruntime, "OrtDevice", None)
    if hasattr(devices, "make"):
        made = device_maker(onnxruntime, devices.make, lambda: replaced_names(replaced - {""}, available()))
        _replace(devices, "make", staticmethod(made))
    values: Any = onnxruntime.OrtValue
    own = [getattr(values, name, None) for name in ("__dlpack__", "__dlpack_device__")]
    if all(own):
        for name, method in dlpack_methods(*own).items():
            _replace(values, name, method)


def _replace(owner: Any, name: str, value: Any) -> None:
    _undo.append(functools.partial(setattr, owner, name, vars(owner)[name]))
    setattr(owner, name, value)


def remove() -> None:
    """Undo `install`."""
    while _undo:
        _undo.pop()()


def _writes_a_model(session_options: Any, providers: Any) -> bool:
    """Whether a session that does not name Vulkan is made to write its optimized model. ONNX Runtime cannot write
    nodes that a provider compiled, and the file is meant for the providers that the program names."""
    names = [entry[0] if isinstance(entry, tuple) and entry else entry for entry in providers or ()]
    return bool(session_options.optimized_model_filepath) and EP_NAME not in names


def _stood_for(asked: Any, given: Sequence[str]) -> list[str]:
    """The providers that a session requested and that Vulkan replaced, without the CPU provider, which is always
    present."""
    if EP_NAME not in given or not isinstance(asked, Sequence) or isinstance(asked, str):
        return []
    names = [entry[0] if isinstance(entry, tuple) and entry else entry for entry in asked]
    return [name for name in names if name in replaced - {"", CPU} and name not in given]


def rewritten(providers: Any, provider_options: Any, configured: bool = False) -> tuple[Any, Any]:
    """The ``providers`` and ``provider_options`` of a session: Vulkan in place of those that are `replaced`, and
    ``device_id`` renamed. Arguments that have none of ONNX Runtime's forms are returned unchanged, for ONNX Runtime to
    refuse. ``configured``: the session's options name providers."""
    if not providers:
        if "" in replaced and not configured:
            return [EP_NAME, CPU], None
        return providers, provider_options
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        return providers, provider_options
    names, options = [], []
    for entry in providers:
        name, own = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, {})
        if not isinstance(name, str) or not isinstance(own, Mapping):
            return providers, provider_options
        names.append(name)
        options.append(dict(own))
    if provider_options is not None:
        if len(provider_options) != len(names) or any(options):
            return providers, provider_options
        options = [dict(own or {}) for own in provider_options]
    if not replaced.intersection(names) and EP_NAME not in names:
        return names, options
    made: dict[str, dict[Any, Any]] = {}
    for name, own in zip(names, options, strict=True):
        if name in replaced and EP_NAME not in names:
            made.setdefault(EP_NAME, {} if name == CPU else _device_renamed(_without_first_device(own)))
        if name == EP_NAME:
            made[name] = _device_renamed(own)
        elif name not in replaced or name == CPU:
            made[name] = own
    return list(made), list(made.values())


def _without_first_device(options: dict[Any, Any]) -> dict[Any, Any]:
    """Options of another provider, whose device 0 is the best one: for vkep that is the default, not the index 0."""
    return {key: value for key, value in options.items() if key != "device_id" or str(value).strip() != "0"}


def _device_renamed(options: dict[Any, Any]) -> dict[Any, Any]:
    return {("device" if key == "device_id" else key): value for key, value in options.items()}


def _knowing_operators(options: Any, onnxruntime: ModuleType) -> Any:
    """``options`` (None: new ones) with the users' operators added. They are added once: an operator that is declared
    later needs other options."""
    if not users_operators():
        return options
    options = onnxruntime.SessionOptions() if options is None else options
    if _entry(options, _KNOWS_OPERATORS) is None:
        options.register_custom_ops_library(str(library.load().__file__))
        options.add_session_config_entry(_KNOWS_OPERATORS, "1")
    return options


def _entry(session_options: Any, key: str) -> str | None:
    with suppress(RuntimeError):  # not set
        return str(session_options.get_session_config_entry(key))
    return None


def options_of(session_options: Any, given: Mapping[Any, Any]) -> dict[str, str]:
    """The provider's options of a session, as texts: those ``given`` with its providers, else the entries of its
    options."""
    options = as_texts(EpOptions())
    for name in (*(f.name for f in fields(EpOptions)), *ArenaConfig().to_options()):
        text = _entry(session_options, SESSION_PREFIX + name)
        if text is not None:
            options[name] = text
    return options | translated({str(key): str(value) for key, value in given.items()}, say=False)
