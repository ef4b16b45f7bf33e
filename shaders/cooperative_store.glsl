// Stores results of a product on cooperative matrices, eight of a row at a time: to y, or to the partial sums (SUM) of a split. Sums
// of CODES are less (LESS) the int of their column at less_address, which the first split is for all, and in y are converted to float.
//
// Include after epilogue.glsl and the declarations of row0 and column0. The kernel's arguments have m, n, y_row,
// y_col and alpha; it sets y0, o0 and partial0 (elements) before the first store. Columns from COLUMN_END on are not stored.
#ifndef VKEP_COOPERATIVE_STORE_GLSL
#define VKEP_COOPERATIVE_STORE_GLSL
#ifndef COLUMN_END
#define COLUMN_END args.n
#endif

#include "results.glsl"

TENSOR(SUM, Partial)
layout(buffer_reference, std430, buffer_reference_align = 16) buffer PartialUnits { SUM4 v[]; };

uint y0, o0, partial0;
#ifdef CODES
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Fours { ivec4 v[]; };
uvec2 less_address;
#endif

void store_eight(uint row, uint column, SUM4 low_sums, SUM4 high_sums) {
    row += row0;
    column += column0;
    if (row >= args.m || column >= COLUMN_END) return;
#ifdef CODES
    if (LESS == 1 && partial0 == 0) {
        low_sums -= Fours(less_address).v[column / 4];
        high_sums -= Fours(less_address).v[column / 4 + 1];
    }
#endif
    uint o = o0 + row * args.n + column;
    if (PARTIAL == 1) {
        if (STORE_VECTOR == 1) {
            PartialUnits partial = PartialUnits(operand(args.y, 2));
            partial.v[(partial0 + o) / 4] = low_sums;
            partial.v[(partial0 + o) / 4 + 1] = high_sums;
        } else {
            Partial partial = Partial(operand(args.y, 2));
            [[unroll]] for (uint i = 0; i < 8; i++)
                if (column + i < COLUMN_END) partial.v[partial0 + o + i] = i < 4 ? low_sums[i & 3] : high_sums[i & 3];
        }
        return;
    }
    vec4 low = vec4(low_sums), high = vec4(high_sums);
    if (STORE_VECTOR == 1) {
        low *= args.alpha;
        high *= args.alpha;
        epilogue_eight(low, high, o, row, column);
        store_results(operand(args.y, 2), y0 + row * args.y_row + column, low, high);
    } else {
        [[unroll]] for (uint i = 0; i < 8; i++) {
            if (column + i >= COLUMN_END) continue;
            float v = epilogue(args.alpha * (i < 4 ? low[i & 3] : high[i & 3]), o + i, row, column + i);
            Results(operand(args.y, 2)).v[y0 + row * args.y_row + (column + i) * args.y_col] = R(v);
        }
    }
}
#endif
