// y[block] (m by n) = a[block] (m by k) @ b[owners[block]] (n by k, transposed), by shared-memory tiles (shared_tile.glsl). All
// operands are contiguous. Workgroup z is the block. Blocks whose owner is not a group are not written. With CODES, b holds codes
// of 2, 4 or 8 bits in rows of whole words; BLOCK neighbours along k share a scale.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#ifdef CODES
#define CODE_OPERANDS uvec2 scales; uvec2 zeros;
#define CODE_PARAMS uint zero_bytes;
#else
#define CODE_OPERANDS
#define CODE_PARAMS
#endif
#define ARGS_BODY { uvec2 a; uvec2 b; uvec2 owners; uvec2 y; CODE_OPERANDS uint m; uint n; uint k; uint groups; CODE_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"

TENSOR(T, Elements)
TENSOR(uint, Words)
layout(buffer_reference, std430, buffer_reference_align = 8) buffer WideElements { WIDE_T v[]; };
Elements a;
WideElements a_wide;
uint row0, column0, a0, owner;

float load_a(uint row, uint k) { return row0 + row < args.m && k < args.k ? float(a.v[a0 + (row0 + row) * args.k + k]) : 0.0; }
vec4 load_a_wide(uint row, uint k) {
    return row0 + row < args.m && k < args.k ? vec4(a_wide.v[(a0 + (row0 + row) * args.k + k) / 4]) : vec4(0.0);
}
#ifdef CODES
layout(constant_id = 14) const uint BITS = 4;
layout(constant_id = 15) const uint BLOCK = 32;
layout(constant_id = 16) const uint ZEROS = 0;  // 0: half of the codes' range; packed codes: 1 of each row's blocks, 2 of a group's rows
TENSOR(uint8_t, Bytes)
Words codes;
Elements scales;
Bytes zeros;

// Four weights from a multiple of four on.
vec4 load_b_wide(uint column, uint k) {
    column += column0;
    if (column >= args.n || k >= args.k) return vec4(0.0);
    uint row = owner * args.n + column, block = k / BLOCK, at = row * args.k + k;
    uint word = codes.v[at / (32 / BITS)] >> at % (32 / BITS) * BITS;
    float zero = float(1u << (BITS - 1));
    if (ZEROS != 0) {
        uint bit = (ZEROS == 1 ? block : column) * BITS, first = (ZEROS == 1 ? row : owner) * args.zero_bytes;
        zero = float(uint(zeros.v[first + bit / 8]) >> bit % 8 & (1u << BITS) - 1);
    }
    uvec4 four = uvec4(word, word >> BITS, word >> 2 * BITS, word >> 3 * BITS) & ((1u << BITS) - 1);
    return (vec4(four) - zero) * float(scales.v[row * (args.k / BLOCK) + block]);
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
    codes = Words(operand(args.b, 1));
    scales = Elements(operand(args.scales, 4));
    zeros = Bytes(operand(args.zeros, 5));
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
