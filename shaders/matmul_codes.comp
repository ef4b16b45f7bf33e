// y (m by n) = a (m by k) @ W for few rows and a W of codes of 2, 4 or 8 bits in blocks that have a scale each (com.microsoft
// MatMulNBits), by dot products of packed bytes.
//
// a is converted to integers in shared memory: each 32 elements of a row are scaled by the largest of them, to DIGITS signed
// bytes (two: 16 bits, more than the precision of float16; three: 24 bits, the precision of float32). Codes then need no
// conversion: four are extracted from a word at once, and dot products are exact. K_LANES neighbouring lanes share COLUMNS
// columns; each takes every K_LANES-th unit of 32 weights. While the workgroup multiplies a slab of K_LANES units, the next
// slab of a and of the weights is being loaded into registers. Sums are added across lanes by shuffles, then through shared
// memory.
//
// NORMED (one row): a is replaced by its RMS norm, a * gain / sqrt(mean of a's squares + epsilon). PAIRED: products by two W of
// n columns each. Half of a lane's COLUMNS belong to each W, and the epilogue computes one y from both. TURNED (one row): pairs
// of columns of one W that are half a head apart. They are rotated and stored as turned.glsl describes.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_integer_dot_product : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "vkep.glsl"
#ifdef NORMED
#define NORM_OPERANDS uvec2 gain;
#define NORM_PARAMS float epsilon;
#else
#define NORM_OPERANDS
#define NORM_PARAMS
#endif
#ifdef PAIRED
#define PAIR_OPERANDS uvec2 b2; uvec2 scales2; uvec2 zeros2;
#else
#define PAIR_OPERANDS
#endif
#ifdef TURNED
#define TURN_OPERANDS uvec2 cos; uvec2 sin; uvec2 first; uvec2 ids; WRITTEN present_key; WRITTEN present_value; WRITTEN fault;
#define TURN_PARAMS uint heads; uint kv_heads; uint room; uint table_rows; uint fault_code;
#else
#define TURN_OPERANDS
#define TURN_PARAMS
#endif
#define ARGS_BODY { uvec2 a; uvec2 b; uvec2 scales; uvec2 zeros; WRITTEN y; NORM_OPERANDS PAIR_OPERANDS TURN_OPERANDS EXTRA_OPERANDS \
    uint m; uint n; uint k; uint units; uint blocks; uint zero_bytes; NORM_PARAMS TURN_PARAMS EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 4) const uint BITS = 4;
layout(constant_id = 5) const uint ROWS = 1;
layout(constant_id = 6) const uint COLUMNS = 4;
layout(constant_id = 7) const uint K_LANES = 32;
layout(constant_id = 8) const uint DIGITS = 2;
layout(constant_id = 10) const uint BLOCK = 32;  // weights per scale, 32 or more
layout(constant_id = 11) const uint ZEROS = 0;   // 0: half of the codes' range, 1: packed codes, 2: values of T
layout(constant_id = 15) const uint SUBGROUP_LANES = 32;

#if defined(PAIRED) || defined(TURNED)
const uint SIDES = 2;
#else
const uint SIDES = 1;
#endif
#ifdef PAIRED
const uint WS = 2;
#else
const uint WS = 1;
#endif
#ifdef NORMED
const uint PAIR_BASE = 6;  // the first operand of the second W
#else
const uint PAIR_BASE = 5;
#endif
const uint TURN_BASE = PAIR_BASE, Y = 4;
const uint OF_SIDE = COLUMNS / SIDES;
#define WORDS BITS  // words per unit of 32 weights
const uint PARTS_OF_WORD = 8 / BITS;  // each part has four codes, which are PARTS_OF_WORD codes apart
const uint EACH = 32 / BITS;  // codes per word
// A unit of a: the digits of its 8 groups of four elements, group by group, then the unit's scale and sum.
const uint PITCH = 8 * DIGITS / 4 + 1;
const uint VALUES = ROWS * COLUMNS;
const uint WITHIN = K_LANES < SUBGROUP_LANES ? K_LANES : SUBGROUP_LANES;
const uint PARTS = K_LANES / WITHIN;
const float LARGEST = DIGITS == 2 ? 32512.0 : 8323072.0;  // 127 * 2**8, 127 * 2**16

