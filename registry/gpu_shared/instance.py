"""The Vulkan instance, its validation messages, and the list of devices."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_shared import query, steady, vk
from gpu_shared.capabilities import REQUIRED_FEATURES, DeviceCapabilities, DeviceInfo
from gpu_shared.errors import DeviceNotFoundError, DriverNotFoundError, GpuError
from gpu_shared.handles import Handle
from gpu_shared.layers import EMULATION_LAYERS, LAYERS_OWN_ERRORS, VALIDATION_OWN_ERRORS, layer_search

logger = logging.getLogger("gpu_shared.validation")

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
#: with the value 1 every instance created without an explicit ``validation`` enables core and synchronization
#: validation
VALIDATION_VARIABLE = "VKEP_VALIDATION"
DEVICE_VARIABLE = "VKEP_DEVICE"
DEFAULT_ORDER = ("discrete", "integrated", "virtual", "cpu", "other")

_FEATURE_ENABLE_SYNCHRONIZATION = 4  # VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
_SEVERITIES = {0x1: "verbose", 0x10: "info", 0x100: "warning", 0x1000: "error"}
_LOG_LEVELS = {"verbose": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_TYPES = {0x1: "general", 0x2: "validation", 0x4: "performance"}


@dataclass(frozen=True)
class ValidationMessage:
    """One message of the validation layers: severity ``warning`` or ``error``, types, the message's identifier, its
    text.
    """

    severity: str
    types: tuple[str, ...]
    message_id: str
    text: str


#: every message that any instance of this process received, in order (a test suite asserts that it stays empty)
validation_log: list[ValidationMessage] = []


def validation_wanted() -> bool:
    """The value of the environment variable VKEP_VALIDATION. Raises ``ValueError`` for a value that is neither 0 nor
    1."""
    value = os.environ.get(VALIDATION_VARIABLE, "").strip().lower()
    if value in ("", "0", "false", "off", "no"):
        return False
    if value in ("1", "true", "on", "yes"):
        return True
    raise ValueError(f"the environment variable {VALIDATION_VARIABLE} is {value!r}, expected 1 or 0")


class Instance(Handle):
    """A Vulkan 1.3 instance.

    ``layers`` are instance layers in order, outermost first, ``layer_paths`` folders with manifests in addition to the
    loader's own; ``validation`` (None: the value of VKEP_VALIDATION) adds the Khronos layer with core and
    synchronization checks and collects its messages in ``messages``; with the emulation layers, their own error
    (`gpu_shared.layers.LAYERS_OWN_ERRORS`) goes to ``excused``. Raises `DriverNotFoundError`, and `GpuError` naming a
    layer or extension that is not installed.
    """

    kind = "instance"

    def __init__(
        self,
        app_name: str = "gpu_shared",
        *,
        layers: Sequence[str] = (),
        layer_paths: Sequence[str | os.PathLike[str]] = (),
        extensions: Sequence[str] = (),
        validation: bool | None = None,
        label: str = "instance",
    ) -> None:
        self.validation = validation_wanted() if validation is None else validation
        self.messages: list[ValidationMessage] = []
        self.excused: list[ValidationMessage] = []
        vk.mark_used()
        vk.load()
        layers, extensions = list(dict.fromkeys(layers)), list(dict.fromkeys(extensions))
        if self.validation and VALIDATION_LAYER not in layers:
            layers.append(VALIDATION_LAYER)
        if VALIDATION_LAYER in layers:
            steady.settle(30)  # many of these layers may crash where another thread destroys a device meanwhile
        self.layers = tuple(layers)
        apple = sys.platform == "darwin"
        available: set[str] = set()
        if (
            layers or extensions or apple
        ):  # listing makes the loader open every driver, which is not needed where no layer is wanted
            with layer_search(layer_paths):
                available = _check_layers(layers)
        flags, chain = 0, []
        if apple and "VK_KHR_portability_enumeration" in available:
            extensions.append("VK_KHR_portability_enumeration")
            flags = vk.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
        callback: Any = None
        if self.validation:
            extensions.append("VK_EXT_debug_utils")
            emulated = bool(set(EMULATION_LAYERS) & set(layers))
            callback = _message_callback(self.messages, self.excused if emulated else None)
            chain.append(_messenger_info(callback))
            if "VK_EXT_validation_features" in available:
                extensions.append("VK_EXT_validation_features")
                chain.append(
                    vk.make(
                        "VkValidationFeaturesEXT",
                        enabledValidationFeatureCount=1,
                        pEnabledValidationFeatures=[_FEATURE_ENABLE_SYNCHRONIZATION],
                    )
                )
        extensions = list(dict.fromkeys(extensions))
        missing = [name for name in extensions if name not in available]
        if missing:
            raise GpuError(
                "vkCreateInstance",
                "VK_ERROR_EXTENSION_NOT_PRESENT",
                label,
                f"no driver or layer has {', '.join(missing)}",
            )
        app = vk.make(
            "VkApplicationInfo", pApplicationName=app_name, pEngineName="gpu_shared", apiVersion=vk.API_VERSION_1_3
        )
        info = vk.make(
            "VkInstanceCreateInfo",
            flags=flags,
            pApplicationInfo=app,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=layers,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=extensions,
        )
        vk.chain(info, *chain)
        out = vk.out("VkInstance")
        with layer_search(layer_paths):
            vk.check(vk.lib.vkCreateInstance(info.ptr, vk.ffi.NULL, out), "vkCreateInstance", label)
        raw = out[0]
        fn = vk.instance_functions(raw, label)
        messenger = vk.out("VkDebugUtilsMessengerEXT")
        if callback is not None:
            chain[0].ptr.pNext = vk.ffi.NULL
            vk.check(
                fn.vkCreateDebugUtilsMessengerEXT(raw, chain[0].ptr, vk.ffi.NULL, messenger),
                "vkCreateDebugUtilsMessengerEXT",
                label,
            )

        def destroy(callback: Any = callback) -> None:  # holds the callback: the layer calls it until the end
            if callback is not None:
                fn.vkDestroyDebugUtilsMessengerEXT(raw, messenger[0], vk.ffi.NULL)
            _keep_driver_loaded()
            fn.vkDestroyInstance(raw, vk.ffi.NULL)

        super().__init__(raw, parent=None, destroy=destroy, label=label)
        self.fn = fn
        self.owned = True
        self.debug_names = callback is not None

    @classmethod
    @steady.steady
    def borrow(cls, raw: Any, *, owned: bool = False, label: str = "borrowed instance") -> Instance:
        """Wrap an application's VkInstance (int, ctypes or cffi). It is destroyed at the end only when ``owned``."""
        vk.mark_used()
        raw = vk.handle("VkInstance", raw)
        self = cls.__new__(cls)
        fn = vk.instance_functions(raw, label)
        self.validation, self.messages, self.layers, self.debug_names = False, [], (), False
        self.excused = []
        Handle.__init__(
            self,
            raw,
            parent=None,
            destroy=(lambda: fn.vkDestroyInstance(raw, vk.ffi.NULL)) if owned else None,
            label=label,
        )
        self.fn = fn
        self.owned = owned
        return self

    def physical_devices(self) -> list[Any]:
        """Raw VkPhysicalDevices, in the driver's order. Raises `DriverNotFoundError` when there are none."""
        call = "vkEnumeratePhysicalDevices"
        try:
            found = vk.enumerate_all(self.fn.vkEnumeratePhysicalDevices, (self.raw,), "VkPhysicalDevice", call)
        except GpuError as error:
            if error.result != "VK_ERROR_INITIALIZATION_FAILED":
                raise
            found = []
        if not len(found):
            raise DriverNotFoundError(call, label=self.label, hint=f"the loader found no device: {vk.INSTALL_HINT}")
        return list(found)

    def devices(self) -> list[DeviceInfo]:
        """The devices, in the driver's order."""
        found = (query.capabilities(self.fn, raw, index) for index, raw in enumerate(self.physical_devices()))
        return [DeviceInfo(one, tuple(device_problems(one))) for one in found]


