// ScatterND into y, which holds a copy of the data: y[indices[j] ..., i] takes updates[j, i], with updates [count, inner]
// and indices [count, KEYS]; extents and strides are those of y's indexed dimensions.
//
// With a reduction a lane computes column i and applies all updates in order: duplicates are valid, without atomics,
// and results are deterministic. With REPLACE a lane applies one update.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define ARGS_BODY { uvec2 updates; uvec2 indices; WRITTEN y; WRITTEN fault; uint total; \
    uint inner; uint inner_mul; uint inner_shift; uint count; FIELDS8(extent) FIELDS8(stride) uint fault_code; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#define FAULT 3
#include "indices.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint KEYS = 1;

COMPUTE_T combined(COMPUTE_T a, COMPUTE_T b) { return REDUCE; }

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    InTensor updates = InTensor(operand(args.updates, 0));
    IndexWords indices = IndexWords(operand(args.indices, 1));
    OutTensor y = OutTensor(operand(args.y, 2));
    uint extents[8] = READ8(extent), strides[8] = READ8(stride);
    uint i, row = fast_divmod(id, args.inner, args.inner_mul, args.inner_shift, i);
    for (uint n = 0u; n < args.count; ++n, ++row) {
        uint to = i;
        [[unroll]] for (uint d = 0u; d < KEYS; ++d) to += read_index(indices, row * KEYS + d, extents[d]) * strides[d];
        uint from = row * args.inner + i;
#ifdef REPLACE
        y.v[to] = OUT_T(updates.v[from]);
#else
        y.v[to] = store_element(combined(load_element(OUT_T(y.v[to])), load_element(updates.v[from])));
#endif
    }
}
