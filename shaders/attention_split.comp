// Attention of few queries (a decoder's step): a workgroup processes a block of keys for ROWS rows of one head of keys
// and values, where a row is a query of a head of its group. With PARTIAL it stores for each row the maximum score, the
// sum of the powers and the values weighted by them, which attention_join.comp joins; else the only block has all keys
// and y is stored.
//
// Scores count in powers of two: `scale` and `softcap` contain log2(e). KEY_LANES lanes share a key's score, VALUE_LANES lie
// along a value; UNIT elements (16 bytes, 8 elements of a cache in codes, or one where rows are not aligned) are read at once.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 q; uvec2 k; uvec2 v; uvec2 bias; uvec2 origin; uvec2 sink; uvec2 k_scale; uvec2 v_scale; uvec2 y; uvec2 stats; \
    uint queries; uint keys; uint row_tiles; uint splits; \
    uint q_batch; uint q_head; uint q_row; uint k_batch; uint k_head; uint k_row; uint v_batch; uint v_head; uint v_row; \
    uint y_head; uint y_row; uint bias_batch; uint bias_head; uint bias_row; float scale; float softcap; int first; int end; }
#include "args.glsl"
#include "lanes.glsl"
#include "math.glsl"

layout(constant_id = 4) const uint SIZE = 64;
layout(constant_id = 5) const uint VALUE_SIZE = 64;
layout(constant_id = 6) const uint ROWS = 1;
layout(constant_id = 7) const uint BLOCK = 64;
layout(constant_id = 8) const uint KEY_LANES = 8;
layout(constant_id = 9) const uint VALUE_LANES = 8;
layout(constant_id = 10) const uint GROUP = 1;
layout(constant_id = 11) const uint UNIT = 8;
layout(constant_id = 12) const uint BIAS = 0;  // 1: dense along the keys, 2: the same for all keys
layout(constant_id = 13) const uint SOFTCAP = 0;
layout(constant_id = 14) const uint ORIGIN = 0;
layout(constant_id = 16) const uint SINK = 0;
layout(constant_id = 17) const uint PARTIAL = 1;
layout(constant_id = 19) const uint CODE = 0;  // how keys and values are held: kv_codes.glsl
layout(constant_id = 20) const uint K_CHANNELS = 0;  // 1: a scale for each feature
layout(constant_id = 21) const uint V_CHANNELS = 0;
layout(constant_id = 18) const uint EARLY = 0;  // 1: values are loaded before their weights are known; they are one unit of a lane

const float LOG2_E = 1.44269504089;
const uint SLICES = gl_WorkGroupSize.x / VALUE_LANES;  // of the keys, for the values
const uint WITHIN = SUBGROUP_LANES > VALUE_LANES ? SUBGROUP_LANES : VALUE_LANES;  // lanes whose slices add up by shuffles
const uint PARTS = gl_WorkGroupSize.x / WITHIN;
const uint WIDTH = VALUE_LANES * UNIT;
const uint HELD = BLOCK > SLICES ? BLOCK / SLICES : 1;  // keys of a slice
const uint ROW_LANES = gl_WorkGroupSize.x / ROWS;

#include "kv_codes.glsl"

TENSOR(T, Elements)
TENSOR(C, Stored)
TENSOR(BIAS_T, Biases)
TENSOR(float, Floats)
TENSOR(int, Ints)
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pairs { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Words { uint v[]; };

shared float queries_of[ROWS * SIZE];
shared float powers[ROWS * BLOCK];
shared float slices[PARTS * ROWS * WIDTH];

float add(float x, float y) { return x + y; }
float greater(float x, float y) { return max(x, y); }
COMBINE_LANES(sum_over, float, add)
COMBINE_LANES(most_over, float, greater)

float unit[UNIT];

void unpack(uvec4 raw) {
    [[unroll]] for (uint i = 0; i < UNIT; i++) {
        if (CODE == CODE_BFLOAT16) unit[i] = decode(raw[i / 2 % 4] >> i % 2 * 16 & 0xffffu);
        else if (CODE == CODE_INT4) unit[i] = decode(raw.x >> i * 4);
        else if (CODE != 0) unit[i] = decode(raw[i / 4 % 4] >> i % 4 * 8 & 255u);
        else unit[i] = UNIT == 8 ? unpackHalf2x16(raw[i / 2 % 4])[i % 2] : uintBitsToFloat(raw[i % 4]);
    }
}

uvec4 raw_at(uvec2 address, uint at) {  // `at` in numbers
    if (CODE == CODE_INT4) return uvec4(Words(address).v[at / UNIT], 0, 0, 0);
    if (CODE > CODE_BFLOAT16) return uvec4(Pairs(address).v[at / UNIT], 0, 0);
    return Quads(address).v[at / UNIT];
}

void load(uvec2 address, uint at) {
    if (UNIT != 1) unpack(raw_at(address, at));
    else if (CODE == 0) unit[0] = float(Stored(address).v[at]);
    else unit[0] = decode(uint(Stored(address).v[at / PACK]) >> at % PACK * 4);
}

float acc[ROWS * UNIT];

void add_weighted(uint place) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float power = powers[r * BLOCK + place];
        [[unroll]] for (uint i = 0; i < UNIT; i++) acc[r * UNIT + i] = fma(power, unit[i], acc[r * UNIT + i]);
    }
}

