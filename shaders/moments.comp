// The moments (moments.glsl) of parts of long rows, for a norm whose rows are too few to fill the device: [rows, parts, 3]. Squares
// are summed around the mean of the elements in a lane's registers. With VECTOR_IN_T lengths count groups of four.
//
// With LAST rows are groups of channels of images that lie with channels last: x [rows / groups, axis / each, groups, each].
// Workgroups of the same part then read neighbours.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; uint rows; uint axis; uint parts; uint part; \
    uint groups; uint each; uint each_mul; uint each_shift; }
#include "args.glsl"
#include "elements.glsl"
#include "rows.glsl"
#include "fastdiv.glsl"
#include "moments.glsl"

layout(constant_id = 4) const uint LAST = 0;

const uint PER_LANE = 8;  // loads of a lane at a time

uint place(uint k) {
    if (LAST == 0u) return k;
    uint e;
    return fast_divmod(k, args.each, args.each_mul, args.each_shift, e) * args.groups * args.each + e;
}

void main() {
    uint group = flat_group(), lane = gl_LocalInvocationID.x;
    if (group >= args.rows * args.parts) return;
    uint row = LAST != 0u ? group % args.rows : group / args.parts, part = LAST != 0u ? group / args.rows : group % args.parts;
    InRow x = InRow(operand(args.x, 0));
    uint first = part * args.part, end = min(first + args.part, args.axis), base = row * args.axis;
    if (LAST != 0u) base = row / args.groups * args.groups * args.axis + row % args.groups * args.each;
    vec3 found = vec3(0.0);
    for (uint k = first + lane; k < end; k += PER_LANE * gl_WorkGroupSize.x) {
        VALUE_T v[PER_LANE];
        float total = 0.0, count = 0.0, spread = 0.0;
        [[unroll]] for (uint j = 0u; j < PER_LANE; ++j)
            v[j] = load_value(x.v[base + place(min(k + j * gl_WorkGroupSize.x, end - 1u))]);
        [[unroll]] for (uint j = 0u; j < PER_LANE; ++j)
            if (k + j * gl_WorkGroupSize.x < end) {
                total += sum_within(v[j]);
                count += float(WIDTH);
            }
        float mean = total / count;
        [[unroll]] for (uint j = 0u; j < PER_LANE; ++j)
            if (k + j * gl_WorkGroupSize.x < end) {
                VALUE_T apart = v[j] - mean;
                spread += sum_within(apart * apart);
            }
        found = joined(found, vec3(count, mean, spread));
    }
    found = all_joined(found, lane, gl_WorkGroupSize.x);
    Floats y = Floats(operand(args.y, 1));
    if (lane < 3u) y.v[(row * args.parts + part) * 3u + lane] = found[lane];
}
