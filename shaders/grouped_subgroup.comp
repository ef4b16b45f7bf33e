// y[block] (m by n) = a[block] (m by k) @ b[owners[block]] (n by k, transposed); one subgroup per tile (register_tile.glsl).
// All operands are contiguous; with PACKED b is in panels of k by COLUMNS. Workgroup z is the block. Blocks whose owner is not
// a group are not written. With CODES, b holds codes (grouped.glsl), and UNROLL is 4.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "grouped.glsl"
#include "workgroup.glsl"
#ifdef CODES
#define FOUR_COLUMNS(b, at, k) four_weights(at, k)
#endif
#include "register_tile.glsl"

layout(constant_id = 7) const uint PACKED = 0;

void main() {
    uint lane = gl_SubgroupInvocationID, block = group_id().z;
    owner = Words(operand(args.owners, 2)).v[block];
    if (owner >= args.groups) return;
    uint column_tiles = (args.n + COLUMNS - 1) / COLUMNS;
    uvec2 tile = workgroup_tile((args.m + ROWS - 1) / ROWS, column_tiles, true);
    uint row0 = tile.x * ROWS, column0 = min(tile.y, column_tiles - 1) * COLUMNS;
    Elements a = Elements(operand(args.a, 0)), b = Elements(operand(args.b, 1)), y = Elements(operand(args.y, 3));

    // Lanes past an edge compute and store the last row or column again, as in matmul_subgroup.comp.
    [[unroll]] for (uint q = 0; q < ROW_REGISTERS; q++)
        row_at[q] = (block * args.m + min(row0 + q * LANES + lane, args.m - 1)) * args.k;
    [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) {
        uint column = column_of(c, lane, args.n - 1 - column0);
#ifdef CODES
        column_at[c] = column0 + column;
#else
        column_at[c] = PACKED == 1 ? (owner * column_tiles * COLUMNS + column0) * args.k + column
                                   : (owner * args.n + column0 + column) * args.k;
#endif
    }
#ifdef CODES
    open_codes();
#endif
    clear_tile();
    uint a_k = 0, b_k = 0;
    multiply(a, a_k, 1, b, b_k, PACKED == 1 ? COLUMNS : 1, args.k, COLUMN_PAIRS);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint row = min(row0 + r, args.m - 1);
        [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) {
            uint column = column0 + column_of(c, lane, args.n - 1 - column0);
            y.v[(block * args.m + row) * args.n + column] = T(acc[r * LANE_COLUMNS + c]);
        }
    }
}
