// GatherND: y [batch, count, inner], indices [batch, count, KEYS], x [batch, extents ..., inner], in units of UNIT_T:
// y[b, j, i] = x[b, indices[b, j] ..., i]. strides are those of x's indexed dimensions.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define ARGS_BODY { uvec2 x; uvec2 indices; WRITTEN y; WRITTEN fault; uint total; \
    uint inner; uint inner_mul; uint inner_shift; uint count; uint count_mul; uint count_shift; \
    uint batch_stride; FIELDS8(extent) FIELDS8(stride) uint fault_code; }
#include "args.glsl"
#include "fastdiv.glsl"
#define FAULT 3
#include "indices.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint KEYS = 1;

TENSOR(UNIT_T, Units)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint extents[8] = READ8(extent), strides[8] = READ8(stride);
    IndexWords indices = IndexWords(operand(args.indices, 1));
    uint i, row = fast_divmod(id, args.inner, args.inner_mul, args.inner_shift, i);
    uint from = fast_div(row, args.count_mul, args.count_shift) * args.batch_stride + i;
    [[unroll]] for (uint d = 0u; d < KEYS; ++d) from += read_index(indices, row * KEYS + d, extents[d]) * strides[d];
    Units(operand(args.y, 2)).v[id] = Units(operand(args.x, 0)).v[from];
}
