// LpNormalization over the middle of [outer, axis, inner]: y = x / (sum |x|^p)^(1/p), p 1 or 2; 0 where the norm is 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "lanes.glsl"

layout(constant_id = 4) const uint SPLIT = 1;
layout(constant_id = 5) const uint ACROSS = 0;
layout(constant_id = 6) const uint P = 2;

float add(float a, float b) { return a + b; }
COMBINE_LANES(sum_of, float, add)

void main() {
    InTensor x = InTensor(operand(args.x, 0));
    OutTensor y = OutTensor(operand(args.y, 1));
    uint width = gl_WorkGroupSize.x / SPLIT;
    uint lane = gl_LocalInvocationID.x;
    uint share = ACROSS != 0u ? lane % SPLIT : lane / width;
    uint local_column = ACROSS != 0u ? lane / SPLIT : lane % width;
    uint column = flat_group() * width + local_column;
    bool live = column < args.columns;
    uint i, outer = fast_divmod(live ? column : 0u, args.inner, args.inner_mul, args.inner_shift, i);
    uint axis = live ? args.axis : 0u;
    uint first = (outer * args.axis + share) * args.inner + i;
    uint stride = SPLIT * args.inner;

    float total = 0.0;
    uint at = first;
    for (uint k = share; k < axis; k += SPLIT, at += stride) {
        float v = load_element(x.v[at]);
        total += P == 2u ? v * v : abs(v);
    }
    total = sum_of(total, local_column * SPLIT + share, SPLIT);
    float norm = P == 2u ? sqrt(total) : total;
    float scale = norm == 0.0 ? 0.0 : 1.0 / norm;
    at = first;
    for (uint k = share; k < axis; k += SPLIT, at += stride) y.v[at] = store_element(load_element(x.v[at]) * scale);
}