TENSOR(T, Elements)
#include "turned.glsl"
layout(buffer_reference, scalar) readonly buffer Floats { T v[]; };
layout(buffer_reference, scalar) readonly buffer Bytes { uint8_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pairs { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 v[]; };

const uint SLAB_QUADS = ROWS * K_LANES * PITCH;
const uint SHARED_GROUPS = ROWS * K_LANES * 8;  // groups of four elements of a, per slab
const uint TURNS = (SHARED_GROUPS + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x;

shared uvec4 staged[2 * SLAB_QUADS];
shared float parts[gl_WorkGroupSize.x / WITHIN * VALUES];

Floats a, scales[WS];
Bytes zeros[WS];
Pairs b_pairs[WS];
Quads b_quads[WS];
uint column_at[COLUMNS];
vec4 next_a[TURNS];
uint words[2 * COLUMNS * WORDS];  // weights of this unit and of the next
float loaded_scale[2 * COLUMNS], loaded_zero[2 * COLUMNS];
float acc[VALUES];
#ifdef NORMED
Floats gain;
vec4 next_gain[TURNS];
float squares = 0.0;
shared float squares_of[gl_WorkGroupSize.x / WITHIN];
#endif

void load_unit(uint turn, uint u) {
    uint at = min(u, args.units - 1), block = at * 32 / BLOCK;
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        uint side = c / OF_SIDE % WS, column = column_at[c], slot = turn * COLUMNS + c, first = column * (args.blocks * (BLOCK / 32)) + at;
        if (BITS == 2) {
            uvec2 two = b_pairs[side].v[first];
            words[slot * WORDS] = two.x;
            words[slot * WORDS + 1] = two.y;
        } else {
            [[unroll]] for (uint i = 0; i < WORDS / 4; i++) {
                uvec4 four = b_quads[side].v[first * (WORDS / 4) + i];
                [[unroll]] for (uint e = 0; e < 4; e++) words[slot * WORDS + i * 4 + e] = four[e];
            }
        }
        loaded_scale[slot] = float(scales[side].v[column * args.blocks + block]);
        loaded_zero[slot] = BITS == 8 ? 0.0 : float(1u << (BITS - 1));
        if (ZEROS == 1) {
            uint bit = block * BITS;
            loaded_zero[slot] = float((uint(zeros[side].v[column * args.zero_bytes + bit / 8]) >> (bit % 8)) & ((1u << BITS) - 1));
        } else if (ZEROS == 2) {
            loaded_zero[slot] = float(Floats(uvec2(zeros[side])).v[column * args.blocks + block]);
        }
        if (BITS == 8 && ZEROS != 0) loaded_zero[slot] -= 128.0;  // 8-bit codes are used as signed bytes, which are 128 less
    }
}

// Eight lanes load a unit of a row: each has the four elements that one part of a word is multiplied by.
void load_slab(uint unit0, uint row0) {
    [[unroll]] for (uint i = 0; i < TURNS; i++) {
        uint e = gl_LocalInvocationIndex + i * gl_WorkGroupSize.x, group = e % 8, row = e / 8 / K_LANES, unit = e / 8 % K_LANES;
        uint k = (unit0 + unit) * 32 + group / PARTS_OF_WORD * EACH + group % PARTS_OF_WORD;
        uint row_at = min(row0 + row, args.m - 1) * args.k;
        [[unroll]] for (uint j = 0; j < 4; j++) {
            uint at = k + j * PARTS_OF_WORD;
            next_a[i][j] = at < args.k ? float(a.v[row_at + at]) : 0.0;
#ifdef NORMED
            next_gain[i][j] = at < args.k ? float(gain.v[at]) : 0.0;
#endif
        }
    }
}

void store_slab(uint buffer0) {
    [[unroll]] for (uint i = 0; i < TURNS; i++) {
        uint e = gl_LocalInvocationIndex + i * gl_WorkGroupSize.x, group = e % 8;
        vec4 v = next_a[i];
#ifdef NORMED
        if (e < SHARED_GROUPS) squares += dot(v, v);
        v *= next_gain[i];
#endif
        vec4 size = abs(v);
        float most = max(max(size.x, size.y), max(size.z, size.w)), check = dot(v - v, vec4(1.0));  // NaN if an element is not finite
        [[unroll]] for (uint mask = 4; mask > 0; mask /= 2) {
            most = max(most, subgroupShuffleXor(most, mask));
            check += subgroupShuffleXor(check, mask);
        }
        ivec4 x = ivec4(round(v * (most > 0.0 ? LARGEST / most : 0.0)));
        int sum = x.x + x.y + x.z + x.w;
        [[unroll]] for (uint mask = 4; mask > 0; mask /= 2) sum += subgroupShuffleXor(sum, mask);
        if (e < SHARED_GROUPS) {
            uint to = buffer0 + e / 8 * PITCH;
            [[unroll]] for (uint d = DIGITS; d > 0; d--) {  // the lowest digit first; it is stored last
                ivec4 rest = x + 128 >> 8;
                uvec4 digit = uvec4(x - rest * 256) & 0xffu;
                uint word = group * DIGITS + d - 1;
                staged[to + word / 4][word % 4] = digit.x | digit.y << 8 | digit.z << 16 | digit.w << 24;
                x = rest;
            }
            if (group == 0) staged[to + PITCH - 1].xy = floatBitsToUint(vec2(most * (1.0 / LARGEST) + check, float(sum)));
        }
    }
}

void multiply_unit(uint turn, uint lane, bool counts) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint from = turn * SLAB_QUADS + (r * K_LANES + lane) * PITCH;
        uint digits[8 * DIGITS];
        [[unroll]] for (uint q = 0; q < PITCH - 1; q++) {
            uvec4 four = staged[from + q];
            [[unroll]] for (uint e = 0; e < 4; e++) digits[q * 4 + e] = four[e];
        }
        vec2 of_all = uintBitsToFloat(staged[from + PITCH - 1].xy);  // scale, sum
        int sums[COLUMNS * DIGITS];
        [[unroll]] for (uint i = 0; i < COLUMNS * DIGITS; i++) sums[i] = 0;
        [[unroll]] for (uint group = 0; group < 8; group++) {
            [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
                uint word = words[(turn * COLUMNS + c) * WORDS + group / PARTS_OF_WORD];
                uint codes = BITS == 8 ? word ^ 0x80808080u : word >> (BITS * (group % PARTS_OF_WORD)) & (0x01010101u * ((1u << BITS) - 1));
                [[unroll]] for (uint d = 0; d < DIGITS; d++)
                    sums[c * DIGITS + d] += dotPacked4x8EXT(int(codes), int(digits[group * DIGITS + d]));
            }
        }
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            uint slot = turn * COLUMNS + c;
            float sum = float(sums[c * DIGITS + DIGITS - 2] * 256 + sums[c * DIGITS + DIGITS - 1]);
            if (DIGITS == 3) sum = fma(float(sums[c * DIGITS]), 65536.0, sum);
            sum = fma(-loaded_zero[slot], of_all.y, sum);
            float old = acc[r * COLUMNS + c];
            acc[r * COLUMNS + c] = counts ? fma(loaded_scale[slot] * of_all.x, sum, old) : old;
        }
    }
}

