// The mean and 1 / sqrt(variance + epsilon) of rows, from the moments (moments.glsl) of their parts.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN mean; WRITTEN inv_std; uint rows; uint parts; float epsilon; }
#include "args.glsl"
#include "moments.glsl"

layout(constant_id = 4) const uint RMS = 0;  // around 0 instead of the mean

void main() {
    uint row = flat_group(), lane = gl_LocalInvocationID.x;
    if (row >= args.rows) return;
    Floats parts = Floats(operand(args.x, 0));
    vec3 found = vec3(0.0);
    for (uint k = lane; k < args.parts; k += gl_WorkGroupSize.x) {
        uint at = (row * args.parts + k) * 3u;
        found = joined(found, vec3(parts.v[at], parts.v[at + 1u], parts.v[at + 2u]));
    }
    found = all_joined(found, lane, gl_WorkGroupSize.x);
    if (lane != 0u) return;
    float squares = found.z / found.x + (RMS != 0u ? found.y * found.y : 0.0);
    Floats(operand(args.mean, 1)).v[row] = RMS != 0u ? 0.0 : found.y;
    Floats(operand(args.inv_std, 2)).v[row] = 1.0 / sqrt(squares + args.epsilon);
}
