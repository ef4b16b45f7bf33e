// Running sums (with PRODUCT: products) along the middle of [outer, axis, inner]. SPLIT lanes share a column. Each sums a
// segment, the segments' totals are scanned in shared memory, and each lane writes its segment's running sums.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; \
    uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; uint segment; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint SPLIT = 1;
layout(constant_id = 5) const uint EXCLUSIVE = 0;
layout(constant_id = 6) const uint REVERSE = 0;

#ifdef PRODUCT
const COMPUTE_T IDENTITY = COMPUTE_T(1);
COMPUTE_T combine(COMPUTE_T a, COMPUTE_T b) { return a * b; }
#else
const COMPUTE_T IDENTITY = COMPUTE_T(0);
COMPUTE_T combine(COMPUTE_T a, COMPUTE_T b) { return a + b; }
#endif

shared COMPUTE_T totals[gl_WorkGroupSize.x];

void main() {
    InTensor x = InTensor(operand(args.x, 0));
    OutTensor y = OutTensor(operand(args.y, 1));
    uint width = gl_WorkGroupSize.x / SPLIT;
    uint lane = gl_LocalInvocationID.x;
    uint share = lane / width, local_column = lane % width;
    uint column = flat_group() * width + local_column;
    bool live = column < args.columns;
    uint i, outer = fast_divmod(live ? column : 0u, args.inner, args.inner_mul, args.inner_shift, i);
    uint base = outer * args.axis * args.inner + i;
    uint begin = min(share * args.segment, args.axis);
    uint end = live ? min(begin + args.segment, args.axis) : begin;

    COMPUTE_T running = IDENTITY;
    if (SPLIT > 1u) {
        for (uint k = begin; k < end; ++k) {
            uint at = REVERSE != 0u ? args.axis - 1u - k : k;
            running = combine(running, load_element(x.v[base + at * args.inner]));
        }
        totals[lane] = running;
        barrier();
        running = IDENTITY;
        for (uint s = 0u; s < share; ++s) running = combine(running, totals[s * width + local_column]);
    }
    for (uint k = begin; k < end; ++k) {
        uint at = base + (REVERSE != 0u ? args.axis - 1u - k : k) * args.inner;
        COMPUTE_T v = load_element(x.v[at]);
        y.v[at] = store_element(EXCLUSIVE != 0u ? running : combine(running, v));
        running = combine(running, v);
    }
}
