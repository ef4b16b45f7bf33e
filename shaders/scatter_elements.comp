// ScatterElements into y, which holds a copy of the data: y[c with its AXIS coordinate replaced by indices[c]] takes
// updates[c]. updates and indices are contiguous with shape `dims`, y has strides `strides` and `extent` along AXIS.
//
// Duplicates occur along AXIS only. With a reduction a lane applies all updates along AXIS in order, which needs no atomics and
// is deterministic. Without one (PER_UPDATE) a lane applies one update. With PER_UPDATE `dims` is the full shape, otherwise the
// shape with AXIS set to 1.
// Defines: IN_T, COMPUTE_T, REDUCE(old, new).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define ARGS_BODY { uvec2 updates; uvec2 indices; WRITTEN y; WRITTEN fault; uint total; uint extent; uint count; \
    FIELDS8(dim) FIELDS8(mul) FIELDS8(shift) FIELDS8(stride) FIELDS8(update_stride) uint fault_code; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint RANK = 1;
layout(constant_id = 5) const uint AXIS = 0;
layout(constant_id = 6) const uint FROM_END = 1;
#define NEGATIVE (FROM_END != 0u)
#define FAULT 3
#include "indices.glsl"

COMPUTE_T combined(COMPUTE_T a, COMPUTE_T b) { return REDUCE; }

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    InTensor updates = InTensor(operand(args.updates, 0));
    IndexWords indices = IndexWords(operand(args.indices, 1));
    OutTensor y = OutTensor(operand(args.y, 2));
    uint dims[8] = READ8(dim), muls[8] = READ8(mul), shifts[8] = READ8(shift), at[8];
    uint strides[8] = READ8(stride), update_strides[8] = READ8(update_stride);
    COORDINATES(RANK, id, dims, muls, shifts, at)
    uint from = 0u, base = 0u;
    [[unroll]] for (uint d = 0u; d < RANK; ++d) {
        from += at[d] * update_strides[d];
        base += d == AXIS ? 0u : at[d] * strides[d];
    }
    for (uint n = 0u; n < args.count; ++n, from += update_strides[AXIS]) {
        uint to = base + read_index(indices, from, args.extent) * strides[AXIS];
#ifdef REPLACE
        y.v[to] = OUT_T(updates.v[from]);
#else
        y.v[to] = store_element(combined(load_element(OUT_T(y.v[to])), load_element(updates.v[from])));
#endif
    }
}
