// y[batch] = alpha * a[batch] (m by k) * W[batch] (k by n) for few rows and a W that is dense along k: floats, or codes of 2, 4
// or 8 bits in blocks that have a scale each (com.microsoft MatMulNBits). Its time is that of reading W once at the full memory
// bandwidth.
//
// K_LANES neighbouring lanes share COLUMNS columns of W. Each lane takes every K_LANES-th unit of WORDS words (WORDS 0: one
// float), with UNROLL loads of each column in flight. Sums are added across lanes by shuffles (among SUBGROUP_LANES; 1: none),
// then through shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; uvec2 scales; uvec2 zeros; WRITTEN y; EXTRA_OPERANDS \
    uint m; uint n; uint k; uint units; uint blocks; uint zero_bytes; uint batch1; uint a_row; uint a_col; uint b_col; \
    uint y_row; uint y_col; uint a_batch0; uint a_batch1; uint b_batch0; uint b_batch1; uint y_batch0; uint y_batch1; \
    float alpha; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"
#ifdef SUBGROUP_SHUFFLE
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

layout(constant_id = 4) const uint BITS = 4;  // bits per weight: 2, 4 or 8, or those of T
layout(constant_id = 5) const uint ROWS = 1;
layout(constant_id = 6) const uint COLUMNS = 4;
layout(constant_id = 7) const uint K_LANES = 32;
layout(constant_id = 8) const uint UNROLL = 4;
layout(constant_id = 9) const uint WORDS = 1;
layout(constant_id = 10) const uint BLOCK = 32;  // weights per scale, at least a unit's; 0: no scales
layout(constant_id = 11) const uint ZEROS = 0;   // 0: half of the codes' range, 1: packed codes, 2: values of T
layout(constant_id = 12) const uint A_WIDE = 0;  // 1: a's rows lie in aligned groups of 16 bytes, and k is whole units
layout(constant_id = 14) const uint WHOLE_TURNS = 0;  // 1: the units are a multiple of what an iteration takes
layout(constant_id = 13) const uint T_BYTES = 4;
layout(constant_id = 15) const uint SUBGROUP_LANES = 1;

const uint UNIT_K = WORDS == 0 ? 1 : WORDS * 32 / BITS;
const uint FOURS = WORDS == 0 ? 1 : UNIT_K / 4;  // groups of four weights per unit
const uint LOADED = WORDS == 0 ? 1 : WORDS;
const uint A_EACH = 16 / T_BYTES;
const uint A_QUADS = UNIT_K < A_EACH ? 1 : UNIT_K / A_EACH;
const uint MASK = BITS < 16 ? (1u << BITS) - 1 : 0;
const uint VALUES = ROWS * COLUMNS;
const uint WITHIN = K_LANES < SUBGROUP_LANES ? K_LANES : SUBGROUP_LANES;
const uint PARTS = K_LANES / WITHIN;

TENSOR(T, Elements)
layout(buffer_reference, scalar) readonly buffer Floats { T v[]; };
layout(buffer_reference, scalar) readonly buffer Bytes { uint8_t v[]; };
layout(buffer_reference, scalar) readonly buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pairs { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 v[]; };
shared float parts[gl_WorkGroupSize.x / WITHIN * VALUES];

Floats a, b, scales;
Words b_words;
Pairs b_pairs;
Quads a_quads, b_quads;
Bytes zeros;

uint words[UNROLL * COLUMNS * LOADED];
float loaded_scale[UNROLL * COLUMNS], loaded_zero[UNROLL * COLUMNS];
vec4 x[ROWS * FOURS];  // a row's elements for one unit of weights, divided by the weights' place values
float x_sum[ROWS];
uvec4 raw_x[A_WIDE == 1 ? UNROLL * ROWS * A_QUADS : 1];

void load_unit(uint slot, uint at) {  // `at` counts units
    if (WORDS == 4) {
        uvec4 four = b_quads.v[at];
        [[unroll]] for (uint i = 0; i < 4 && i < LOADED; i++) words[slot * LOADED + i] = four[i];
    } else if (WORDS == 2) {
        uvec2 two = b_pairs.v[at];
        [[unroll]] for (uint i = 0; i < 2 && i < LOADED; i++) words[slot * LOADED + i] = two[i];
    } else if (WORDS == 1) {
        words[slot] = b_words.v[at];
    } else {
        words[slot] = floatBitsToUint(float(b.v[at]));
    }
}

