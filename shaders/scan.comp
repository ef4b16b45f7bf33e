// Running sums (with PRODUCT: products) along the middle of [outer, axis, inner]. With POSITIONS, for one row: the places of the
// elements that are not 0, in order, and their number.
//
// A column has `segments` segments of `segment` elements, and SPLIT lanes share a segment, side by side along the axis (inner is 1
// then). STAGE 1 writes the segments' totals [outer, segments, inner]. STAGE 2 adds those before its own and writes the results.
// STAGE 0 writes the results where a column is one segment. The order of additions is fixed, so results repeat. With REVERSE
// elements and segments are counted from the end. With PAIRS (CPU drivers: they gather and scatter each lane's word by itself, a
// long one in the time of a short one) an element is two neighbouring columns of 32 bits, and columns and inner count pairs.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#ifdef POSITIONS
#define COUNT_OPERAND WRITTEN count;
#else
#define COUNT_OPERAND
#endif
#define ARGS_BODY { uvec2 x; WRITTEN totals; WRITTEN y; COUNT_OPERAND uint columns; uint axis; \
    uint inner; uint inner_mul; uint inner_shift; uint segments; uint segments_mul; uint segments_shift; uint segment; }
#include "args.glsl"
#ifdef PAIRS
TENSOR(uint64_t, InTensor)
TENSOR(uint64_t, OutTensor)
#else
#include "elements.glsl"
#endif
#include "fastdiv.glsl"
#include "lanes.glsl"

layout(constant_id = 4) const uint SPLIT = 1;  // a power of two
layout(constant_id = 5) const uint EXCLUSIVE = 0;
layout(constant_id = 6) const uint REVERSE = 0;
layout(constant_id = 7) const uint STAGE = 0;
layout(constant_id = 8) const uint LOADS = 1;  // of a lane in flight

#ifdef PRODUCT
const SUM_T IDENTITY = SUM_T(1);
SUM_T combine(SUM_T a, SUM_T b) { return a * b; }
#else
const SUM_T IDENTITY = SUM_T(0);
SUM_T combine(SUM_T a, SUM_T b) { return a + b; }
#endif
#if defined(POSITIONS)
SUM_T value_of(IN_T v) { return SUM_T(load_element(v) != COMPUTE_T(0)); }
#elif defined(PAIRS)
SUM_T value_of(uint64_t v) { return PAIR(unpackUint2x32(v)); }
uint64_t store_element(SUM_T v) { return packUint2x32(WORDS(v)); }
#else
SUM_T value_of(IN_T v) { return load_element(v); }
#endif
SCAN_LANES(scan_lanes, SUM_T, combine, IDENTITY)
TENSOR(SUM_T, Totals)

void main() {
    InTensor x = InTensor(operand(args.x, 0));
    Totals totals = Totals(operand(args.totals, 1));
    OutTensor y = OutTensor(operand(args.y, 2));
    uint lane = gl_LocalInvocationID.x, share = lane % SPLIT;
    uint run = flat_lane() / SPLIT;
    bool live = run < args.columns * args.segments;
    uint i, s, row = fast_divmod(live ? run : 0u, args.inner, args.inner_mul, args.inner_shift, i);
    uint outer = fast_divmod(row, args.segments, args.segments_mul, args.segments_shift, s);
    uint begin = min(s * args.segment, args.axis), end = live ? min(begin + args.segment, args.axis) : begin;
    uint base = outer * args.axis * args.inner + i;

    SUM_T running = IDENTITY, sum = IDENTITY;
    if (STAGE == 2u) {
        for (uint k = share; k < s; k += SPLIT)
            sum = combine(sum, totals.v[(outer * args.segments + k) * args.inner + i]);
        scan_lanes(sum, lane, SPLIT, running);
        sum = IDENTITY;
    }
    // lanes combine values at each step together, also those behind the end
    uint last = SPLIT > 1u ? begin + args.segment : end;
    for (uint k = begin + share; k - share < last; k += SPLIT * LOADS) {
        SUM_T values[LOADS];
        [[unroll]] for (uint n = 0u; n < LOADS; ++n) {
            uint at = k + n * SPLIT;
            if (REVERSE != 0u) at = args.axis - 1u - at;
            values[n] = IDENTITY;
            if (SPLIT * LOADS == 1u || k + n * SPLIT < end) values[n] = value_of(x.v[base + at * args.inner]);
        }
        if (STAGE == 1u) {
            [[unroll]] for (uint n = 0u; n < LOADS; ++n) sum = combine(sum, values[n]);
            continue;
        }
        [[unroll]] for (uint n = 0u; n < LOADS; ++n) {
            uint at = k + n * SPLIT;
            bool stored = SPLIT * LOADS == 1u || at < end;
            if (REVERSE != 0u) at = args.axis - 1u - at;
            SUM_T total, before = combine(running, scan_lanes(values[n], lane, SPLIT, total));
#ifdef POSITIONS
            if (stored && values[n] != 0 && uint(before) < args.axis) y.v[before] = OUT_T(at);
#else
            if (stored) y.v[base + at * args.inner] = store_element(EXCLUSIVE != 0u ? before : combine(before, values[n]));
#endif
            running = combine(running, total);
        }
    }
    if (STAGE == 1u) {
        scan_lanes(sum, lane, SPLIT, running);
        if (live && share == 0u) totals.v[run] = running;
    }
#ifdef POSITIONS
    else if (live && share == 0u && s == args.segments - 1u) OutTensor(operand(args.count, 3)).v[0] = OUT_T(running);
#endif
}
