// y[block] (m by n) = a[block] (m by k) @ b[owners[block]] (n by k, transposed), by shared-memory tiles (shared_tile.glsl). All
// operands are contiguous. Workgroup z is the block. Blocks whose owner is not a group are not written. With CODES, b holds codes
// of 2, 4 or 8 bits in rows of whole words; BLOCK neighbours along k share a scale.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "grouped.glsl"
#include "workgroup.glsl"

TENSOR(T, Elements)
layout(buffer_reference, std430, buffer_reference_align = 8) buffer WideElements { WIDE_T v[]; };
Elements a;
WideElements a_wide;
uint row0, column0, a0;

float load_a(uint row, uint k) { return row0 + row < args.m && k < args.k ? float(a.v[a0 + (row0 + row) * args.k + k]) : 0.0; }
vec4 load_a_wide(uint row, uint k) {
    return row0 + row < args.m && k < args.k ? vec4(a_wide.v[(a0 + (row0 + row) * args.k + k) / 4]) : vec4(0.0);
}
#ifdef CODES
// Four weights from a multiple of four on.
vec4 load_b_wide(uint column, uint k) {
    return column0 + column < args.n && k < args.k ? four_weights(column0 + column, k) : vec4(0.0);
}
float load_b(uint column, uint k) { return k < args.k ? load_b_wide(column, k / 4 * 4)[k % 4] : 0.0; }
#else
Elements b;
WideElements b_wide;
uint b0;

float load_b(uint column, uint k) {
    return column0 + column < args.n && k < args.k ? float(b.v[b0 + (column0 + column) * args.k + k]) : 0.0;
}
vec4 load_b_wide(uint column, uint k) {
    return column0 + column < args.n && k < args.k ? vec4(b_wide.v[(b0 + (column0 + column) * args.k + k) / 4]) : vec4(0.0);
}
#endif
void begin_stage(uint k) {}
#include "shared_tile.glsl"

void main() {
    uint block = group_id().z;
    owner = Words(operand(args.owners, 2)).v[block];
    if (owner >= args.groups) return;
    row0 = group_id().y * TILE_M;
    column0 = group_id().x * TILE_N;
    a = Elements(operand(args.a, 0));
    a_wide = WideElements(operand(args.a, 0));
    a0 = block * args.m * args.k;
#ifdef CODES
    open_codes();
#else
    b = Elements(operand(args.b, 1));
    b_wide = WideElements(operand(args.b, 1));
    b0 = owner * args.n * args.k;
#endif
    multiply_tile(0, args.k);
    Elements y = Elements(operand(args.y, 3));
    [[unroll]] for (uint i = 0; i < MICRO_M; i++) {
        [[unroll]] for (uint j = 0; j < MICRO_N; j++) {
            uint row = row0 + micro_row(i), column = column0 + micro_column(j);
            if (row < args.m && column < args.n) y.v[(block * args.m + row) * args.n + column] = T(acc[i * MICRO_N + j]);
        }
    }
}
