// Batched matrix product in the element types that the fast kernels do not support: integers (sums wrap, as ONNX's do)
// and double. A lane computes MICRO_M by MICRO_N results from registers. A_T and B_T in memory, ACC_T for sums and
// result.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; WRITTEN y; uint m; uint n; uint k; uint total; \
    uint tiles_n; uint tiles_n_mul; uint tiles_n_shift; uint tiles_m; uint tiles_m_mul; uint tiles_m_shift; uint batch1; \
    uint a_batch0; uint a_batch1; uint a_row; uint a_col; uint b_batch0; uint b_batch1; uint b_row; uint b_col; }
#include "args.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint MICRO_M = 4;
layout(constant_id = 5) const uint MICRO_N = 4;

TENSOR(A_T, A)
TENSOR(B_T, B)
TENSOR(Y_T, Y)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint tile_n, tile_m;
    uint rest = fast_divmod(id, args.tiles_n, args.tiles_n_mul, args.tiles_n_shift, tile_n);
    uint batch = fast_divmod(rest, args.tiles_m, args.tiles_m_mul, args.tiles_m_shift, tile_m);
    A a = A(operand(args.a, 0));
    B b = B(operand(args.b, 1));
    Y y = Y(operand(args.y, 2));
    uint outer = batch / args.batch1, inner = batch % args.batch1;
    uint a0 = outer * args.a_batch0 + inner * args.a_batch1, b0 = outer * args.b_batch0 + inner * args.b_batch1;
    uint a_at[MICRO_M], b_at[MICRO_N];
    // rows and columns past the edge read the last one and are not stored
    [[unroll]] for (uint i = 0u; i < MICRO_M; ++i) a_at[i] = a0 + min(tile_m * MICRO_M + i, args.m - 1u) * args.a_row;
    [[unroll]] for (uint j = 0u; j < MICRO_N; ++j) b_at[j] = b0 + min(tile_n * MICRO_N + j, args.n - 1u) * args.b_col;
    ACC_T sums[MICRO_M][MICRO_N];
    [[unroll]] for (uint i = 0u; i < MICRO_M; ++i)
        [[unroll]] for (uint j = 0u; j < MICRO_N; ++j) sums[i][j] = ACC_T(0);
    for (uint k = 0u; k < args.k; ++k) {
        ACC_T column[MICRO_N];
        [[unroll]] for (uint j = 0u; j < MICRO_N; ++j) column[j] = ACC_T(b.v[b_at[j] + k * args.b_row]);
        [[unroll]] for (uint i = 0u; i < MICRO_M; ++i) {
            ACC_T value = ACC_T(a.v[a_at[i] + k * args.a_col]);
            [[unroll]] for (uint j = 0u; j < MICRO_N; ++j) sums[i][j] += value * column[j];
        }
    }
    [[unroll]] for (uint i = 0u; i < MICRO_M; ++i) {
        uint row = tile_m * MICRO_M + i;
        if (row >= args.m) break;
        [[unroll]] for (uint j = 0u; j < MICRO_N; ++j) {
            uint col = tile_n * MICRO_N + j;
            if (col < args.n) y.v[(batch * args.m + row) * args.n + col] = Y_T(sums[i][j]);
        }
    }
}
