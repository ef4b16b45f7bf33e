// Reduces the middle of [outer, axis, inner]. A column is one (outer, inner) pair; SPLIT lanes share a column, and
// workgroup z takes one part of the axis (y is then [outer, parts, inner], for a second pass to reduce).
//
// Defines: IN_T, OUT_T, COMPUTE_T; MAP (per element), COMBINE and IDENTITY, FINISH (of the total); or LOG_SUM_EXP.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 y; \
    uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; uint part_length; uint count; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "lanes.glsl"

layout(constant_id = 4) const uint SPLIT = 1;    // lanes a column, a power of two
layout(constant_id = 5) const uint ACROSS = 0;   // 1: neighbouring lanes lie along the axis (inner == 1); 0: along inner

layout(constant_id = 6) const uint LOADS = 4;    // in flight at a time, a power of two

#ifdef LOG_SUM_EXP
// (m, s) stands for s * exp(m): the running maximum keeps exp in range (Milakov and Gimelshein, arXiv:1805.02867).
#define STATE_T vec2
#define IDENTITY vec2(uintBitsToFloat(0xff800000u), 0.0)
// 1 where equal, so that infinities do not meet as inf - inf.
float relative(float m, float top) { return m == top ? 1.0 : exp(m - top); }
vec2 combine(vec2 a, vec2 b) {
    float top = max(a.x, b.x);
    return vec2(top, a.y * relative(a.x, top) + b.y * relative(b.x, top));
}
vec2 map_element(COMPUTE_T v) { return vec2(float(v), 1.0); }
COMPUTE_T finish(vec2 state, uint count) { return COMPUTE_T(state.x + log(state.y)); }
#else
#define STATE_T COMPUTE_T
STATE_T combine_sum(STATE_T a, STATE_T b) { return a + b; }
STATE_T combine_prod(STATE_T a, STATE_T b) { return a * b; }
#ifdef PROPAGATE_NAN
STATE_T combine_max(STATE_T a, STATE_T b) { return (b > a || isnan(b)) ? b : a; }
STATE_T combine_min(STATE_T a, STATE_T b) { return (b < a || isnan(b)) ? b : a; }
#else
STATE_T combine_max(STATE_T a, STATE_T b) { return max(a, b); }
STATE_T combine_min(STATE_T a, STATE_T b) { return min(a, b); }
#endif
STATE_T map_identity(COMPUTE_T v) { return v; }
STATE_T map_square(COMPUTE_T v) { return v * v; }
STATE_T map_abs(COMPUTE_T v) { return v < COMPUTE_T(0) ? -v : v; }
STATE_T map_truth(COMPUTE_T v) { return COMPUTE_T(v != COMPUTE_T(0)); }
#define combine COMBINE
#define map_element MAP
#if defined(FINISH_MEAN)
COMPUTE_T finish(STATE_T total, uint count) { return total / COMPUTE_T(count); }
#elif defined(FINISH_SQRT)
COMPUTE_T finish(STATE_T total, uint count) { return COMPUTE_T(sqrt(FINISH_T(total))); }
#elif defined(FINISH_LOG)
COMPUTE_T finish(STATE_T total, uint count) { return COMPUTE_T(log(float(total))); }
#else
COMPUTE_T finish(STATE_T total, uint count) { return total; }
#endif
#endif

COMBINE_LANES(combine_lanes, STATE_T, combine)

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

    uint k = gl_WorkGroupID.z * args.part_length + share;
    uint end = live ? min(args.axis, (gl_WorkGroupID.z + 1u) * args.part_length) : 0u;
    uint at = (outer * args.axis + k) * args.inner + i;
    uint stride = SPLIT * args.inner;
    STATE_T state = IDENTITY;
    for (; k + (LOADS - 1u) * SPLIT < end; k += LOADS * SPLIT) {
        STATE_T values[LOADS];
        [[unroll]] for (uint n = 0u; n < LOADS; ++n) values[n] = map_element(load_element(x.v[at + n * stride]));
        [[unroll]] for (uint half_count = LOADS / 2u; half_count > 0u; half_count /= 2u)
            [[unroll]] for (uint n = 0u; n < half_count; ++n) values[n] = combine(values[n], values[n + half_count]);
        state = combine(state, values[0]);
        at += LOADS * stride;
    }
    for (; k < end; k += SPLIT) {
        state = combine(state, map_element(load_element(x.v[at])));
        at += stride;
    }
    state = combine_lanes(state, local_column * SPLIT + share, SPLIT);
    if (live && share == 0u)
        y.v[(outer * gl_NumWorkGroups.z + gl_WorkGroupID.z) * args.inner + i] = store_element(finish(state, args.count));
}
