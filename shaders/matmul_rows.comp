// y[batch] = alpha * a[batch] (m by k) * b[batch] (k by n) for few rows and a b that is not contiguous along k. Its time is
// that of reading b once at the full memory bandwidth. (`matmul_along_k.comp` is for a b that is contiguous along k.)
//
// A workgroup computes ROWS rows by COLUMN_LANES * WIDTH columns. SLICES lanes share a column: each takes every SLICES-th step
// of k, UNROLL of them per iteration, and loads the next iteration's elements while it multiplies. Their sums are added by
// shuffles (among SUBGROUP_LANES; 1: none), then through shared memory.
//
// NORMED (one row): a is replaced by its RMS norm, a * gain / sqrt(mean of a's squares + epsilon). PAIRED: products by two b. A
// lane has WIDTH columns of each, and the epilogue computes one y from both. TURNED (one row): pairs of columns of one b that
// are half a head apart. They are rotated and stored as turned.glsl describes.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#ifdef NORMED
#define NORM_OPERANDS uvec2 gain;
#define NORM_PARAMS float epsilon;
#else
#define NORM_OPERANDS
#define NORM_PARAMS
#endif
#ifdef PAIRED
#define PAIR_OPERANDS uvec2 b2;
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
#define ARGS_BODY { uvec2 a; uvec2 b; WRITTEN y; NORM_OPERANDS PAIR_OPERANDS TURN_OPERANDS EXTRA_OPERANDS \
    uint m; uint n; uint k; uint batch1; uint a_row; uint a_col; uint b_row; uint b_col; \
    uint y_row; uint y_col; uint a_batch0; uint a_batch1; uint b_batch0; uint b_batch1; uint y_batch0; uint y_batch1; \
    float alpha; NORM_PARAMS TURN_PARAMS EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"
#ifdef SUBGROUP_SHUFFLE
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

layout(constant_id = 4) const uint ROWS = 1;
layout(constant_id = 5) const uint COLUMN_LANES = 8;
layout(constant_id = 6) const uint WIDTH = 1;  // columns that a lane reads at once, of 4, 8 or 16 bytes: aligned, n a multiple
layout(constant_id = 7) const uint UNROLL = 4;
layout(constant_id = 8) const uint T_BYTES = 4;
layout(constant_id = 15) const uint SUBGROUP_LANES = 1;

#if defined(PAIRED) || defined(TURNED)
const uint SIDES = 2;
#else
const uint SIDES = 1;
#endif
#ifdef PAIRED
const uint BS = 2;
#else
const uint BS = 1;
#endif
#ifdef NORMED
const uint PAIR_BASE = 4;  // the operand of the second b
#else
const uint PAIR_BASE = 3;
#endif
const uint TURN_BASE = PAIR_BASE, Y = 2;
const uint SLICES = gl_WorkGroupSize.x / COLUMN_LANES;
const uint SUMS = ROWS * WIDTH, VALUES = SUMS * SIDES;
const uint WITHIN = SUBGROUP_LANES < COLUMN_LANES ? COLUMN_LANES : SUBGROUP_LANES;  // lanes whose slices are added by shuffles
const uint PARTS = gl_WorkGroupSize.x / WITHIN;
const uint WORDS = WIDTH * T_BYTES / 4;  // 0: one float16 at a time
const uint LOADED = WORDS == 0 ? 1 : WORDS;

TENSOR(T, Elements)
#include "turned.glsl"
#ifndef TURNED
const uint HALF = 0;
#endif
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 v[]; };
shared float parts[PARTS * COLUMN_LANES * VALUES];

Elements a, b[BS];
Pairs b_pairs[BS];
Quads b_quads[BS];
// elements of two iterations
uint words[2 * UNROLL * SIDES * LOADED];
float x[2 * UNROLL * ROWS];
uint b0, a_at[ROWS];  // first elements of the lane's columns and of the rows
float acc[VALUES];
#ifdef NORMED
Elements gain;
float factor[2 * UNROLL];  // gains of two iterations
float squares = 0.0;
shared float squares_of[PARTS];
#endif

void load_step(uint s, uint side, uint at) {
    if (WORDS == 4) {
        uvec4 four = b_quads[side].v[at / WIDTH];
        [[unroll]] for (uint i = 0; i < 4 && i < LOADED; i++) words[s * LOADED + i] = four[i];
    } else if (WORDS == 2) {
        uvec2 two = b_pairs[side].v[at / WIDTH];
        [[unroll]] for (uint i = 0; i < 2 && i < LOADED; i++) words[s * LOADED + i] = two[i];
    } else {
        words[s] = floatBitsToUint(float(b[side].v[at]));
    }
}

float value_of(uint s, uint c) {
    if (T_BYTES == 2 && WORDS > 0) return unpackHalf2x16(words[s * LOADED + c / 2 % LOADED])[c % 2];
    return uintBitsToFloat(words[s * LOADED + c % LOADED]);
}

void load_turn(uint turn, uint k) {
    [[unroll]] for (uint i = 0; i < UNROLL; i++) {
        uint s = turn * UNROLL + i, step = min(k + i * SLICES, args.k - 1);
        [[unroll]] for (uint side = 0; side < SIDES; side++) {
            uint at = b0 + step * args.b_row + (BS == 1 ? side * HALF * args.b_col : 0);
            load_step(s * SIDES + side, side % BS, at);
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) x[s * ROWS + r] = float(a.v[a_at[r] + step * args.a_col]);
#ifdef NORMED
        factor[s] = float(gain.v[step]);
#endif
    }
}

