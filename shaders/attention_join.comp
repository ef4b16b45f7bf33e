// Joins the parts that attention_split.comp computed for blocks of keys: one workgroup per row (a query of a head).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 values; uvec2 stats; uvec2 sink; uvec2 y; uint rows; uint heads; uint queries; uint splits; uint y_head; uint y_row; }
#include "args.glsl"
#include "lanes.glsl"

layout(constant_id = 4) const uint VALUE_SIZE = 64;
layout(constant_id = 5) const uint SINK = 0;
layout(constant_id = 6) const uint COLUMNS = 64;  // lanes side by side along a value

const uint AHEAD = 4;
const float LOG2_E = 1.44269504089;

TENSOR(T, Elements)
layout(buffer_reference, scalar) readonly buffer Floats { float v[]; };

shared float slices[gl_WorkGroupSize.x];

float add(float x, float y) { return x + y; }
float greater(float x, float y) { return max(x, y); }
COMBINE_LANES(sum_over, float, add)
COMBINE_LANES(most_over, float, greater)

void main() {
    uint id = gl_LocalInvocationIndex, row = min(flat_group(), args.rows - 1), lanes = gl_WorkGroupSize.x;
    uint query = row % args.queries, head = row / args.queries % args.heads, batch = row / args.queries / args.heads;
    Floats stats = Floats(operand(args.stats, 1)), values = Floats(operand(args.values, 0));
    float most = uintBitsToFloat(0xff800000u), sum = 0.0;
    for (uint s = id; s < args.splits; s += lanes) most = max(most, stats.v[(row * args.splits + s) * 2]);
    most = most_over(most, id, lanes);
    float sink = SINK == 1 ? float(Elements(operand(args.sink, 2)).v[head]) * LOG2_E : most;
    most = max(most, sink);
    for (uint s = id; s < args.splits; s += lanes) {
        float part = stats.v[(row * args.splits + s) * 2 + 1];
        if (part != 0.0) sum += part * exp2(stats.v[(row * args.splits + s) * 2] - most);
    }
    sum = sum_over(sum, id, lanes);
    if (SINK == 1) sum += exp2(sink - most);
    uint y0 = batch * args.heads * args.queries * VALUE_SIZE + head * args.y_head + query * args.y_row;
    // Each slice of the lanes adds up its share of the parts, AHEAD of them in flight.
    uint column = id % COLUMNS, slice = id / COLUMNS, slice_count = lanes / COLUMNS;
    for (uint e0 = 0; e0 < VALUE_SIZE; e0 += COLUMNS) {
        float total = 0.0;
        for (uint s = slice; s < args.splits; s += slice_count * AHEAD) {
            float weights[AHEAD], parts[AHEAD];
            [[unroll]] for (uint i = 0; i < AHEAD; i++) {
                uint part = s + i * slice_count, at = row * args.splits + min(part, args.splits - 1);
                bool counts = part < args.splits && stats.v[at * 2 + 1] != 0.0;
                weights[i] = counts ? exp2(stats.v[at * 2] - most) : 0.0;
                parts[i] = counts ? values.v[at * VALUE_SIZE + min(e0 + column, VALUE_SIZE - 1)] : 0.0;
            }
            [[unroll]] for (uint i = 0; i < AHEAD; i++) total = fma(weights[i], parts[i], total);
        }
        barrier();
        slices[id] = total;
        barrier();
        if (slice == 0 && e0 + column < VALUE_SIZE) {
            for (uint p = 1; p < slice_count; p++) total += slices[p * COLUMNS + column];
            Elements(operand(args.y, 3)).v[y0 + e0 + column] = T(sum != 0.0 ? total / sum : 0.0);  // a row that sees no key is zero
        }
    }
}
