"""Two sessions on a Vulkan device that the application made.

    python examples/shared_context.py MODEL.onnx

An application that draws, or computes, with Vulkan already has an instance, a device and a queue. It registers them
under a token; every session that names the token runs on them. Nothing is created twice: the sessions share the
device, the memory arena, pipelines and weights.
"""

from __future__ import annotations

import sys

import gpu_shared
import vkep


def main(model: str) -> None:
    # The application's own Vulkan objects. Here gpu_shared creates them; any handles work (integers, ctypes, cffi), if
    # the device was created for Vulkan 1.3 with the features that are passed to `from_handles`.
    instance = gpu_shared.Instance("an application")
    device = gpu_shared.Device(instance)

    context = vkep.SharedGpuContext.from_handles(
        instance=instance.raw,
        physical_device=device.physical_device,
        device=device.raw,
        queue=device.queue,
        queue_family_index=device.queue_family,
        extensions=device.extensions,  # those enabled in vkCreateDevice
        features=device.features,
        token="an application",
    )
    registry = vkep.SharedGpuContextRegistry.get()
    registry.register_context(None, context)  # under its own key: ("an application", 0)

    # lookup_only: an error, not a second device, if the application had registered nothing.
    options = vkep.SessionOptions(token="an application", context_mode="lookup_only")
    with vkep.InferenceSession(model, options) as first, vkep.InferenceSession(model, options) as second:
        print(f"one context: {first.context is second.context is context}")
        print(f"on {context.capabilities.name}; the context owns the device: {context.owns_device}")
        print(f"Vulkan objects: {dict(sorted(vkep.live_counts().items()))}")
        with context.with_locked_queue():
            pass  # the application submits its own work to context.queue here

    registry.unregister_context(context.key)  # taken back: new sessions no longer find it
    context.close()  # and given up; the device lives on, it is the application's
    print(f"the device is open still: {not device.closed}")
    instance.close()  # with all that was made on it


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
