// y = softmax(softcap(scale * q k^T) + bias) v. A workgroup computes BLOCK_Q queries of one head. Scores stay in registers and
// shared memory. It takes BLOCK_K keys at a time. Each row keeps the maximum of its scores and the sum of its powers so far.
// Its results are rescaled when the maximum grows (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax",
// 2018; T. Dao, "FlashAttention-2", 2023).
//
// A kernel defines before it includes this:
//   UNIT                 elements in the 16 bytes that shared memory is made of: 8 (halves) or 4 (floats)
//   UNIT_T, UNIT_ALIGN   the type that UNIT elements of q, k, v and y are moved by, and its bytes
//   LANES                lanes of a workgroup
//   DEPTH, WIDTH         SIZE and VALUE_SIZE, padded with zeros to the multiples that the kernel's products need
//   SHARED_UNITS         size of shared memory in units
// Its main() calls find_block() first.
#ifndef VKEP_ATTENTION_GLSL
#define VKEP_ATTENTION_GLSL
#include "attention_scores.glsl"

TENSOR(T, Elements)
layout(buffer_reference, std430, buffer_reference_align = UNIT_ALIGN) buffer Units { UNIT_T v[]; };

const uint K_PITCH = DEPTH / UNIT | 1;  // units per line; an odd number puts neighbouring lines into different banks
const uint V_PITCH = WIDTH / UNIT | 1;
const uint KEYS_AT = 0;
const uint VALUES_AT = KEYS_AT + BLOCK_K * K_PITCH;
const uint STAGE = VALUES_AT + BLOCK_K * V_PITCH;  // units of a block's keys and values

shared uvec4 tile[SHARED_UNITS];

#if UNIT == 8
uint pack_halves(float a, float b) { return packFloat2x16(f16vec2(a, b)); }
uvec4 pack_unit(float v[8]) {
    return uvec4(pack_halves(v[0], v[1]), pack_halves(v[2], v[3]), pack_halves(v[4], v[5]), pack_halves(v[6], v[7]));
}
uvec4 loaded(uvec4 unit) { return unit; }
uvec4 stored(uvec4 unit) { return unit; }
float element(uvec4 unit, uint i) { return unpackHalf2x16(unit[i / 2])[i % 2]; }
#else
uvec4 pack_unit(float v[4]) { return floatBitsToUint(vec4(v[0], v[1], v[2], v[3])); }
uvec4 loaded(UNIT_T unit) { return floatBitsToUint(vec4(unit)); }
UNIT_T stored(uvec4 unit) { return UNIT_T(uintBitsToFloat(unit)); }
float element(uvec4 unit, uint i) { return uintBitsToFloat(unit[i]); }
#endif

// Loads UNIT elements from element `at` on. Those from index `count` on are zero.
uvec4 load_unit(uvec2 address, uint at, uint count) {
    if (VECTORS == 1) return loaded(Units(address).v[at / UNIT]);
    float v[UNIT];
    [[unroll]] for (uint i = 0; i < UNIT; i++) v[i] = i < count ? float(Elements(address).v[at + min(i, count - 1)]) : 0.0;
    return pack_unit(v);
}

// Stores the first `count` of UNIT elements.
void store_unit(uvec2 address, uint at, uint count, uvec4 unit) {
    if (VECTORS == 1) Units(address).v[at / UNIT] = stored(unit);
    else {
        [[unroll]] for (uint i = 0; i < UNIT; i++)
            if (i < count) Elements(address).v[at + i] = T(element(unit, i));
    }
}

// Copies lines of a tensor to shared memory: fetch_NAME loads LINES of them into registers, put_NAME stores these. Lines from
// `end` on repeat the one before it: such queries are not stored, and such keys hidden.
#define LINES_IN_REGISTERS(NAME, LINES, COLUMNS, ELEMENTS, PITCH) \
    const uint NAME##_line = (COLUMNS) / UNIT, NAME##_filled = (ELEMENTS + UNIT - 1) / UNIT; \
    const uint NAME##_loads = (LINES * NAME##_line + LANES - 1) / LANES; \
    uvec4 NAME##_next[NAME##_loads]; \
    void fetch_##NAME(uvec2 address, uint at, uint stride, uint first, uint end) { \
        [[unroll]] for (uint i = 0; i < NAME##_loads; i++) { \
            uint e = gl_LocalInvocationIndex + i * LANES, line = first + e / NAME##_line; \
            uint unit = e % NAME##_line, column = min(unit, NAME##_filled - 1) * UNIT; \
            uvec4 v = load_unit(address, at + min(line, end - 1) * stride + column, ELEMENTS - column); \
            NAME##_next[i] = NAME##_line == NAME##_filled || unit < NAME##_filled ? v : uvec4(0); \
        } \
    } \
    void put_##NAME(uint at) { \
        [[unroll]] for (uint i = 0; i < NAME##_loads; i++) { \
            uint e = gl_LocalInvocationIndex + i * LANES; \
            if (LINES * NAME##_line % LANES == 0 || e < LINES * NAME##_line) \
                tile[at + e / NAME##_line * PITCH + e % NAME##_line] = NAME##_next[i]; \
        } \
    }
LINES_IN_REGISTERS(queries, BLOCK_Q, DEPTH, SIZE, K_PITCH)
LINES_IN_REGISTERS(keys, BLOCK_K, DEPTH, SIZE, K_PITCH)
LINES_IN_REGISTERS(values, BLOCK_K, WIDTH, VALUE_SIZE, V_PITCH)

// Stores UNIT results, of a row of the block from `column` on.
void store_result(uint row, uint column, uvec4 unit) {
    if (query0 + row >= args.queries || column >= VALUE_SIZE) return;
    uint y0 = group_id().z * (group_count().y * args.queries * VALUE_SIZE) + group_id().y * args.y_head;
    store_unit(operand(args.y, 5), y0 + (query0 + row) * args.y_row + column, VALUE_SIZE - column, unit);
}
#endif
