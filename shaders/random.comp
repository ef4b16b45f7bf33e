// Counter-based random numbers: element i is a function of the seed and i alone (Philox-4x32-10, Salmon et al., SC 2011).
// NORMAL 0: uniform in [shift, shift + scale); 1: normal with mean `shift` and standard deviation `scale` (Box-Muller).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { WRITTEN y; uvec2 fresh; uint total; uint seed_low; uint seed_high; float shift; float scale; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint NORMAL = 0;
layout(constant_id = 5) const uint HAS_FRESH = 0;

TENSOR(float, Values)
TENSOR(uint, Words)

uvec4 philox(uvec4 counter, uvec2 key) {
    for (uint round = 0u; round < 10u; ++round) {
        uint high0, low0, high1, low1;
        umulExtended(0xD2511F53u, counter.x, high0, low0);
        umulExtended(0xCD9E8D57u, counter.z, high1, low1);
        counter = uvec4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

void main() {
    uint first = 4u * flat_lane();
    if (first >= args.total) return;
    uvec2 seed = uvec2(args.seed_low, args.seed_high);
    if (HAS_FRESH != 0u) {
        Words fresh = Words(operand(args.fresh, 1));
        seed ^= uvec2(fresh.v[0], fresh.v[1]);
    }
    uvec4 bits = philox(uvec4(first / 4u, 0u, 0u, 0u), seed);
    vec4 unit = vec4(bits >> 8) * (1.0 / 16777216.0);
    if (NORMAL != 0u) {
        vec2 radius = sqrt(-2.0 * log(1.0 - unit.xz));  // 1 - u is never 0
        vec2 angle = 6.283185307179586 * unit.yw;
        unit = vec4(radius.x * cos(angle.x), radius.x * sin(angle.x), radius.y * cos(angle.y), radius.y * sin(angle.y));
    }
    Values y = Values(operand(args.y, 0));
    for (uint k = 0u; k < 4u && first + k < args.total; ++k) y.v[first + k] = args.shift + args.scale * unit[k];
}
