// y[batch] = alpha * a[batch] (m by k) * b[batch] (k by n) on cooperative matrices, float16 with float32 sums, or (CODES) int8 with
// int32 sums, which are converted to float32. Behind b of CODES, which is [n, b_col], lies an int for each column (LESS).
//
// Strides in elements. A_VECTOR: a runs along k in aligned units of 16 bytes; B_VECTOR: b does so along k (B_ALONG_K) or along
// its columns. Otherwise elements are loaded one by one. Workgroup z is (batch * splits + split), PARTIAL as in
// matmul_tiled.comp.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "cooperative.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; WRITTEN y; EXTRA_OPERANDS \
    uint m; uint n; uint k; uint batch1; uint splits; uint split_k; uint a_row; uint a_col; uint b_row; uint b_col; \
    uint y_row; uint y_col; uint a_batch0; uint a_batch1; uint b_batch0; uint b_batch1; uint y_batch0; uint y_batch1; \
    float alpha; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 18) const uint A_VECTOR = 1;
layout(constant_id = 19) const uint B_VECTOR = 1;  // 2: along columns, in aligned groups of four
layout(constant_id = 20) const uint BAND = 16;

TENSOR(T, Elements)
layout(buffer_reference, std430, buffer_reference_align = 8) buffer HalfUnits { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Units { uvec4 v[]; };

Elements a, b;
Units a_units, b_units;
uint row0, column0, a0, b0, k_end;

void begin_stage(uint k) {}

// Rows and columns past the edge repeat the last one: their results are not stored.
uvec4 load_a(uint row, uint k, uint) {
    if (WHOLE_K == 0 && k >= k_end) return uvec4(0);
    uint at = a0 + min(row0 + row, args.m - 1) * args.a_row;
    if (A_VECTOR == 1) return a_units.v[(at + k) / UNIT];
    uvec4 units;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        T word[WORD];
        [[unroll]] for (uint j = 0; j < WORD; j++) {
            uint step = k + WORD * i + j;
            word[j] = step < k_end ? a.v[at + step * args.a_col] : T(0.0);
        }
        units[i] = pack_word(word);
    }
    return units;
}

uvec4 load_b(uint column, uint k) {
    if (WHOLE_K == 0 && k >= k_end) return uvec4(0);
    column += column0;
    if (B_VECTOR == 1)
        return b_units.v[(b0 + (B_ALONG_K == 1 ? min(column, args.n - 1) * args.b_col + k : k * args.b_row + min(column, args.n - UNIT))) / UNIT];
    if (B_VECTOR == 2) {
        uint line = b0 + k * args.b_row;
        HalfUnits b_halves = HalfUnits(operand(args.b, 1));
        return uvec4(b_halves.v[(line + min(column, args.n - 4)) / 4], b_halves.v[(line + min(column + 4, args.n - 4)) / 4]);
    }
    uvec4 units;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        T word[WORD];
        [[unroll]] for (uint j = 0; j < WORD; j++) {
            uint step = WORD * i + j, row = B_ALONG_K == 1 ? k + step : k;
            uint at = b0 + row * args.b_row + min(B_ALONG_K == 1 ? column : column + step, args.n - 1) * args.b_col;
            word[j] = row < k_end ? b.v[at] : T(0.0);
        }
        units[i] = pack_word(word);
    }
    return units;
}

#include "cooperative_band.glsl"
#include "cooperative_store.glsl"
#include "cooperative_tile.glsl"

void main() {
    uint split = group_id().z % args.splits, batch = group_id().z / args.splits;
    uint batch0 = batch / args.batch1, batch1 = batch % args.batch1;
    if (!find_tile()) return;
    a = Elements(operand(args.a, 0));
    b = Elements(operand(args.b, 1));
    a_units = Units(operand(args.a, 0));
    b_units = Units(operand(args.b, 1));
    a0 = batch0 * args.a_batch0 + batch1 * args.a_batch1;
#ifdef CODES
    uint carry;
    less_address = uvec2(b_units);
    less_address.x = uaddCarry(less_address.x, args.n * args.b_col, carry);
    less_address.y += carry;
#endif
    b0 = batch0 * args.b_batch0 + batch1 * args.b_batch1;
    y0 = batch0 * args.y_batch0 + batch1 * args.y_batch1;
    o0 = batch * args.m * args.n;
    partial0 = split * (group_count().z / args.splits * args.m * args.n);
    k_end = min((split + 1) * args.split_k, args.k);
    multiply_tile(split * args.split_k, k_end);
}