void main() {
    uint id = gl_LocalInvocationIndex, lane = id % K_LANES, group = id / K_LANES;
    uint column0 = (flat_group() * (gl_WorkGroupSize.x / K_LANES) + group) * OF_SIDE, row0 = group_id().z * ROWS;
    a = Floats(operand(args.a, 0));
    b_pairs[0] = Pairs(operand(args.b, 1));
    b_quads[0] = Quads(operand(args.b, 1));
    scales[0] = Floats(operand(args.scales, 2));
    zeros[0] = Bytes(operand(args.zeros, 3));
#ifdef PAIRED
    b_pairs[1] = Pairs(operand(args.b2, PAIR_BASE));
    b_quads[1] = Quads(operand(args.b2, PAIR_BASE));
    scales[1] = Floats(operand(args.scales2, PAIR_BASE + 1));
    zeros[1] = Bytes(operand(args.zeros2, PAIR_BASE + 2));
#endif
#ifdef NORMED
    gain = Floats(operand(args.gain, 5));
#endif
    // Rows and columns past the edge repeat the last one, and their results are not stored.
#ifdef TURNED
    uint columns = args.n / 2;  // pairs
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) column_at[c] = column_of(min(column0 + c % OF_SIDE, columns - 1)) + c / OF_SIDE * HALF;
    Turn angle = turn_of(min(column0 + lane % OF_SIDE, columns - 1));
