// ScatterND into y, which holds a copy of the data: y[indices[j] ..., i] takes updates[j, i], with updates [count, inner]
// and indices [count, KEYS]; extents and strides are those of y's indexed dimensions, in rows of `inner` elements.
//
// With a reduction `total` columns have `count` updates each. With REPLACE `total` lanes store PER_LANE units each, and `inner` is
// in as many units.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define ARGS_BODY { uvec2 updates; uvec2 indices; WRITTEN y; WRITTEN fault; uint total; \
    uint inner; uint inner_mul; uint inner_shift; uint count; FIELDS8(extent) FIELDS8(stride) uint fault_code; }
#include "args.glsl"
#include "fastdiv.glsl"
#define FAULT 3
#include "indices.glsl"
#include "scatter.glsl"

layout(constant_id = 4) const uint KEYS = 1;
layout(constant_id = 5) const uint PER_LANE = 1;

uvec2 updates, indices, y;
uint extents[8], strides[8], column;

uint place_of(uint row) {
    uint place = 0u;
    [[unroll]] for (uint d = 0u; d < KEYS; ++d) place += read_index(IndexWords(indices), row * KEYS + d, extents[d]) * strides[d];
    return place;
}

#ifndef REPLACE
void put(uint place, uint row) {
    uint to = place * args.inner + column;
    COMPUTE_T old = load_element(OutTensor(y).v[to]), update = load_element(InTensor(updates).v[row * args.inner + column]);
    OutTensor(y).v[to] = store_element(combined(old, update));
}
#endif

void main() {
    updates = operand(args.updates, 0);
    indices = operand(args.indices, 1);
    y = operand(args.y, 2);
    extents = READ8(extent);
    strides = READ8(stride);
#ifdef REPLACE
    uint id = flat_lane();
    if (id >= args.total) return;
    uint row = fast_divmod(id, args.inner, args.inner_mul, args.inner_shift, column);
    uint to = (place_of(row) * args.inner + column) * PER_LANE;
    [[unroll]] for (uint n = 0u; n < PER_LANE; ++n) OutTensor(y).v[to + n] = InTensor(updates).v[id * PER_LANE + n];
#else
    column = column_of_lane();
    apply_updates(args.count, column < args.total);
#endif
}
