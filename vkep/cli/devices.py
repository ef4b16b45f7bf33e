"""``vkep devices``: the devices, their capabilities, and why a device is unusable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from vkep.cli.common import FAILED, JsonFlag, VerboseOption, command, echo, print_json

_WORDS = "computed exactly with pairs of 32-bit words, which takes more instructions"
_TAKEN_OUT = "elements are taken out of 32-bit words, and written with two atomic operations where lanes share a word"
#: the cost of a feature that a device lacks; features that are not listed cost nothing
COSTS: Mapping[str, str] = {
    "int64": _WORDS,
    "float64": _WORDS,
    "int8": _TAKEN_OUT,
    "storage_8bit": _TAKEN_OUT,
    "int16": _TAKEN_OUT,
    "storage_16bit": _TAKEN_OUT,
    "float16": f"{_TAKEN_OUT}; arithmetic is of float32",
    "subgroup_shuffle": "lanes combine through shared memory; float16 attention without cooperative matrices",
    "subgroup_arithmetic": "a CPU driver writes the scores of attention to memory",
    "subgroup_ballot": "a CPU driver gets the matrix tiles of GPUs",
    "subgroup_size_control": "where the driver may choose among sizes of subgroups, lanes combine through shared memory",
    "integer_dot_product": "packed weights of few rows are unpacked before their products",
    "cooperative_matrix": "float16 products, convolutions and attention from shared memory, in float32",
}


if TYPE_CHECKING:
    from gpu_shared.capabilities import DeviceInfo


def devices_command(json_output: JsonFlag = False, verbose: VerboseOption = 0) -> None:
    """List Vulkan devices with their capabilities, and why one is unusable."""
    with command(json_output, verbose):
        import vkep

        devices = vkep.devices()
        chosen = default_device(devices)
    if json_output:
        print_json({"devices": [device_to_dict(d, d is chosen) for d in devices]})
    else:
        for device in devices:
            mark = "  (default)" if device is chosen else ""
            first, *rest = str(device.capabilities).splitlines()
            echo(f"{device.index}: {first}{mark}")
            for line in [*rest, f"  UUID {device.capabilities.uuid}"]:
                echo(f"   {line}")
            widths = in_words(device)
            if widths:
                echo(f"     in 32-bit words: types of {widths} bits, some of which it lacks")
            lacking = costs(device)
            for feature, cost in lacking.items():
                echo(f"     lacks {feature}: {cost}")
            if lacking:
                echo("     every operator runs without these features")
            for problem in device.problems:
                echo(f"     not usable: {problem}")
    if chosen is None:
        echo("error: no device can be used", err=True)
        raise typer.Exit(FAILED)


def default_device(devices: list[DeviceInfo]) -> DeviceInfo | None:
    """Return the device that a session uses when none is named; None where no device is usable."""
    from gpu_shared.errors import DeviceNotFoundError
    from gpu_shared.instance import select_device

    try:
        return select_device(devices)
    except DeviceNotFoundError:
        return None


def in_words(device: DeviceInfo) -> str:
    """The bit widths of element types that kernels emulate with 32-bit words on a device; "" where it has all of
    them."""
    from vkep.shaders.words import widths_in_words

    return ", ".join(map(str, widths_in_words(device.capabilities.features)))


def costs(device: DeviceInfo) -> dict[str, str]:
    """What each feature costs that a device lacks, by its name. No operator declines for any of them."""
    return {name: cost for name, cost in COSTS.items() if name not in device.capabilities.features}


def device_to_dict(device: DeviceInfo, default: bool) -> dict[str, Any]:
    """Plain data: the capabilities, and ``usable``, ``problems``, ``default``, ``in_words``, ``costs``."""
    return {
        **device.capabilities.to_dict(),
        "usable": not device.problems,
        "problems": list(device.problems),
        "default": default,
        "in_words": in_words(device),
        "costs": costs(device),
    }
