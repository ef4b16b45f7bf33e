// Copies `total` units of UNIT_T.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; uint total; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint PER_LANE = 1;  // units per lane, a workgroup's width apart

TENSOR(UNIT_T, Units)

void main() {
    Units x = Units(operand(args.x, 0));
    Units y = Units(operand(args.y, 1));
    uint id = flat_group() * gl_WorkGroupSize.x * PER_LANE + gl_LocalInvocationID.x;
    for (uint n = 0u; n < PER_LANE && id < args.total; ++n, id += gl_WorkGroupSize.x) y.v[id] = x.v[id];
}
