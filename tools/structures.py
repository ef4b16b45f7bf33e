"""Write ``registry/gpu_shared/_structures.py``: Vulkan structures that the ``vulkan`` package lacks, as compiled cffi types.

    python -m tools.structures

Their C text is `gpu_shared.vk.EXTRA_CDEF`. Parsing it would cost each process about 60 ms before its first device.
"""

from __future__ import annotations

from pathlib import Path

import cffi

from gpu_shared import vk

PATH = Path(__file__).parent.parent / "registry" / "gpu_shared" / "_structures.py"


def parsed() -> cffi.FFI:
    """The types, from their C text."""
    made = cffi.FFI()
    made.cdef(vk.EXTRA_CDEF)
    return made


def main() -> None:
    """Write the module."""
    made = parsed()
    made.set_source("gpu_shared._structures", None)
    made.emit_python_code(str(PATH))
    text = PATH.read_text(encoding="utf-8")
    first = '"""Made by ``python -m tools.structures`` from `gpu_shared.vk.EXTRA_CDEF`."""\n\n'
    PATH.write_text(first + text.split("\n", 1)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