def device_problems(capabilities: DeviceCapabilities) -> Iterable[str]:
    """Why the runtime cannot use a device; empty when it can."""
    if capabilities.api_version < query.API_1_3:
        yield f"Vulkan {'.'.join(map(str, capabilities.api_version))}, 1.3 is needed"
    missing = REQUIRED_FEATURES - capabilities.features
    if missing:
        yield f"misses {', '.join(sorted(missing))}"
    if not any("compute" in family.flags for family in capabilities.queue_families):
        yield "has no compute queue"


def list_devices() -> list[DeviceInfo]:
    """The machine's Vulkan devices, usable or not. Opens an instance and closes it. Raises `DriverNotFoundError`."""
    with Instance("gpu_shared list", validation=False) as instance:
        return instance.devices()


def select_device(
    devices: Sequence[DeviceInfo], selector: int | str | DeviceInfo | DeviceCapabilities | None = None
) -> DeviceInfo:
    """Choose by index, UUID (32 hexadecimal digits, dashes allowed) or part of the name (any case).

    None takes the environment variable VKEP_DEVICE, else the first usable one in the order discrete, integrated,
    virtual, CPU. Where several match a name, that order decides too. Raises `DeviceNotFoundError` that lists the
    available devices, ``TypeError`` for a selector of another type.
    """
    source = "the device"
    if isinstance(selector, (DeviceInfo, DeviceCapabilities)):
        selector = selector.index if not (uuid := _uuid_of(selector)) else uuid
    if selector is None and os.environ.get(DEVICE_VARIABLE, "").strip():
        selector, source = os.environ[DEVICE_VARIABLE].strip(), f"the environment variable {DEVICE_VARIABLE}"
    if selector is not None and (isinstance(selector, bool) or not isinstance(selector, (int, str))):
        raise TypeError(f"device is {selector!r}, expected an index, a UUID, part of a name or None")
    if isinstance(selector, str) and selector.isdecimal() and len(selector) < 5:
        selector = int(selector)
    ranked = sorted(devices, key=lambda d: DEFAULT_ORDER.index(d.capabilities.device_type))
    if selector is None:
        matches = ranked
    elif isinstance(selector, int):
        matches = [device for device in ranked if device.index == selector]
    else:
        uuid = selector.replace("-", "").lower()
        matches = [d for d in ranked if d.capabilities.uuid == uuid] or [
            d for d in ranked if selector.lower() in d.name.lower()
        ]
    usable = [device for device in matches if not device.problems]
    if usable:
        return usable[0]
    there = "; ".join(
        f"{d.index}: {d.name} ({d.capabilities.device_type}, {d.capabilities.uuid}"
        + (f", not usable: {', '.join(d.problems)})" if d.problems else ")")
        for d in devices
    )
    what = "no usable device" if selector is None else f"no usable device matches {source} {selector!r}"
    raise DeviceNotFoundError("selecting a device", hint=f"{what}; there are: {there or 'none'}")


