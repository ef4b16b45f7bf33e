// y[batch] = alpha * a[batch] (m by k) * b[batch] (k by n), strides in elements, by shared-memory tiles (shared_tile.glsl).
//
// Workgroup z is (batch * splits + split). With PARTIAL each split stores its sums to partials[split, batch, m, n], for
// matmul_reduce.comp to add; else there is one split and y is stored.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; WRITTEN y; EXTRA_OPERANDS \
    uint m; uint n; uint k; uint batch1; uint splits; uint split_k; uint a_row; uint a_col; uint b_row; uint b_col; \
    uint y_row; uint y_col; uint a_batch0; uint a_batch1; uint b_batch0; uint b_batch1; uint y_batch0; uint y_batch1; \
    float alpha; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 11) const uint PARTIAL = 0;

TENSOR(T, Elements)
TENSOR(float, Partial)
layout(buffer_reference, std430, buffer_reference_align = 8) buffer WideElements { WIDE_T v[]; };
Elements a, b;
WideElements a_wide, b_wide;
uint row0, column0, a0, b0, k_end;

float load_a(uint row, uint k) {
    return row0 + row < args.m && k < k_end ? float(a.v[a0 + (row0 + row) * args.a_row + k * args.a_col]) : 0.0;
}
float load_b(uint column, uint k) {
    return column0 + column < args.n && k < k_end ? float(b.v[b0 + k * args.b_row + (column0 + column) * args.b_col]) : 0.0;
}
// Four elements from an aligned address, all inside the operand or none.
vec4 load_a_wide(uint row, uint k) {
    bool inside = row0 + row < args.m && k < k_end;
    return inside ? vec4(a_wide.v[(a0 + (row0 + row) * args.a_row + k * args.a_col) / 4]) : vec4(0.0);
}
vec4 load_b_wide(uint column, uint k) {
    bool inside = column0 + column < args.n && k < k_end;
    return inside ? vec4(b_wide.v[(b0 + k * args.b_row + (column0 + column) * args.b_col) / 4]) : vec4(0.0);
}
void begin_stage(uint k) {}
#include "shared_tile.glsl"

void main() {
    uint split = group_id().z % args.splits, batch = group_id().z / args.splits;
    uint batch0 = batch / args.batch1, batch1 = batch % args.batch1;
    row0 = group_id().y * TILE_M;
    column0 = group_id().x * TILE_N;
    a = Elements(operand(args.a, 0));
    b = Elements(operand(args.b, 1));
    a_wide = WideElements(operand(args.a, 0));
    b_wide = WideElements(operand(args.b, 1));
    a0 = batch0 * args.a_batch0 + batch1 * args.a_batch1;
    b0 = batch0 * args.b_batch0 + batch1 * args.b_batch1;
    k_end = min((split + 1) * args.split_k, args.k);
    multiply_tile(split * args.split_k, k_end);

    uint y0 = batch0 * args.y_batch0 + batch1 * args.y_batch1;
    uint o0 = batch * args.m * args.n, partial0 = split * (group_count().z / args.splits * args.m * args.n);
    [[unroll]] for (uint i = 0; i < MICRO_M; i++) {
        [[unroll]] for (uint j = 0; j < MICRO_N; j++) {
            uint row = row0 + micro_row(i), column = column0 + micro_column(j), o = o0 + row * args.n + column;
            if (row < args.m && column < args.n) {
                float v = acc[i * MICRO_N + j];
                if (PARTIAL == 1) Partial(operand(args.y, 2)).v[partial0 + o] = v;
                else Elements(operand(args.y, 2)).v[y0 + row * args.y_row + column * args.y_col] = T(epilogue(args.alpha * v, o, row, column));
            }
        }
    }
}
