// Dynamic time warping of x [rows, columns]: the neighbour from which the cheapest path reaches each cell (0: the diagonal one,
// 1: the row before, 2: the column before). One workgroup processes the anti-diagonals in order and keeps three of them in
// shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN trace; uint rows; uint columns; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint ROOM = 64;  // rows + 1

TENSOR(float, Floats)
TENSOR(uint, Words)
#define INFINITE uintBitsToFloat(0x7f800000u)

shared float cost[3 * ROOM];  // diagonal d starts at (d % 3) * ROOM, indexed by row; row 0 and column 0 are the borders

void main() {
    uint lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    Floats x = Floats(operand(args.x, 0));
    Words trace = Words(operand(args.trace, 1));
    for (uint i = lane; i < 3u * ROOM; i += lanes) cost[i] = i == 0u ? 0.0 : INFINITE;
    barrier();
    for (uint d = 1u; d <= args.rows + args.columns; ++d) {
        uint here = d % 3u * ROOM, last = (d + 2u) % 3u * ROOM, before = (d + 1u) % 3u * ROOM;
        for (uint i = lane; i <= min(d, args.rows); i += lanes) {
            uint j = d - i;
            float found = INFINITE;
            if (i > 0u && j > 0u && j <= args.columns) {
                float both = cost[before + i - 1u], up = cost[last + i - 1u], left = cost[last + i];
                uint from = both < up && both < left ? 0u : up < both && up < left ? 1u : 2u;
                uint cell = (i - 1u) * args.columns + j - 1u;
                found = (from == 0u ? both : from == 1u ? up : left) + x.v[cell];
                trace.v[cell] = from;
            }
            cost[here + i] = found;
        }
        barrier();
    }
}
