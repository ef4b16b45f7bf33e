// Reduces the middle of [outer, axis, inner]. A column is one (outer, inner) pair; SPLIT lanes share a column, and
// workgroup z takes one part of the axis (y is then [outer, parts, inner], for a second pass to reduce).
//
// Defines: IN_T, OUT_T, COMPUTE_T; MAP (per element), COMBINE and IDENTITY, FINISH (of the total); or LOG_SUM_EXP.
// With UNIT_ELEMENTS a lane loads that many elements at once. They are neighbours along the axis (inner is 1), and axis and
// part_length count units; or with UNIT_COLUMNS they are of neighbouring columns, whose results a lane stores as vectors of
// four (VECTOR_OUT_T), and columns and inner count units.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; \
    uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; uint part_length; uint count; }
#include "args.glsl"
#include "workgroup.glsl"
#include "math.glsl"
#include "elements.glsl"
#ifdef UNIT_ELEMENTS
#include "units.glsl"
#endif
#include "fastdiv.glsl"
#include "lanes.glsl"

layout(constant_id = 4) const uint SPLIT = 1;    // lanes per column, a power of two
layout(constant_id = 5) const uint ACROSS = 0;   // 1: neighbouring lanes lie along the axis (inner == 1); 0: along inner

layout(constant_id = 6) const uint LOADS = 4;    // loads in flight, a power of two

#ifdef LOG_SUM_EXP
// (m, s) stands for s * exp(m): the running maximum keeps exp in range (Milakov and Gimelshein, arXiv:1805.02867).
#define STATE_T vec2
#define IDENTITY vec2(uintBitsToFloat(0xff800000u), 0.0)
vec2 combine(vec2 a, vec2 b) {
    float above = a.x - b.x, scale = exp(-abs(above));
    scale = a.x == b.x ? 1.0 : scale;  // not exp(inf - inf), which is NaN
    return above > 0.0 ? vec2(a.x, a.y + b.y * scale) : vec2(b.x, b.y + a.y * scale);
}
vec2 map_element(COMPUTE_T v) { return vec2(float(v), 1.0); }
COMPUTE_T finish(vec2 state, uint count) { return COMPUTE_T(state.x + accurate_log(state.y)); }
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
COMPUTE_T finish(STATE_T total, uint count) { return COMPUTE_T(accurate_log(float(total))); }
#else
COMPUTE_T finish(STATE_T total, uint count) { return total; }
#endif
#endif

// Value is the accumulator of one load.
#ifdef UNIT_COLUMNS
#define Source InUnits
#define LOAD(AT) load_unit(x, AT)
TENSOR(VECTOR_OUT_T, OutVectors)
struct Value { STATE_T of[UNIT_ELEMENTS]; };

Value value_of(uvec4 unit) {
    Value v;
    [[unroll]] for (uint n = 0u; n < UNIT_ELEMENTS; ++n) v.of[n] = map_element(unit_element(unit, n));
    return v;
}
Value join(Value a, Value b) {
    [[unroll]] for (uint n = 0u; n < UNIT_ELEMENTS; ++n) a.of[n] = combine(a.of[n], b.of[n]);
    return a;
}
Value nothing() {
    Value v;
    [[unroll]] for (uint n = 0u; n < UNIT_ELEMENTS; ++n) v.of[n] = IDENTITY;
    return v;
}

// Lanes of a column are `width` apart. At each step the upper half of the remaining lanes passes its states to the lower half.
// Neighbouring lanes access neighbouring words of shared memory.
const uint HANDED = (gl_WorkGroupSize.x + 1u) / 2u;
shared STATE_T handed[UNIT_ELEMENTS * HANDED];
Value combine_split(Value v, uint lane, uint width) {
    [[dont_unroll]] for (uint lower = SPLIT / 2u * width; lower >= width; lower /= 2u) {
        barrier();
        if (lane >= lower && lane < 2u * lower)
            [[unroll]] for (uint n = 0u; n < UNIT_ELEMENTS; ++n) handed[n * HANDED + lane - lower] = v.of[n];
        barrier();
        if (lane < lower)
            [[unroll]] for (uint n = 0u; n < UNIT_ELEMENTS; ++n) v.of[n] = combine(v.of[n], handed[n * HANDED + lane]);
    }
    return v;
}

OUT_T result(Value v, uint n) { return store_element(finish(v.of[n], args.count)); }
void store(uint at, Value v) {
    OutVectors y = OutVectors(operand(args.y, 1));
    [[unroll]] for (uint n = 0u; n < UNIT_ELEMENTS; n += 4u)
        y.v[(at * UNIT_ELEMENTS + n) / 4u] =
            VECTOR_OUT_T(result(v, n), result(v, n + 1u), result(v, n + 2u), result(v, n + 3u));
}
#else
#define Value STATE_T
#define join combine
#ifdef UNIT_ELEMENTS
#define Source InUnits
#define LOAD(AT) load_unit(x, AT)
STATE_T value_of(uvec4 unit) {
    STATE_T values[UNIT_ELEMENTS];
    [[unroll]] for (uint n = 0u; n < UNIT_ELEMENTS; ++n) values[n] = map_element(unit_element(unit, n));
    [[unroll]] for (uint half_count = UNIT_ELEMENTS / 2u; half_count > 0u; half_count /= 2u)
        [[unroll]] for (uint n = 0u; n < half_count; ++n) values[n] = combine(values[n], values[n + half_count]);
    return values[0];
}
#else
#define Source InTensor
#define LOAD(AT) x.v[AT]
STATE_T value_of(IN_T v) { return map_element(load_element(v)); }
#endif
STATE_T nothing() { return IDENTITY; }
COMBINE_LANES(combine_lanes, STATE_T, combine)
STATE_T combine_split(STATE_T v, uint lane, uint width) {
    return combine_lanes(v, ACROSS != 0u ? lane : lane % width * SPLIT + lane / width, SPLIT);
}
void store(uint at, STATE_T v) { OutTensor(operand(args.y, 1)).v[at] = store_element(finish(v, args.count)); }
#endif

void main() {
    Source x = Source(operand(args.x, 0));
    uint width = gl_WorkGroupSize.x / SPLIT;
    uint lane = gl_LocalInvocationID.x;
    uint share = ACROSS != 0u ? lane % SPLIT : lane / width;
    uint local_column = ACROSS != 0u ? lane / SPLIT : lane % width;
    uint column = flat_group() * width + local_column;
    bool live = column < args.columns;
    uint i, outer = fast_divmod(live ? column : 0u, args.inner, args.inner_mul, args.inner_shift, i);

    uint k = group_id().z * args.part_length + share;
    uint end = live ? min(args.axis, (group_id().z + 1u) * args.part_length) : 0u;
    uint at = (outer * args.axis + k) * args.inner + i;
    uint stride = SPLIT * args.inner;
    Value state = nothing();
    for (; k + (LOADS - 1u) * SPLIT < end; k += LOADS * SPLIT) {
        Value values[LOADS];
        [[unroll]] for (uint n = 0u; n < LOADS; ++n) values[n] = value_of(LOAD(at + n * stride));
        [[unroll]] for (uint half_count = LOADS / 2u; half_count > 0u; half_count /= 2u)
            [[unroll]] for (uint n = 0u; n < half_count; ++n) values[n] = join(values[n], values[n + half_count]);
        state = join(state, values[0]);
        at += LOADS * stride;
    }
    for (; k < end; k += SPLIT) {
        state = join(state, value_of(LOAD(at)));
        at += stride;
    }
    state = combine_split(state, lane, width);
    if (live && share == 0u) store((outer * group_count().z + group_id().z) * args.inner + i, state);
}
