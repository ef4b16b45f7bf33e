// The mean and 1 / sqrt(variance + epsilon) of rows, from the moments (moments.glsl) of their parts; or with EACH_CHANNEL, of rows
// that are groups of `each` channels, the factor and the shift of each channel: x * factor + shift is the group norm.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN mean; WRITTEN inv_std; uvec2 scale; uvec2 bias; WRITTEN factor; WRITTEN shift; \
    uint rows; uint parts; float epsilon; uint groups; uint each; }
#include "args.glsl"
#include "elements.glsl"
#include "moments.glsl"

layout(constant_id = 4) const uint RMS = 0;  // around 0 instead of the mean
layout(constant_id = 5) const uint EACH_CHANNEL = 0;

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
    float squares = found.z / found.x + (RMS != 0u ? found.y * found.y : 0.0);
    if (EACH_CHANNEL != 0u) {
        float inv_std = 1.0 / sqrt(squares + args.epsilon);
        for (uint e = lane; e < args.each; e += gl_WorkGroupSize.x) {
            uint c = row % args.groups * args.each + e;
            float factor = inv_std * load_element(InTensor(operand(args.scale, 3)).v[c]);
            Floats(operand(args.factor, 5)).v[row * args.each + e] = factor;
            Floats(operand(args.shift, 6)).v[row * args.each + e] = load_element(InTensor(operand(args.bias, 4)).v[c]) - found.y * factor;
        }
        return;
    }
    if (lane != 0u) return;
    Floats(operand(args.mean, 1)).v[row] = RMS != 0u ? 0.0 : found.y;
    Floats(operand(args.inv_std, 2)).v[row] = 1.0 / sqrt(squares + args.epsilon);
}
