// y (m by n) = a (m by k) @ W for a W of codes of 2, 4 or 8 bits in blocks that have a scale each (com.microsoft MatMulNBits), by
// shared-memory tiles (shared_tile.glsl). Workgroup z is the split, PARTIAL as in matmul_tiled.comp.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; WRITTEN y; uvec2 scales; uvec2 zeros; EXTRA_OPERANDS \
    uint m; uint n; uint k; uint splits; uint split_k; uint y_row; uint y_col; uint blocks; uint zero_bytes; float alpha; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 11) const uint PARTIAL = 0;
layout(constant_id = 14) const uint BITS = 4;
layout(constant_id = 15) const uint BLOCK = 32;
layout(constant_id = 16) const uint ZEROS = 0;  // 0: half of the codes' range, 1: packed codes, 2: values of T

TENSOR(T, Elements)
TENSOR(uint, Words)
TENSOR(uint8_t, Bytes)
TENSOR(float, Partial)
layout(buffer_reference, std430, buffer_reference_align = 8) buffer WideElements { WIDE_T v[]; };
Elements a, scales;
Words words;
WideElements a_wide;
uint row0, column0, k_end;

float load_a(uint row, uint k) { return row0 + row < args.m && k < k_end ? float(a.v[(row0 + row) * args.k + k]) : 0.0; }
vec4 load_a_wide(uint row, uint k) {
    bool inside = row0 + row < args.m && k < k_end;
    return inside ? vec4(a_wide.v[((row0 + row) * args.k + k) / 4]) : vec4(0.0);
}
// Four weights; the index of the first is a multiple of four.
vec4 load_b_wide(uint column, uint k) {
    column += column0;
    if (column >= args.n || k >= k_end) return vec4(0.0);
    uint block = k / BLOCK, bit = (column * args.blocks * BLOCK + k) % (32 / BITS) * BITS;
    uint codes = words.v[(column * args.blocks * BLOCK + k) / (32 / BITS)] >> bit;
    float zero = float(1u << (BITS - 1));
    if (ZEROS == 1) {
        uint at = block * BITS;
        zero = float((uint(Bytes(operand(args.zeros, 4)).v[column * args.zero_bytes + at / 8]) >> (at % 8)) & ((1u << BITS) - 1));
    } else if (ZEROS == 2) {
        zero = float(Elements(operand(args.zeros, 4)).v[column * args.blocks + block]);
    }
    uvec4 four = uvec4(codes, codes >> BITS, codes >> 2 * BITS, codes >> 3 * BITS) & ((1u << BITS) - 1);
    return (vec4(four) - zero) * float(scales.v[column * args.blocks + block]);
}
float load_b(uint column, uint k) { return k < k_end ? load_b_wide(column, k / 4 * 4)[k % 4] : 0.0; }
void begin_stage(uint k) {}
#include "shared_tile.glsl"

void main() {
    uint split = group_id().z;
    row0 = group_id().y * TILE_M;
    column0 = group_id().x * TILE_N;
    a = Elements(operand(args.a, 0));
    a_wide = WideElements(operand(args.a, 0));
    words = Words(operand(args.b, 1));
    scales = Elements(operand(args.scales, 3));
    k_end = min((split + 1) * args.split_k, args.k);
    multiply_tile(split * args.split_k, k_end);
    [[unroll]] for (uint i = 0; i < MICRO_M; i++) {
        [[unroll]] for (uint j = 0; j < MICRO_N; j++) {
            uint row = row0 + micro_row(i), column = column0 + micro_column(j), o = row * args.n + column;
            if (row < args.m && column < args.n) {
                float v = acc[i * MICRO_N + j];
                if (PARTIAL == 1) Partial(operand(args.y, 2)).v[split * args.m * args.n + o] = v;
                else Elements(operand(args.y, 2)).v[row * args.y_row + column * args.y_col] = T(epilogue(args.alpha * v, o, row, column));
            }
        }
    }
}
