"""Kompute (kp) shaders as operators of a model: register one, and later sessions run its nodes with kp.

    pip install 'vkep[kompute]'          # or tools/build_kp.sh where kp must be built from source

A region of such nodes runs on kp's own VkInstance and VkDevice, since kp cannot take an existing one: its inputs and
outputs pass through the host. `InferenceSession.report` has the bytes and times. vkep's own shaders stay on vkep's
device (docs/adding-an-operator.md, "An operator of your own"); this module is for existing kp code.
"""

from __future__ import annotations

import os
from pathlib import Path

from vkep.placement.kompute import (
    TYPES,
    Dispatch,
    KpDispatch,
    KpOperator,
    KpTensor,
    Outputs,
    available,
    declare,
    forget,
    one_group_an_element,
)

__all__ = ["TYPES", "KpDispatch", "KpTensor", "available", "register_kp_operator", "unregister_kp_operator"]


def register_kp_operator(
    op_type: str,
    *,
    domain: str,
    shader: bytes | str | os.PathLike[str],
    outputs: Outputs,
    dispatch: Dispatch = one_group_an_element,
) -> None:
    """Run the nodes ``domain.op_type`` with a kp shader.

    ``shader`` is SPIR-V (bytes), a ``.spv`` file, or a GLSL file. It binds the node's inputs, then its outputs, as
    storage buffers of set 0 from binding 0 on, as kp does with an algorithm's tensors (float32, int32, uint32,
    float64). ``outputs(inputs, attributes)`` gives a `KpTensor` (dtype and shape) for each output, ``dispatch(inputs,
    outputs, attributes)`` a `KpDispatch`: workgroups, push constants, specialization constants; without it a workgroup
    runs for each element of the first output. vkep compiles GLSL for Vulkan 1.3; kp asks its driver for 1.1: pass
    SPIR-V for 1.1 where a driver rejects newer code.

    Raises ``ValueError`` for a name that is taken or a domain of ONNX's, ``FileNotFoundError`` for a file that does not
    exist.
    """
    code: bytes | Path
    if isinstance(shader, (bytes, bytearray, memoryview)):
        code = bytes(shader)
        if code[:4] != b"\x03\x02\x23\x07":
            raise ValueError(
                f"shader: {len(code)} bytes starting with {code[:4].hex()} are no SPIR-V; a file is given by path"
            )
    else:
        code = Path(shader).absolute()
        if not code.is_file():
            raise FileNotFoundError(f"shader: there is no file {code}")
    declare(KpOperator(domain, op_type, code, outputs, dispatch))


def unregister_kp_operator(op_type: str, *, domain: str) -> None:
    """Undo a registration; open sessions keep it. Raises ``KeyError`` where there is none."""
    forget(domain, op_type)