#else
    uint columns = args.n;
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) column_at[c] = min(column0 + c % OF_SIDE, columns - 1);
#endif
    [[unroll]] for (uint v = 0; v < VALUES; v++) acc[v] = 0.0;

    load_unit(0, lane);
    load_slab(0, row0);
    store_slab(0);
    barrier();
    for (uint slab = 0; slab < args.units; slab += 2 * K_LANES) {
        bool second = slab + K_LANES < args.units, third = slab + 2 * K_LANES < args.units;  // the same for all lanes
        if (second) {
            load_slab(slab + K_LANES, row0);
            load_unit(1, slab + K_LANES + lane);
        }
        multiply_unit(0, lane, slab + lane < args.units);
        if (second) {
            store_slab(SLAB_QUADS);
            barrier();
            if (third) {
                load_slab(slab + 2 * K_LANES, row0);
                load_unit(0, slab + 2 * K_LANES + lane);
            }
            multiply_unit(1, lane, slab + K_LANES + lane < args.units);
            if (third) {
                store_slab(0);
                barrier();
            }
        }
    }

    for (uint mask = WITHIN / 2; mask > 0; mask /= 2)
        [[unroll]] for (uint v = 0; v < VALUES; v++) acc[v] += subgroupShuffleXor(acc[v], mask);
    if (id % WITHIN == 0) [[unroll]] for (uint v = 0; v < VALUES; v++) parts[id / WITHIN * VALUES + v] = acc[v];
#ifdef NORMED
    for (uint mask = WITHIN / 2; mask > 0; mask /= 2) squares += subgroupShuffleXor(squares, mask);
    if (id % WITHIN == 0) squares_of[id / WITHIN] = squares;
#endif
    barrier();
#ifdef NORMED
    float total = 0.0;
    for (uint p = 0; p < gl_WorkGroupSize.x / WITHIN; p++) total += squares_of[p];
    float inv_rms = 1.0 / sqrt(total / float(args.k) + args.epsilon);
#else
    const float inv_rms = 1.0;
#endif
    for (uint v = lane; v < VALUES / SIDES; v += K_LANES) {
        uint row = row0 + v / OF_SIDE, column = column0 + v % OF_SIDE, at = v / OF_SIDE * COLUMNS + v % OF_SIDE;
        if (row < args.m && column < columns) {
            float sum = 0.0;
            [[unroll]] for (uint p = 0; p < PARTS; p++) sum += parts[(group * PARTS + p) * VALUES + at];
            sum *= inv_rms;
#if defined(PAIRED) || defined(TURNED)
            float second = 0.0;
            [[unroll]] for (uint p = 0; p < PARTS; p++) second += parts[(group * PARTS + p) * VALUES + at + OF_SIDE];
            second *= inv_rms;
#endif
#ifdef TURNED
            uint to = column_of(column);
            store_turned(column, vec2(epilogue(sum, to, 0, to), epilogue(second, to + HALF, 0, to + HALF)), angle);
#else
#ifdef PAIRED
            w = second;
#endif
            Elements(operand(args.y, Y)).v[row * args.n + column] = T(epilogue(sum, row * args.n + column, row, column));
#endif
        }
    }
}
