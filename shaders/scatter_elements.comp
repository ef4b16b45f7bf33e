// ScatterElements into y, which holds a copy of the data: y[c with its AXIS coordinate replaced by indices[c]] takes
// updates[c]. updates and indices are contiguous, y has strides `strides` and `extent` along AXIS.
//
// Duplicates occur along AXIS only. With a reduction `total` columns along AXIS have `count` updates each, and `dims` is the shape
// of the updates with AXIS set to 1. With REPLACE a lane stores one update, and `dims` is their shape.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define ARGS_BODY { uvec2 updates; uvec2 indices; WRITTEN y; WRITTEN fault; uint total; uint extent; uint count; \
    FIELDS8(dim) FIELDS8(mul) FIELDS8(shift) FIELDS8(stride) FIELDS8(update_stride) uint fault_code; }
#include "args.glsl"
#include "fastdiv.glsl"

layout(constant_id = 4) const uint RANK = 1;
layout(constant_id = 5) const uint AXIS = 0;
layout(constant_id = 6) const uint FROM_END = 1;
#define NEGATIVE (FROM_END != 0u)
#define FAULT 3
#include "indices.glsl"
#include "scatter.glsl"

uvec2 updates, indices, y;
uint from, base, extent, stride, update_stride;  // of the lane's first update, of its column in y; along AXIS

uint place_of(uint n) { return read_index(IndexWords(indices), from + n * update_stride, extent); }

void put(uint place, uint n) {
    uint to = base + place * stride, source = from + n * update_stride;
#ifdef REPLACE
    OutTensor(y).v[to] = InTensor(updates).v[source];
#else
    COMPUTE_T old = load_element(OutTensor(y).v[to]), update = load_element(InTensor(updates).v[source]);
    OutTensor(y).v[to] = store_element(combined(old, update));
#endif
}

void main() {
    updates = operand(args.updates, 0);
    indices = operand(args.indices, 1);
    y = operand(args.y, 2);
#ifdef REPLACE
    uint id = flat_lane();
#else
    uint id = column_of_lane();
#endif
    bool live = id < args.total;
    uint dims[8] = READ8(dim), muls[8] = READ8(mul), shifts[8] = READ8(shift), at[8];
    uint strides[8] = READ8(stride), update_strides[8] = READ8(update_stride);
    COORDINATES(RANK, live ? id : 0u, dims, muls, shifts, at)
    from = base = 0u;
    [[unroll]] for (uint d = 0u; d < RANK; ++d) {
        from += at[d] * update_strides[d];
        base += d == AXIS ? 0u : at[d] * strides[d];
    }
    extent = args.extent;
    stride = strides[AXIS];
    update_stride = update_strides[AXIS];
#ifdef REPLACE
    if (live) put(place_of(0u), 0u);
#else
    apply_updates(args.count, live);
#endif
}
