// Follows a trace (warp_trace.comp) from its last cell back to the first row or column, by one lane. `path` [2, most] holds the
// cells' rows, then their columns, and is filled from the end; `count` is their number.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 trace; WRITTEN path; WRITTEN count; uint rows; uint columns; }
#include "args.glsl"
#include "workgroup.glsl"

TENSOR(uint, Words)
TENSOR(int, Integers)
TENSOR(int64_t, Longs)

void main() {
    if (flat_lane() != 0u) return;
    Words trace = Words(operand(args.trace, 0));
    Integers path = Integers(operand(args.path, 1));
    uint most = args.rows + args.columns, at = most, i = args.rows, j = args.columns;
    while (i > 0u && j > 0u && at > 0u) {
        --at;
        path.v[at] = int(i) - 1;
        path.v[most + at] = int(j) - 1;
        uint from = trace.v[(i - 1u) * args.columns + j - 1u];
        if (from != 2u) --i;
        if (from != 1u) --j;
    }
    Longs(operand(args.count, 2)).v[0] = int64_t(most - at);
}
