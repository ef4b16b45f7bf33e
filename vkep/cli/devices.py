"""``vkep devices``: the devices, their capabilities, and why a device cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from vkep.cli.common import FAILED, JsonFlag, VerboseOption, command, print_json

if TYPE_CHECKING:
    from gpu_shared.capabilities import DeviceInfo


def devices_command(json_output: JsonFlag = False, verbose: VerboseOption = 0) -> None:
    """List Vulkan devices: what each can do, and why one could not be used."""
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
            typer.echo(f"{device.index}: {first}{mark}")
            for line in [*rest, f"  UUID {device.capabilities.uuid}"]:
                typer.echo(f"   {line}")
            widths = in_words(device)
            if widths:
                typer.echo(
                    f"     in 32-bit words: types of {widths} bits, some of which it lacks; slower, nothing declines"
                )
            for problem in device.problems:
                typer.echo(f"     not usable: {problem}")
    if chosen is None:
        typer.echo("error: no device can be used", err=True)
        raise typer.Exit(FAILED)


def default_device(devices: list[DeviceInfo]) -> DeviceInfo | None:
    """The device that a session takes when none is named; None where none can be used."""
    from gpu_shared.errors import DeviceNotFoundError
    from gpu_shared.instance import select_device

    try:
        return select_device(devices)
    except DeviceNotFoundError:
        return None


def in_words(device: DeviceInfo) -> str:
    """The widths of element types that kernels compute with 32-bit words on a device, "" where it has all."""
    from vkep.shaders.words import widths_in_words

    return ", ".join(map(str, widths_in_words(device.capabilities.features)))


def device_to_dict(device: DeviceInfo, default: bool) -> dict[str, Any]:
    """Plain data: the capabilities, and ``usable``, ``problems``, ``default``, ``in_words``."""
    return {
        **device.capabilities.to_dict(),
        "usable": not device.problems,
        "problems": list(device.problems),
        "default": default,
        "in_words": in_words(device),
    }
