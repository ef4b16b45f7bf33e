// Resamples the middle of x [outer, axis, inner] to `out_axis` positions: y[o, j, i] = sum over taps t of
// weights[j, t] * x[o, positions[j, t], i]. A negative first position stands for the extrapolation value.
// Defines: COMPUTE_T float or double; CONVERT(v) keeps the result within the range of OUT_T.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 positions; uvec2 weights; WRITTEN y; uint total; uint axis; \
    uint inner; uint inner_mul; uint inner_shift; uint out_axis; uint out_axis_mul; uint out_axis_shift; \
    uint taps; float extrapolation; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

TENSOR(int, PositionTensor)
TENSOR(float, WeightTensor)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    InTensor x = InTensor(operand(args.x, 0));
    PositionTensor positions = PositionTensor(operand(args.positions, 1));
    WeightTensor weights = WeightTensor(operand(args.weights, 2));
    OutTensor y = OutTensor(operand(args.y, 3));
    uint i, j;
    uint row = fast_divmod(id, args.inner, args.inner_mul, args.inner_shift, i);
    uint outer = fast_divmod(row, args.out_axis, args.out_axis_mul, args.out_axis_shift, j);
    uint base = outer * args.axis * args.inner + i;
    uint table = j * args.taps;
    COMPUTE_T total = COMPUTE_T(0.0);
    if (positions.v[table] < 0) {
        total = COMPUTE_T(args.extrapolation);
    } else {
        for (uint t = 0u; t < args.taps; ++t) {
            uint from = min(uint(positions.v[table + t]), args.axis - 1u);
            total += weights.v[table + t] * load_element(x.v[base + from * args.inner]);
        }
    }
    y.v[id] = store_element(CONVERT(total));
}