#: a bare VkInstance that is never destroyed, made before the first real one is
_anchor: Any = None
_process_ends = False


def _keep_driver_loaded() -> None:
    """The loader unloads the driver with the last instance. NVIDIA's driver (580) does not support that: threads that
    used it crash when they end later (their thread-local destructors are unloaded), and after some tens of reloads it
    cannot be loaded again."""
    global _anchor
    if _anchor is not None or _process_ends:
        return
    app = vk.make("VkApplicationInfo", apiVersion=vk.API_VERSION_1_3)
    info = vk.make("VkInstanceCreateInfo", pApplicationInfo=app)
    out = vk.out("VkInstance")
    if vk.lib.vkCreateInstance(info.ptr, vk.ffi.NULL, out) == 0:
        _anchor = out[0]


def _on_exit() -> None:
    """No anchor is needed at the process's exit."""
    global _process_ends
    _process_ends = True


steady.at_exit(_on_exit)


def _uuid_of(chosen: DeviceInfo | DeviceCapabilities) -> str:
    return (chosen.capabilities if isinstance(chosen, DeviceInfo) else chosen).uuid


def _check_layers(layers: Sequence[str]) -> set[str]:
    """Names of the instance extensions that these layers have."""
    found = vk.enumerate_all(
        vk.lib.vkEnumerateInstanceLayerProperties, (), "VkLayerProperties", "vkEnumerateInstanceLayerProperties"
    )
    installed = {vk.text(layer.layerName) for layer in found}
    missing = [name for name in layers if name not in installed]
    if missing:
        hint = f"not installed: {', '.join(missing)}; installed: {', '.join(sorted(installed)) or 'none'}"
        if VALIDATION_LAYER in missing:
            hint += " (Debian and Ubuntu: the package vulkan-validationlayers)"
        raise GpuError("vkCreateInstance", "VK_ERROR_LAYER_NOT_PRESENT", "instance", hint)
    names: set[str] = set()
    for layer in (vk.ffi.NULL, *(name.encode() for name in layers)):
        try:
            extensions = vk.enumerate_all(
                vk.lib.vkEnumerateInstanceExtensionProperties,
                (layer,),
                "VkExtensionProperties",
                "vkEnumerateInstanceExtensionProperties",
            )
        except GpuError:
            if layer != vk.ffi.NULL:
                raise
            continue  # no driver at all: the error of vkCreateInstance is better
        names.update(vk.text(item.extensionName) for item in extensions)
    return names


def _message_callback(messages: list[ValidationMessage], excused: list[ValidationMessage] | None = None) -> Any:
    """``excused`` takes the emulation layers' own errors; None: the layers are not used, and no error is excused."""

    def on_message(severity: int, types: int, data: Any, user: Any) -> int:
        name = _SEVERITIES.get(int(severity), "error")
        message_id = vk.text(data.pMessageIdName) if data.pMessageIdName else ""
        kinds = tuple(kind for bit, kind in _TYPES.items() if types & bit)
        message = ValidationMessage(name, kinds, message_id, vk.text(data.pMessage) if data.pMessage else "")
        if excused is not None and message_id in LAYERS_OWN_ERRORS and not _named(data):
            excused.append(message)
            return 0
        level = logging.DEBUG if message_id in VALIDATION_OWN_ERRORS else _LOG_LEVELS[name]
        logger.log(level, "%s: %s", message.message_id, message.text)
        if "validation" in kinds or "performance" in kinds:  # the loader's own messages are "general"
            messages.append(message)
            validation_log.append(message)
        return 0

    return vk.ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", on_message)


def _named(data: Any) -> bool:
    """Whether a message is about an object with a name: all of this runtime's shader modules and pipelines have one."""
    return any(data.pObjects[i].pObjectName for i in range(data.objectCount))


def _messenger_info(callback: Any) -> vk.Struct:
    return vk.make(
        "VkDebugUtilsMessengerCreateInfoEXT",
        messageSeverity=0x1000 | 0x100,
        messageType=0x1 | 0x2 | 0x4,
        pfnUserCallback=callback,
    )
