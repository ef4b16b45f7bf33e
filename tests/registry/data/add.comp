#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
// y[i] = x[i] + ADDEND; add.spv is this file compiled for Vulkan 1.3 with glslang
layout(local_size_x_id = 1) in;
layout(constant_id = 4) const int ADDEND = 1;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Ints { int values[]; };
layout(push_constant) uniform Arguments { uvec2 x; uvec2 y; uint n; } args;
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < args.n) Ints(args.y).values[i] = Ints(args.x).values[i] + ADDEND;
}
