// Normalises rows of x [rows, axis]: y = (x - mean) / sqrt(variance + epsilon) * scale + bias, in float32. Without CENTER there
// is no mean (RMS norm). The variance is summed around the mean in a second pass, which is numerically stable.
//
// Scale and bias index: (row % period) * channels + k / spatial, with channels = axis / spatial: layer and RMS norm have
// period 1 and spatial 1, instance and group norm rows are (image, group) pairs. With VECTOR_IN_T axis and spatial (but
// not 1 / axis) count groups of four.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 scale; uvec2 bias; WRITTEN y; WRITTEN mean; WRITTEN inv_std; EXTRA_OPERANDS \
    uint rows; uint axis; float inv_axis; float epsilon; \
    uint period; uint period_mul; uint period_shift; uint spatial; uint spatial_mul; uint spatial_shift; uint channels; EXTRA_PARAMS }
#include "args.glsl"
#include "elements.glsl"
#include "rows.glsl"
#include "fastdiv.glsl"
#include "lanes.glsl"

layout(constant_id = 4) const uint SPLIT = 1;      // lanes per row, a power of two
layout(constant_id = 5) const uint KEPT = 0;  // elements of a lane in registers, the first ones
layout(constant_id = 6) const uint REST = 1;  // the others are read from memory; without it axis <= SPLIT * KEPT
layout(constant_id = 7) const uint CENTER = 1;
layout(constant_id = 8) const uint HAS_SCALE = 1;
layout(constant_id = 9) const uint HAS_BIAS = 1;
layout(constant_id = 10) const uint HAS_MEAN = 0;
layout(constant_id = 11) const uint HAS_INV_STD = 0;
layout(constant_id = 12) const uint BY_CHANNEL = 0;  // 0: period and spatial are 1

// Scale and bias are loaded beside the row: a few rows wait for memory, and for each other's results, more than for anything else.
const uint EARLY = BY_CHANNEL == 0u && KEPT <= 4u ? KEPT : 0u;

TENSOR(float, FloatTensor)
float add(float a, float b) { return a + b; }
COMBINE_LANES(sum_of, float, add)

VALUE_T affine(VALUE_T v, uint row_channel, uint k) {
    if (BY_CHANNEL != 0u) {
        uint c = row_channel + fast_div(k, args.spatial_mul, args.spatial_shift);
        if (HAS_SCALE != 0u) v *= load_element(InTensor(operand(args.scale, 1)).v[c]);
        if (HAS_BIAS != 0u) v += load_element(InTensor(operand(args.bias, 2)).v[c]);
    } else {
        if (HAS_SCALE != 0u) v *= load_value(InRow(operand(args.scale, 1)).v[k]);
        if (HAS_BIAS != 0u) v += load_value(InRow(operand(args.bias, 2)).v[k]);
    }
    return v;
}

void main() {
    InRow x = InRow(operand(args.x, 0));
    OutRow y = OutRow(operand(args.y, 3));
    uint lane = gl_LocalInvocationID.x;
    uint share = lane % SPLIT;
    uint row = flat_group() * (gl_WorkGroupSize.x / SPLIT) + lane / SPLIT;
    bool live = row < args.rows;
    uint axis = live ? args.axis : 0u;
    uint base = live ? row * args.axis : 0u;
    uint row_channel = 0u;
    if (BY_CHANNEL != 0u) {
        uint group;
        fast_divmod(row, args.period, args.period_mul, args.period_shift, group);
        row_channel = group * args.channels;
    }

    uint beyond = REST != 0u ? axis : 0u;

    float total = 0.0, mean = 0.0, spread = 0.0;
    VALUE_T kept[KEPT > 0u ? KEPT : 1u], scale[EARLY > 0u ? EARLY : 1u], bias[EARLY > 0u ? EARLY : 1u];
    [[unroll]] for (uint j = 0u; j < EARLY; ++j) {
        uint k = j * SPLIT + share;
        if (HAS_SCALE != 0u) scale[j] = k < axis ? load_value(InRow(operand(args.scale, 1)).v[k]) : VALUE_T(0.0);
        if (HAS_BIAS != 0u) bias[j] = k < axis ? load_value(InRow(operand(args.bias, 2)).v[k]) : VALUE_T(0.0);
    }
    [[unroll]] for (uint j = 0u; j < KEPT; ++j) {
        uint k = j * SPLIT + share;
        kept[j] = k < axis ? load_value(x.v[base + k]) : VALUE_T(0.0);
        total += sum_within(kept[j]);
    }
    if (CENTER != 0u) {
        for (uint k = KEPT * SPLIT + share; k < beyond; k += SPLIT) total += sum_within(load_value(x.v[base + k]));
        mean = sum_of(total, lane, SPLIT) * args.inv_axis;
    }
    [[unroll]] for (uint j = 0u; j < KEPT; ++j) {
        kept[j] -= mean;
        spread += j * SPLIT + share < axis ? sum_within(kept[j] * kept[j]) : 0.0;
    }
    for (uint k = KEPT * SPLIT + share; k < beyond; k += SPLIT) {
        VALUE_T d = load_value(x.v[base + k]) - mean;
        spread += sum_within(d * d);
    }
    float inv_std = 1.0 / sqrt(sum_of(spread, lane, SPLIT) * args.inv_axis + args.epsilon);
    [[unroll]] for (uint j = 0u; j < KEPT; ++j) {
        uint k = j * SPLIT + share;
        if (EARLY > 0u) {
            VALUE_T v = kept[j] * inv_std;
            if (HAS_SCALE != 0u) v *= scale[j % (EARLY > 0u ? EARLY : 1u)];
            if (HAS_BIAS != 0u) v += bias[j % (EARLY > 0u ? EARLY : 1u)];
            if (k < axis) y.v[base + k] = finished(v, base + k, row, k);
        } else if (k < axis) {
            y.v[base + k] = finished(affine(kept[j] * inv_std, row_channel, k), base + k, row, k);
        }
    }
    for (uint k = KEPT * SPLIT + share; k < beyond; k += SPLIT) {
        VALUE_T d = (load_value(x.v[base + k]) - mean) * inv_std;
        y.v[base + k] = finished(affine(d, row_channel, k), base + k, row, k);
    }
    if (live && share == 0u) {
        if (HAS_MEAN != 0u) FloatTensor(operand(args.mean, 4)).v[row] = mean;
        if (HAS_INV_STD != 0u) FloatTensor(operand(args.inv_std, 5)).v[row] = inv_std;
    }
}
