// GatherElements: y[c] = x[c with its AXIS coordinate replaced by indices[c]]; y and indices have the shape `dims`, x has
// strides `strides` and `extent` along AXIS.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define ARGS_BODY { uvec2 x; uvec2 indices; WRITTEN y; WRITTEN fault; uint total; uint extent; \
    FIELDS8(dim) FIELDS8(mul) FIELDS8(shift) FIELDS8(stride) uint fault_code; }
#include "args.glsl"
#include "fastdiv.glsl"
#define FAULT 3
#include "indices.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint RANK = 1;
layout(constant_id = 5) const uint AXIS = 0;

TENSOR(UNIT_T, Units)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint dims[8] = READ8(dim), muls[8] = READ8(mul), shifts[8] = READ8(shift), strides[8] = READ8(stride), at[8];
    COORDINATES(RANK, id, dims, muls, shifts, at)
    at[AXIS] = read_index(IndexWords(operand(args.indices, 1)), id, args.extent);
    uint from = 0u;
    [[unroll]] for (uint d = 0u; d < RANK; ++d) from += at[d] * strides[d];
    Units(operand(args.y, 2)).v[id] = Units(operand(args.x, 0)).v[from];
}
