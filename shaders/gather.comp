// Gather: y[o, j, i] = x[o, indices[j], i] with x [outer, axis, inner] in units of UNIT_T; rows of `inner` units.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 indices; WRITTEN y; WRITTEN fault; uint total; uint axis; \
    uint inner; uint inner_mul; uint inner_shift; uint count; uint count_mul; uint count_shift; uint fault_code; }
#include "args.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint PER_LANE = 1;  // units per lane, a workgroup's width apart
layout(constant_id = 5) const uint FROM_END = 1;
#define NEGATIVE (FROM_END != 0u)
#define FAULT 3
#include "indices.glsl"

TENSOR(UNIT_T, Units)

void main() {
    Units x = Units(operand(args.x, 0));
    IndexWords indices = IndexWords(operand(args.indices, 1));
    Units y = Units(operand(args.y, 2));
    uint id = flat_group() * gl_WorkGroupSize.x * PER_LANE + gl_LocalInvocationID.x;
    for (uint n = 0u; n < PER_LANE && id < args.total; ++n, id += gl_WorkGroupSize.x) {
        uint i, j;
        uint row = fast_divmod(id, args.inner, args.inner_mul, args.inner_shift, i);
        uint outer = fast_divmod(row, args.count, args.count_mul, args.count_shift, j);
        y.v[id] = x.v[(outer * args.axis + read_index(indices, j, args.axis)) * args.inner + i];
    }
}
