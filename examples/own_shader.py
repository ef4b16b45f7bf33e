"""Compile a shader of one's own and run it on a shared context, without any model.

    python examples/own_shader.py

vkep.shaders compiles GLSL to SPIR-V (as `vkep shaders compile` does) and reads its interface; gpu_shared has the
Vulkan objects. Arguments are addresses and scalars in push constants: there are no descriptors.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np

import gpu_shared
from vkep.plan.records import ShaderVariant
from vkep.shaders import ShaderLibrary

SAXPY = """#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; uint n; float a; }
#include "args.glsl"
TENSOR(T, Tensor)

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= args.n) return;  // addresses know no bounds: the kernel keeps its own
    Tensor x = Tensor(operand(args.x, 0)), y = Tensor(operand(args.y, 1));
    y.v[i] = T(args.a) * x.v[i] + y.v[i];
}
"""
LANES = 64


def main(n: int = 1000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "saxpy.comp"
        source.write_text(SAXPY)
        # a GLSL error is a ShaderCompileError that quotes the line of saxpy.comp
        shader = ShaderLibrary().spirv(ShaderVariant(str(source), (("T", "float"),)))
    print("arguments:", ", ".join(f"{a.type} {a.name} at {a.offset}" for a in shader.reflection.arguments))

    spec = gpu_shared.SharedGpuCompileSpec(token="own shader")
    context = gpu_shared.SharedGpuContextRegistry.get().resolve(spec)
    with context.lease("saxpy") as lease:  # holds the context, and has a command pool of its own
        x = gpu_shared.Buffer(lease.device, 4 * n, "upload")
        y = gpu_shared.Buffer(lease.device, 4 * n, "download")  # host-visible and cached: read it back in place
        assert x.mapped is not None and y.mapped is not None, "these kinds of memory are mapped"
        xs, ys = np.frombuffer(x.mapped, np.float32), np.frombuffer(y.mapped, np.float32)
        xs[:], ys[:] = np.arange(n), 1.0

        module = gpu_shared.ShaderModule(lease.device, shader.words)
        layout = gpu_shared.PipelineLayout(lease.device, shader.reflection.push_constant_bytes)
        # spec constants: 0 is INDIRECT (0: addresses are direct), 1 to 3 are the workgroup size
        pipeline = gpu_shared.ComputePipeline(lease.device, layout, module, {0: 0, 1: LANES, 2: 1, 3: 1})

        commands = lease.allocate("saxpy").begin()
        commands.retain(x, y)  # reached by address only: keep them as long as the commands
        commands.bind_pipeline(pipeline)
        commands.push_constants(layout, struct.pack("<QQIf", x.address, y.address, n, 3.0))
        commands.dispatch(-(-n // LANES))
        commands.barrier_to_host()
        commands.end()
        lease.wait(lease.submit(lease.prepare([commands])))

        y.invalidate()  # nothing to do on coherent memory
        right = bool(np.array_equal(ys, 3.0 * np.arange(n, dtype=np.float32) + 1.0))
        print(f"3 * x + y on {context.capabilities.name}: {'right' if right else 'WRONG'}, y = {ys[:4]} ...")
    if not right:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