void multiply_turn(uint turn, uint k) {
    [[unroll]] for (uint i = 0; i < UNROLL; i++) {
        uint s = turn * UNROLL + i;
#ifdef NORMED
        squares += k + i * SLICES < args.k ? x[s] * x[s] : 0.0;
        x[s] *= factor[s];
#endif
        if (k + i * SLICES < args.k)
            [[unroll]] for (uint side = 0; side < SIDES; side++)
                [[unroll]] for (uint c = 0; c < WIDTH; c++)
                    [[unroll]] for (uint r = 0; r < ROWS; r++) {
                        uint v = side * SUMS + r * WIDTH + c;
                        acc[v] = fma(x[s * ROWS + r], value_of(s * SIDES + side, c), acc[v]);
                    }
    }
}

void main() {
    uint id = gl_LocalInvocationIndex, lane = id % COLUMN_LANES, slice = id / COLUMN_LANES;
    uint batch0 = group_id().z / args.batch1, batch1 = group_id().z % args.batch1;
    uint column0 = group_id().x * COLUMN_LANES * WIDTH, row0 = group_id().y * ROWS;
    a = Elements(operand(args.a, 0));
    b[0] = Elements(operand(args.b, 1));
    b_pairs[0] = Pairs(operand(args.b, 1));
    b_quads[0] = Quads(operand(args.b, 1));
#ifdef NORMED
    gain = Elements(operand(args.gain, 3));
#endif
#ifdef PAIRED
    b[1] = Elements(operand(args.b2, PAIR_BASE));
    b_pairs[1] = Pairs(operand(args.b2, PAIR_BASE));
    b_quads[1] = Quads(operand(args.b2, PAIR_BASE));
#endif
    // Rows and columns past the edge repeat the last one, and their results are not stored.
#ifdef TURNED
    uint columns = args.n / 2;  // pairs
    uint b_column = column_of(min(column0 + lane * WIDTH, columns - WIDTH));
    uint early = min(column0 + id / SUMS * WIDTH + id % WIDTH, columns - 1);
    Turn angle = turn_of(early);
#else
    uint columns = args.n, b_column = min(column0 + lane * WIDTH, columns - WIDTH);
#endif
    b0 = batch0 * args.b_batch0 + batch1 * args.b_batch1 + b_column * args.b_col;
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        a_at[r] = batch0 * args.a_batch0 + batch1 * args.a_batch1 + min(row0 + r, args.m - 1) * args.a_row;

    [[unroll]] for (uint v = 0; v < VALUES; v++) acc[v] = 0.0;
    const uint turn = SLICES * UNROLL;
    load_turn(0, slice);
    for (uint k = slice; k - slice < args.k; k += 2 * turn) {
        bool second = k - slice + turn < args.k;  // the same for all lanes
        if (second) load_turn(1, k + turn);
        multiply_turn(0, k);
        if (k - slice + 2 * turn < args.k) load_turn(0, k + 2 * turn);
        if (second) multiply_turn(1, k + turn);
    }

#ifdef SUBGROUP_SHUFFLE
    for (uint mask = WITHIN / 2; mask >= COLUMN_LANES; mask /= 2)
        [[unroll]] for (uint v = 0; v < VALUES; v++) acc[v] += subgroupShuffleXor(acc[v], mask);
#endif
#if defined(NORMED) && defined(SUBGROUP_SHUFFLE)
    for (uint mask = WITHIN / 2; mask >= COLUMN_LANES; mask /= 2) squares += subgroupShuffleXor(squares, mask);
#endif
#ifdef NORMED
    if (id % WITHIN == 0) squares_of[id / WITHIN] = squares;  // lanes of other columns have the same sums
#endif
    if (id % WITHIN < COLUMN_LANES)
        [[unroll]] for (uint v = 0; v < VALUES; v++) parts[(id / WITHIN * COLUMN_LANES + lane) * VALUES + v] = acc[v];
    barrier();
#ifdef NORMED
    float total = 0.0;
    for (uint p = 0; p < PARTS; p++) total += squares_of[p];
    float factor_of_row = args.alpha / sqrt(total / float(args.k) + args.epsilon);
#else
    float factor_of_row = args.alpha;
#endif
    uint y0 = batch0 * args.y_batch0 + batch1 * args.y_batch1, o0 = group_id().z * args.m * args.n;
    for (uint e = id; e < COLUMN_LANES * SUMS; e += gl_WorkGroupSize.x) {
        uint row = row0 + e % SUMS / WIDTH, column = column0 + e / SUMS * WIDTH + e % WIDTH;
        uint at = e / SUMS * VALUES + e % SUMS;
        if (row < args.m && column < columns) {
            float sum = 0.0;
            for (uint p = 0; p < PARTS; p++) sum += parts[p * COLUMN_LANES * VALUES + at];
            sum *= factor_of_row;
#if defined(PAIRED) || defined(TURNED)
            float second = 0.0;
            for (uint p = 0; p < PARTS; p++) second += parts[p * COLUMN_LANES * VALUES + at + SUMS];
            second *= factor_of_row;
#endif
#ifdef TURNED
            uint to = column_of(column);
            if (column != early) angle = turn_of(column);
            store_turned(column, vec2(epilogue(sum, to, 0, to), epilogue(second, to + HALF, 0, to + HALF)), angle);
#else
#ifdef PAIRED
            w = second;
#endif
            Elements(operand(args.y, Y)).v[y0 + row * args.y_row + column * args.y_col] =
                T(epilogue(sum, o0 + row * args.n + column, row, column));
#endif
        }
    }
}
