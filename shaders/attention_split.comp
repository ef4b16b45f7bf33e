// Attention of few queries (a decoder's step), as attention_parts.glsl says, in phases: the scores of a workgroup's block of keys,
// their powers, then the values. On a CPU driver, and for rows that attention_stream.comp does not take.
//
// KEY_LANES lanes share a key's score, VALUE_LANES lanes lie along a value. Without PARTIAL there is one block with all keys.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "attention_parts.glsl"

layout(constant_id = 7) const uint BLOCK = 64;
layout(constant_id = 8) const uint KEY_LANES = 8;
layout(constant_id = 9) const uint VALUE_LANES = 8;

const uint SLICES = gl_WorkGroupSize.x / VALUE_LANES;  // number of slices that the keys are divided into, for the values
const uint WITHIN = SUBGROUP_LANES > VALUE_LANES ? SUBGROUP_LANES : VALUE_LANES;  // lanes whose slices are added by shuffles
const uint PARTS = gl_WorkGroupSize.x / WITHIN;
const uint WIDTH = VALUE_LANES * UNIT;
const uint TURN = gl_WorkGroupSize.x / KEY_LANES;  // keys whose scores are computed at a time

shared float queries_of[ROWS * SIZE];
shared float powers[ROWS * BLOCK];
shared float slices[PARTS * ROWS * WIDTH];

float unit[UNIT];

void load(uvec2 address, uint at) {
    if (UNIT != 1) {
        uvec4 raw = raw_at(address, at);
        [[unroll]] for (uint i = 0; i < UNIT; i++) unit[i] = element(raw, i);
    } else if (CODE == 0) {
        unit[0] = float(Stored(address).v[at]);
    } else {
        unit[0] = decode(uint(Stored(address).v[at / PACK]) >> at % PACK * 4);
    }
}

float acc[ROWS * UNIT], scores[ROWS];

void add_weighted(uint place) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float power = powers[r * BLOCK + place];
        [[unroll]] for (uint i = 0; i < UNIT; i++) acc[r * UNIT + i] = fma(power, unit[i], acc[r * UNIT + i]);
    }
}

// Stores the scores of the TURN keys from `turn` on, of which this lane multiplied a part. All lanes call it.
void store_scores(uint turn) {
    uint key = turn + id / KEY_LANES;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float score = sum_over(scores[r], id, KEY_LANES);
        if (id % KEY_LANES == 0 && key < key_end) powers[r * BLOCK + key - split * BLOCK] = score_of(score, row0 + r, key);
    }
}

void main() {
    if (surplus_group()) return;  // a repeated workgroup would be counted twice
    place_group();

    // The keys of the block that at least one row sees.
    uint last_query = args.queries - 1;
    int begin = max(int(split * BLOCK), args.first + origin), stop = min(int(min((split + 1) * BLOCK, args.keys)), origin + int(last_query) + args.end);
    uint key0 = uint(max(begin, 0));
    key_end = uint(max(stop, int(key0)));

    uvec2 q_at = operand(args.q, 0), k_at = operand(args.k, 1), v_at = operand(args.v, 2);
    uint value_lane = id % VALUE_LANES, slice = id / VALUE_LANES, v0 = batch * args.v_batch + kv_head * args.v_head;
    uint key_lane = id % KEY_LANES, k0 = batch * args.k_batch + kv_head * args.k_head;
    for (uint e = id; e < ROWS * SIZE; e += gl_WorkGroupSize.x)
        queries_of[e] = float(Elements(q_at).v[query_at(row0 + e / SIZE) + e % SIZE]) * key_scale(e % SIZE);
    for (uint e = id; e < ROWS * BLOCK; e += gl_WorkGroupSize.x) powers[e] = uintBitsToFloat(0xff800000u);
    barrier();

    // Scores. All lanes execute every iteration, since they combine values.
    for (uint turn = key0; turn < key_end; turn += TURN) {
        uint place = k0 + min(turn + id / KEY_LANES, key_end - 1) * args.k_row;
        [[unroll]] for (uint r = 0; r < ROWS; r++) scores[r] = 0.0;
        for (uint u = key_lane * UNIT; u < SIZE; u += KEY_LANES * UNIT) {
            load(k_at, place + u);
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                [[unroll]] for (uint i = 0; i < UNIT; i++)
                    scores[r] = fma(unit[i], queries_of[r * SIZE + u + i], scores[r]);
        }
        store_scores(turn);
    }
    barrier();

    // The maximum score of each row, the powers and their sum.
    uint own = id / ROW_LANES, row_lane = id % ROW_LANES;
    float least = uintBitsToFloat(0xff800000u), most = least, sum = 0.0, sink = sink_of(row0 + own);
    for (uint e = row_lane; e < BLOCK; e += ROW_LANES) most = max(most, powers[own * BLOCK + e]);
    most = most_over(most, id, ROW_LANES);
    if (PARTIAL == 0) most = max(most, sink);
    for (uint e = row_lane; e < BLOCK; e += ROW_LANES) {
        float power = power_of(powers[own * BLOCK + e], most);
        powers[own * BLOCK + e] = power;
        sum += power;
    }
    sum = sum_over(sum, id, ROW_LANES);
    if (PARTIAL == 1) {
        if (row_lane == 0 && row0 + own < rows)
            PartStats(operand(args.stats, 10)).v[row_at(row0 + own) * args.splits + split] = vec2(most, sum);
    } else {
        if (SINK == 1) sum += exp2(sink - most);
        if (sum != 0.0)  // a row without a visible key is zero
            for (uint e = row_lane; e < BLOCK; e += ROW_LANES) powers[own * BLOCK + e] /= sum;
    }
    barrier();

    // Values: each lane computes a unit of every row, for a slice of the keys. Values of a part without a visible key are not
    // read.
    for (uint u0 = 0; u0 < VALUE_SIZE && (PARTIAL == 0 || key0 < key_end); u0 += WIDTH) {
        [[unroll]] for (uint i = 0; i < ROWS * UNIT; i++) acc[i] = 0.0;
        uint u = min(u0 + value_lane * UNIT, VALUE_SIZE - UNIT);
        for (uint key = key0 + slice; key < key_end; key += SLICES) {
            load(v_at, v0 + key * args.v_row + u);
            add_weighted(key - split * BLOCK);
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
            uint row = row0 + e / WIDTH, column = u0 + e % WIDTH;
            if (row < rows && column < VALUE_SIZE) {
                float total = 0.0;
                [[unroll]] for (uint p = 0; p < PARTS; p++) total += slices[p * ROWS * WIDTH + e];
                if (PARTIAL == 1) Parts(operand(args.parts, 9)).v[(row_at(row) * args.splits + split) * VALUE_SIZE + column] = total;
                else store(row, column, total);
            }
        }
    }
    if (PARTIAL == 1) arrive();
}
