// y[batch] = alpha * a[batch] (m by k) * b[batch] (k by n), strides in elements; one subgroup per tile (register_tile.glsl).
//
// Tile j of the columns starts at j * b_panel: COLUMNS * b_col for a plain operand, the size of a panel for a packed one.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; WRITTEN y; EXTRA_OPERANDS \
    uint m; uint n; uint k; uint batch1; uint a_row; uint a_col; uint b_row; uint b_col; uint b_panel; \
    uint y_row; uint y_col; uint a_batch0; uint a_batch1; uint b_batch0; uint b_batch1; uint y_batch0; uint y_batch1; \
    uint rows_first; float alpha; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"
#include "register_tile.glsl"

void main() {
    uint lane = gl_SubgroupInvocationID;
    uint batch0 = small_div(group_id().z, args.batch1), batch1 = group_id().z - batch0 * args.batch1;
    uint column_tiles = (args.n + COLUMNS - 1) / COLUMNS;
    uvec2 tile = workgroup_tile((args.m + ROWS - 1) / ROWS, column_tiles, args.rows_first != 0);
    uint row0 = tile.x * ROWS, panel = min(tile.y, column_tiles - 1), column0 = panel * COLUMNS;
    Elements a = Elements(operand(args.a, 0)), b = Elements(operand(args.b, 1)), y = Elements(operand(args.y, 2));

    // Lanes past an edge compute and store the last row or column again: on a CPU driver a conditional store is a loop over the
    // lanes.
    uint a0 = batch0 * args.a_batch0 + batch1 * args.a_batch1;
    [[unroll]] for (uint q = 0; q < ROW_REGISTERS; q++) row_at[q] = a0 + min(row0 + q * LANES + lane, args.m - 1) * args.a_row;
    uint b0 = batch0 * args.b_batch0 + batch1 * args.b_batch1 + panel * args.b_panel, last = args.n - 1 - column0;
    [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++)
        column_at[c] = b0 + column_of(c, lane, last) * args.b_col;

    clear_tile();
    uint a_k = 0, b_k = 0;
    multiply(a, a_k, args.a_col, b, b_k, args.b_row, args.k, COLUMN_PAIRS);

    uint y0 = batch0 * args.y_batch0 + batch1 * args.y_batch1, o0 = group_id().z * args.m * args.n;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint row = min(row0 + r, args.m - 1);
        [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) {
            uint column = column0 + column_of(c, lane, last);
            float v = epilogue(args.alpha * acc[r * LANE_COLUMNS + c], o0 + row * args.n + column, row, column);
            y.v[y0 + row * args.y_row + column * args.y_col] = T(v);
        }
    }
}
