"""Memory of devices: the arena's buffers, staging memory, uploads and results. The arithmetic is in `vkep.arena`.

This package imports no Vulkan. ``device_arena``, ``staging`` and ``upload`` are imported by their own names.
"""

from vkep.arena import *  # noqa: F403  # its names are public here too
from vkep.arena import __all__ as __all__
