// Normalises rows of x [rows, axis]: y = (x - mean) / sqrt(variance + epsilon) * scale + bias, in float32.
// Without CENTER there is no mean (RMS norm). The variance is summed around the mean, in a second sweep: stable.
//
// Scale and bias index: (row % period) * channels + k / spatial, with channels = axis / spatial: layer and RMS norm have
// period 1 and spatial 1, instance and group norm rows are (image, group) pairs.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 scale; uvec2 bias; uvec2 y; uvec2 mean; uvec2 inv_std; \
    uint rows; uint axis; float inv_axis; float epsilon; \
    uint period; uint period_mul; uint period_shift; uint spatial; uint spatial_mul; uint spatial_shift; uint channels; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "lanes.glsl"

layout(constant_id = 4) const uint SPLIT = 1;      // lanes a row, a power of two
layout(constant_id = 5) const uint IN_REGISTERS = 0;  // a lane keeps its PER_LANE elements; axis <= SPLIT * PER_LANE
layout(constant_id = 6) const uint PER_LANE = 1;
layout(constant_id = 7) const uint CENTER = 1;
layout(constant_id = 8) const uint HAS_SCALE = 1;
layout(constant_id = 9) const uint HAS_BIAS = 1;
layout(constant_id = 10) const uint HAS_MEAN = 0;
layout(constant_id = 11) const uint HAS_INV_STD = 0;
layout(constant_id = 12) const uint BY_CHANNEL = 0;  // 0: period and spatial are 1

TENSOR(float, FloatTensor)
float add(float a, float b) { return a + b; }
COMBINE_LANES(sum_of, float, add)

float affine(InTensor scale, InTensor bias, float v, uint row_channel, uint k) {
    uint c = BY_CHANNEL != 0u ? row_channel + fast_div(k, args.spatial_mul, args.spatial_shift) : k;
    if (HAS_SCALE != 0u) v *= load_element(scale.v[c]);
    if (HAS_BIAS != 0u) v += load_element(bias.v[c]);
    return v;
}

void main() {
    InTensor x = InTensor(operand(args.x, 0));
    InTensor scale = InTensor(HAS_SCALE != 0u ? operand(args.scale, 1) : uvec2(0));
    InTensor bias = InTensor(HAS_BIAS != 0u ? operand(args.bias, 2) : uvec2(0));
    OutTensor y = OutTensor(operand(args.y, 3));
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

    float total = 0.0, mean = 0.0, spread = 0.0;
    float kept[PER_LANE];
    if (IN_REGISTERS != 0u) {
        [[unroll]] for (uint j = 0u; j < PER_LANE; ++j) {
            uint k = j * SPLIT + share;
            kept[j] = k < axis ? load_element(x.v[base + k]) : 0.0;
            total += kept[j];
        }
    } else if (CENTER != 0u) {
        for (uint k = share; k < axis; k += SPLIT) total += load_element(x.v[base + k]);
    }
    if (CENTER != 0u) mean = sum_of(total, lane, SPLIT) * args.inv_axis;
    if (IN_REGISTERS != 0u) {
        [[unroll]] for (uint j = 0u; j < PER_LANE; ++j) {
            float d = kept[j] - mean;
            kept[j] = d;
            spread += j * SPLIT + share < axis ? d * d : 0.0;
        }
    } else {
        for (uint k = share; k < axis; k += SPLIT) {
            float d = load_element(x.v[base + k]) - mean;
            spread += d * d;
        }
    }
    float inv_std = 1.0 / sqrt(sum_of(spread, lane, SPLIT) * args.inv_axis + args.epsilon);
    if (IN_REGISTERS != 0u) {
        [[unroll]] for (uint j = 0u; j < PER_LANE; ++j) {
            uint k = j * SPLIT + share;
            if (k < axis) y.v[base + k] = store_element(affine(scale, bias, kept[j] * inv_std, row_channel, k));
        }
    } else {
        for (uint k = share; k < axis; k += SPLIT) {
            float d = (load_element(x.v[base + k]) - mean) * inv_std;
            y.v[base + k] = store_element(affine(scale, bias, d, row_channel, k));
        }
    }
    if (live && share == 0u) {
        if (HAS_MEAN != 0u) FloatTensor(operand(args.mean, 4)).v[row] = mean;
        if (HAS_INV_STD != 0u) FloatTensor(operand(args.inv_std, 5)).v[row] = inv_std;
    }
}