// Codes are extracted from a word, or its upper half, without shifting: each is a code times its place value.
uvec4 places(uint four) {
    uint first = BITS == 2 ? 1u << (four % 2 * 8) : 1u;
    return BITS == 8 ? uvec4(1, 256, 1, 256) : first * uvec4(1, 1 << BITS % 16, 1 << 2 * BITS % 16, 1 << 3 * BITS % 16);
}

// Four weights of a unit. A float in [2**23, 2**24) has its integer part in its low bits, so codes need no conversion
// instruction.
vec4 weights(uint slot, uint four) {
    uint at = slot * LOADED;
    if (WORDS == 0) return vec4(uintBitsToFloat(words[at]), 0.0, 0.0, 0.0);
    if (BITS == 32) return uintBitsToFloat(uvec4(words[at], words[at + 1 % LOADED], words[at + 2 % LOADED], words[at + 3 % LOADED]));
    if (BITS == 16) return vec4(unpackHalf2x16(words[at + four * 2 % LOADED]), unpackHalf2x16(words[at + (four * 2 + 1) % LOADED]));
    const uint of_word = BITS < 16 ? 8 / BITS : 1;  // fours
    uint word = words[at + four / of_word], high = word >> 16;
    uvec4 source = BITS == 8 ? uvec4(word, word, high, high) : uvec4(four % of_word < of_word / 2 ? word : high);
    return uintBitsToFloat(source & MASK * places(four) | 0x4b000000u) - 8388608.0;
}

// Loads a row's elements for unit `u`; they are zero past the end of k. With A_WIDE they were loaded with the weights.
void set_x(uint s, uint r, uint row_at, uint u) {
    float sum = 0.0;
    [[unroll]] for (uint four = 0; four < FOURS; four++) {
        vec4 value = vec4(0.0);
        if (A_WIDE == 1) {
            uvec4 raw = raw_x[(s * ROWS + r) * A_QUADS + four / (A_EACH / 4)];
            uvec2 pair = T_BYTES == 2 && four % 2 == 1 ? raw.zw : raw.xy;
            value = T_BYTES == 2 ? vec4(unpackHalf2x16(pair.x), unpackHalf2x16(pair.y)) : uintBitsToFloat(raw);
        } else {
            [[unroll]] for (uint e = 0; e < 4 && e < UNIT_K; e++) {
                uint k = u * UNIT_K + four * 4 + e;
                value[e] = k < args.k ? float(a.v[row_at + k * args.a_col]) : 0.0;
            }
        }
        sum += dot(value, vec4(1.0));
        x[r * FOURS + four] = BITS < 16 ? value * (1.0 / vec4(places(four))) : value;
    }
    x_sum[r] = sum;
}

uint a_at[ROWS], b_at[COLUMNS], block_at[COLUMNS], zero_at[COLUMNS];  // first elements of rows and columns
float acc[VALUES];

void load_turn(uint u0) {
    [[unroll]] for (uint s = 0; s < UNROLL; s++) {
        uint u = WHOLE_TURNS == 1 ? u0 + s * K_LANES : min(u0 + s * K_LANES, args.units - 1);
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) load_unit(s * COLUMNS + c, b_at[c] + u);
        if (A_WIDE == 1)
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                [[unroll]] for (uint q = 0; q < A_QUADS; q++)
                    raw_x[(s * ROWS + r) * A_QUADS + q] = a_quads.v[(a_at[r] + u * UNIT_K) / A_EACH + q];
        if (BLOCK != 0) {
            uint block = u * UNIT_K / BLOCK;
            [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
                loaded_scale[s * COLUMNS + c] = float(scales.v[block_at[c] + block]);
                float zero = float(1u << (BITS - 1) % 32);
                if (ZEROS == 1) {
                    uint bit = block * BITS;
                    zero = float((uint(zeros.v[zero_at[c] + bit / 8]) >> (bit % 8)) & MASK);
                } else if (ZEROS == 2) {
                    zero = float(Floats(operand(args.zeros, 3)).v[block_at[c] + block]);
                }
                loaded_zero[s * COLUMNS + c] = zero;
            }
        }
    }
}

