// y (m by n) = a (m by k) @ W for a W of codes of 2, 4 or 8 bits in blocks that have a scale each (com.microsoft MatMulNBits),
// float16 with float32 sums, on cooperative matrices. Codes are converted to float16 when they are stored to shared memory.
//
// A_VECTOR: a is loaded along k in aligned groups of eight, otherwise one element at a time. Workgroup z is the split, PARTIAL
// as in matmul_tiled.comp.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "cooperative.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; WRITTEN y; uvec2 scales; uvec2 zeros; EXTRA_OPERANDS \
    uint m; uint n; uint k; uint splits; uint split_k; uint y_row; uint y_col; uint blocks; uint zero_bytes; float alpha; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 18) const uint A_VECTOR = 1;
layout(constant_id = 19) const uint BITS = 4;
layout(constant_id = 20) const uint BAND = 16;
layout(constant_id = 22) const uint BLOCK = 32;  // weights per scale, 16 or more
layout(constant_id = 23) const uint ZEROS = 0;   // 0: half of the codes' range, 1: packed codes, 2: values of T

TENSOR(T, Elements)
TENSOR(uint16_t, Shorts)
TENSOR(uint, Words)
TENSOR(uint8_t, Bytes)
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Units { uvec4 v[]; };

Elements a;
Units a_units;
Words b_words;
Shorts b_shorts, scales;
uint row0, column0, k_end;

void begin_stage(uint k) {}

// Rows and columns past the edge repeat the last one, and their results are not stored.
uvec4 load_a(uint row, uint k, uint) {
    if (WHOLE_K == 0 && k >= k_end) return uvec4(0);
    uint at = min(row0 + row, args.m - 1) * args.k + k;
    if (A_VECTOR == 1) return a_units.v[at / 8];
    uvec4 units;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        float low = k + 2 * i < k_end ? float(a.v[at + 2 * i]) : 0.0;
        float high = k + 2 * i + 1 < k_end ? float(a.v[at + 2 * i + 1]) : 0.0;
        units[i] = packFloat2x16(f16vec2(low, high));
    }
    return units;
}

// Eight codes and the values for their conversion, as loaded: (codes, further codes of 8 bits or the position of the zero point
// in its byte, scale, zero point). They are first used when they are staged, so that loads overlap.
uvec4 load_b(uint column, uint k) {
    if (WHOLE_K == 0 && k >= k_end) return uvec4(0);
    column = min(column0 + column, args.n - 1);
    uint at = column * args.blocks * BLOCK + k, block = k / BLOCK;
    uvec4 raw = uvec4(0);
    if (BITS == 8) raw.xy = uvec2(b_words.v[at / 4], b_words.v[at / 4 + 1]);
    else raw.x = BITS == 4 ? b_words.v[at / 8] : uint(b_shorts.v[at / 8]);
    raw.z = uint(scales.v[column * args.blocks + block]);
    if (ZEROS == 1) {
        uint bit = block * BITS;
        if (BITS < 8) raw.y = bit % 8;
        raw.w = uint(Bytes(operand(args.zeros, 4)).v[column * args.zero_bytes + bit / 8]);
    } else if (ZEROS == 2) {
        raw.w = uint(Shorts(operand(args.zeros, 4)).v[column * args.blocks + block]);
    }
    return raw;
}

// The lowest bits of a float16 in [1024, 2048) are its integer part, so codes need no conversion instruction.
uvec4 halves_of(uvec4 raw) {
    f16vec2 scale = f16vec2(unpackFloat2x16(raw.z).x), zero = f16vec2(1 << (BITS - 1));
    if (ZEROS == 1) zero = f16vec2(BITS == 8 ? raw.w : raw.w >> raw.y & (1u << BITS) - 1);
    else if (ZEROS == 2) zero = f16vec2(unpackFloat2x16(raw.w).x);
    uvec4 units;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint word = BITS == 8 && i > 1 ? raw.y : raw.x, pair = word >> (2 * BITS * (BITS == 8 ? i % 2 : i)), mask = (1u << BITS) - 1;
        uint codes = pair & mask | (pair & mask << BITS) << (16 - BITS);
        units[i] = packFloat2x16((unpackFloat2x16(codes | 0x64006400u) - f16vec2(1024.0) - zero) * scale);
    }
    return units;
}
#define B_STAGED(unit) halves_of(unit)

#include "cooperative_band.glsl"
#include "cooperative_store.glsl"
#include "cooperative_tile.glsl"

void main() {
    uint split = group_id().z;
    if (!find_tile()) return;
    a = Elements(operand(args.a, 0));
    a_units = Units(operand(args.a, 0));
    b_words = Words(operand(args.b, 1));
    b_shorts = Shorts(operand(args.b, 1));
    scales = Shorts(operand(args.scales, 3));
    y0 = 0;
    o0 = 0;
    partial0 = split * args.m * args.n;
    k_end = min((split + 1) * args.split_k, args.k);
    multiply_tile(split * args.split_k, k_end);
}