void main() {
    uint id = gl_LocalInvocationIndex, split = group_id().x, batch = group_id().z;
    uint kv_head = group_id().y / args.row_tiles, row0 = group_id().y % args.row_tiles * ROWS, rows = GROUP * args.queries;
    uint heads = group_count().y / args.row_tiles * GROUP;
    int origin = ORIGIN == 1 ? Ints(operand(args.origin, 4)).v[batch] : 0;

    // The keys of the block that at least one row sees.
    uint last_query = args.queries - 1;
    int begin = max(int(split * BLOCK), args.first + origin), stop = min(int(min((split + 1) * BLOCK, args.keys)), origin + int(last_query) + args.end);
    uint key0 = uint(max(begin, 0)), key_end = uint(max(stop, int(key0)));

    uvec2 q_at = operand(args.q, 0), k_at = operand(args.k, 1), v_at = operand(args.v, 2);
    uint value_lane = id % VALUE_LANES, slice = id / VALUE_LANES, v0 = batch * args.v_batch + kv_head * args.v_head;
    uvec4 held[EARLY == 1 ? HELD : 1];
    if (EARLY == 1)
        if (key0 < key_end)
            [[unroll]] for (uint i = 0; i < HELD; i++)
                held[i % (EARLY == 1 ? HELD : 1)] = raw_at(v_at, v0 + min(key0 + slice + i * SLICES, key_end - 1) * args.v_row + min(value_lane * UNIT, VALUE_SIZE - UNIT));
    for (uint e = id; e < ROWS * SIZE; e += gl_WorkGroupSize.x) {
        uint row = min(row0 + e / SIZE, rows - 1), head = kv_head * GROUP + row / args.queries;
        uint at = batch * args.q_batch + head * args.q_head + row % args.queries * args.q_row + e % SIZE;
        queries_of[e] = float(Elements(q_at).v[at]) * args.scale;
        if (CODE > CODE_BFLOAT16) queries_of[e] *= Floats(operand(args.k_scale, 6)).v[K_CHANNELS == 1 ? kv_head * SIZE + e % SIZE : 0];
    }
    for (uint e = id; e < ROWS * BLOCK; e += gl_WorkGroupSize.x) powers[e] = uintBitsToFloat(0xff800000u);
    barrier();

    // Scores. All lanes take part in every iteration, since they combine values.
    for (uint turn = key0; turn < key_end; turn += gl_WorkGroupSize.x / KEY_LANES) {
        uint key = turn + id / KEY_LANES, lane = id % KEY_LANES, place = batch * args.k_batch + kv_head * args.k_head + min(key, key_end - 1) * args.k_row;
        float scores[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) scores[r] = 0.0;
        for (uint u = lane * UNIT; u < SIZE; u += KEY_LANES * UNIT) {
            load(k_at, place + u);
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                [[unroll]] for (uint i = 0; i < UNIT; i++) scores[r] = fma(unit[i], queries_of[r * SIZE + u + i], scores[r]);
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            float score = sum_over(scores[r], id, KEY_LANES);
            uint row = min(row0 + r, rows - 1), query = row % args.queries, head = kv_head * GROUP + row / args.queries;
            int distance = int(key) - int(query) - origin;
            if (SOFTCAP == 1) score = args.softcap * limited_tanh(score);
            if (lane == 0 && key < key_end) {
                if (BIAS != 0) {
                    uint at = batch * args.bias_batch + head * args.bias_head + query * args.bias_row + (BIAS == 1 ? key : 0);
                    score += float(Biases(operand(args.bias, 3)).v[at]) * LOG2_E;
                }
                if (distance >= args.first && distance < args.end) powers[r * BLOCK + key - split * BLOCK] = score;
            }
        }
    }
    barrier();

    // The maximum score of each row, the powers and their sum.
    uint own = id / ROW_LANES, row_lane = id % ROW_LANES;
    float most = uintBitsToFloat(0xff800000u), sum = 0.0;
    for (uint e = row_lane; e < BLOCK; e += ROW_LANES) most = max(most, powers[own * BLOCK + e]);
    most = most_over(most, id, ROW_LANES);
    uint own_row = min(row0 + own, rows - 1), own_head = kv_head * GROUP + own_row / args.queries;
    if (PARTIAL == 0 && SINK == 1) most = max(most, float(Elements(operand(args.sink, 5)).v[own_head]) * LOG2_E);
    for (uint e = row_lane; e < BLOCK; e += ROW_LANES) {
        float score = powers[own * BLOCK + e], power = isinf(score) && score < 0.0 ? 0.0 : exp2(score - most);
        powers[own * BLOCK + e] = power;
        sum += power;
    }
    sum = sum_over(sum, id, ROW_LANES);
    if (PARTIAL == 0 && SINK == 1) sum += exp2(float(Elements(operand(args.sink, 5)).v[own_head]) * LOG2_E - most);
    uint own_at = (batch * heads + own_head) * args.queries + own_row % args.queries;
    if (PARTIAL == 1) {
        if (row_lane == 0 && row0 + own < rows) {
            Floats stats = Floats(operand(args.stats, 9));
            stats.v[(own_at * args.splits + split) * 2] = most;
            stats.v[(own_at * args.splits + split) * 2 + 1] = sum;
        }
    } else if (sum != 0.0) {  // a row that sees no key is zero
        for (uint e = row_lane; e < BLOCK; e += ROW_LANES) powers[own * BLOCK + e] /= sum;
    }
    if (PARTIAL == 1 && key0 == key_end) return;  // the same for all lanes: nothing reads its values
    barrier();

    // Values: each lane a unit of every row, for a slice of the keys.
    for (uint u0 = 0; u0 < VALUE_SIZE; u0 += WIDTH) {
        [[unroll]] for (uint i = 0; i < ROWS * UNIT; i++) acc[i] = 0.0;
        if (EARLY == 1) {
            [[unroll]] for (uint h = 0; h < HELD; h++) {
                uint key = key0 + slice + h * SLICES;
                if (key < key_end) {
                    unpack(held[h % (EARLY == 1 ? HELD : 1)]);
                    add_weighted(key - split * BLOCK);
                }
            }
        } else {
            uint u = min(u0 + value_lane * UNIT, VALUE_SIZE - UNIT);
            for (uint key = key0 + slice; key < key_end; key += SLICES) {
                load(v_at, v0 + key * args.v_row + u);
                add_weighted(key - split * BLOCK);
            }
        }
#ifdef SUBGROUP_SHUFFLE
        for (uint mask = WITHIN / 2; mask >= VALUE_LANES; mask /= 2)
            [[unroll]] for (uint i = 0; i < ROWS * UNIT; i++) acc[i] += subgroupShuffleXor(acc[i], mask);
#endif
        if (u0 > 0) barrier();
        if (id % WITHIN < VALUE_LANES)
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                [[unroll]] for (uint i = 0; i < UNIT; i++)
                    slices[(id / WITHIN * ROWS + r) * WIDTH + value_lane * UNIT + i] = acc[r * UNIT + i];
        barrier();
        for (uint e = id; e < ROWS * WIDTH; e += gl_WorkGroupSize.x) {
            uint row = row0 + e / WIDTH, column = u0 + e % WIDTH, head = kv_head * GROUP + row / args.queries, query = row % args.queries;
            if (row < rows && column < VALUE_SIZE) {
                float total = 0.0;
                [[unroll]] for (uint p = 0; p < PARTS; p++) total += slices[p * ROWS * WIDTH + e];
                if (CODE > CODE_BFLOAT16) total *= Floats(operand(args.v_scale, 7)).v[V_CHANNELS == 1 ? kv_head * VALUE_SIZE + column : 0];
                if (PARTIAL == 1) {
                    uint at = ((batch * heads + head) * args.queries + query) * args.splits + split;
                    Floats(operand(args.y, 8)).v[at * VALUE_SIZE + column] = total;
                } else {
                    uint at = batch * heads * args.queries * VALUE_SIZE + head * args.y_head + query * args.y_row;
                    Elements(operand(args.y, 8)).v[at + column] = T(total);
                }
            }
        }
    }
}