void multiply_turn(uint u0) {
    [[unroll]] for (uint s = 0; s < UNROLL; s++) {
        uint u = u0 + s * K_LANES;
        bool counts = WHOLE_TURNS == 1 || u < args.units;
        [[unroll]] for (uint r = 0; r < ROWS; r++) set_x(s, r, a_at[r], u);
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            float sums[ROWS];
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                sums[r] = BLOCK != 0 ? -loaded_zero[s * COLUMNS + c] * x_sum[r] : acc[r * COLUMNS + c];
            [[unroll]] for (uint four = 0; four < FOURS; four++) {
                vec4 w = weights(s * COLUMNS + c, four);
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    vec4 v = x[r * FOURS + four];
                    sums[r] = fma(w.w, v.w, fma(w.z, v.z, fma(w.y, v.y, fma(w.x, v.x, sums[r]))));
                }
            }
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                float old = acc[r * COLUMNS + c];
                float sum = BLOCK != 0 ? fma(loaded_scale[s * COLUMNS + c], sums[r], old) : sums[r];
                acc[r * COLUMNS + c] = counts ? sum : old;
            }
        }
    }
}

void main() {
    uint id = gl_LocalInvocationIndex, lane = id % K_LANES, group = id / K_LANES;
    uint column0 = (flat_group() * (gl_WorkGroupSize.x / K_LANES) + group) * COLUMNS;
    uint row_tiles = (args.m + ROWS - 1) / ROWS, row0 = group_id().z % row_tiles * ROWS, batch = group_id().z / row_tiles;
    uint batch0 = batch / args.batch1, batch1 = batch % args.batch1;
    a = Floats(operand(args.a, 0));
    a_quads = Quads(operand(args.a, 0));
    b = Floats(operand(args.b, 1));
    b_words = Words(operand(args.b, 1));
    b_pairs = Pairs(operand(args.b, 1));
    b_quads = Quads(operand(args.b, 1));
    scales = Floats(operand(args.scales, 2));
    zeros = Bytes(operand(args.zeros, 3));

    // Rows and columns past the edge repeat the last one: their results are not stored.
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        a_at[r] = batch0 * args.a_batch0 + batch1 * args.a_batch1 + min(row0 + r, args.m - 1) * args.a_row;
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        uint column = min(column0 + c, args.n - 1);
        b_at[c] = (batch0 * args.b_batch0 + batch1 * args.b_batch1 + column * args.b_col) / UNIT_K;
        block_at[c] = column * args.blocks;
        zero_at[c] = column * args.zero_bytes;
    }

    [[unroll]] for (uint v = 0; v < VALUES; v++) acc[v] = 0.0;
    for (uint u = lane; u < args.units; u += K_LANES * UNROLL) {
        load_turn(u);
        multiply_turn(u);
    }

#ifdef SUBGROUP_SHUFFLE
    for (uint mask = WITHIN / 2; mask > 0; mask /= 2)
        [[unroll]] for (uint v = 0; v < VALUES; v++) acc[v] += subgroupShuffleXor(acc[v], mask);
#endif
    if (id % WITHIN == 0) [[unroll]] for (uint v = 0; v < VALUES; v++) parts[id / WITHIN * VALUES + v] = acc[v];
    barrier();
    uint y0 = batch0 * args.y_batch0 + batch1 * args.y_batch1, o0 = batch * args.m * args.n;
    for (uint v = lane; v < VALUES; v += K_LANES) {
        uint row = row0 + v / COLUMNS, column = column0 + v % COLUMNS;
        if (row < args.m && column < args.n) {
            float sum = 0.0;
            [[unroll]] for (uint p = 0; p < PARTS; p++) sum += parts[(group * PARTS + p) * VALUES + v];
            Elements(operand(args.y, 4)).v[y0 + row * args.y_row + column * args.y_col] =
                T(epilogue(args.alpha * sum, o0 + row * args.n + column, row, column));
        }
    }
}
