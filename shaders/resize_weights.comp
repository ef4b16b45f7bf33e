// The tables of resize_axis.comp for an axis of `size`: for each output of `total`, at place (a * j + b) / q, the positions and
// the weights [total, taps] of its samples. `shrink` stretches the kernel (antialiasing); CUBIC 0: the triangle, 1: Keys' cubic
// convolution (IEEE TASSP 29(6), 1981). NORMALIZED 1: weights are divided by their sum. EXCLUDES 1: what is outside of the axis
// weighs nothing. CROPS 1: an output whose place is outside of the axis has -1 as its first position.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { WRITTEN positions; WRITTEN weights; uint total; int a; int b; uint q; uint size; uint taps; int first; \
    float shrink; float cubic; }
#include "args.glsl"
#include "place.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint CUBIC = 0;
layout(constant_id = 5) const uint NORMALIZED = 0;
layout(constant_id = 6) const uint EXCLUDES = 0;
layout(constant_id = 7) const uint CROPS = 0;

TENSOR(int, PositionTensor)
TENSOR(float, WeightTensor)

float kernel(float distance) {
    precise float d = abs(distance), a = args.cubic, weight;
    if (CUBIC == 0u) weight = clamp(1.0 - d, 0.0, 1.0);
    else if (d >= 2.0) weight = 0.0;
    else if (d <= 1.0) weight = ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0;
    else weight = ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
    return weight;
}

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    PositionTensor positions = PositionTensor(operand(args.positions, 0));
    WeightTensor weights = WeightTensor(operand(args.weights, 1));
    int high;
    uint low, remainder;
    place(args.a, id, args.b, high, low);
    int down = floor_of(high, low, args.q, remainder);
    int last = int(args.size) - 1;
    bool outside = down < 0 || down > last || (down == last && remainder != 0u);
    // the fraction in units of 2**-24, rounded: the same on every device
    low = remainder << 24;
    high = int(remainder >> 8);
    uint carry, rest;
    low = uaddCarry(low, args.q / 2u, carry);
    precise float fraction = float(divide(uint(high) + carry, low, args.q, rest)) * 5.9604644775390625e-8;
    precise float total = 0.0;
    uint table = id * args.taps;
    for (uint t = 0u; t < args.taps; ++t) {
        int step = args.first + int(t), at = down + step;
        precise float distance = (float(step) - fraction) * args.shrink;
        float weight = EXCLUDES != 0u && (at < 0 || at > last) ? 0.0 : kernel(distance);
        total += weight;
        positions.v[table + t] = CROPS != 0u && outside && t == 0u ? -1 : clamp(at, 0, last);
        weights.v[table + t] = weight;
    }
    if (NORMALIZED == 0u || total == 0.0) return;
    for (uint t = 0u; t < args.taps; ++t) weights.v[table + t] = exact_quotient(weights.v[table + t], total);
}
