// Attention of few queries (a decoder's step): a workgroup processes a block of keys for ROWS rows of one head of keys and
// values, where a row is a query of a head of its group. With PARTIAL it stores for each row the maximum score, the sum of the
// powers and the values weighted by them. The workgroups of the same rows count their arrivals in a counter; the last one joins
// the parts and sets the counter to zero again. Without PARTIAL there is one block with all keys.
//
// Scores are exponents of two: `scale` and `softcap` contain log2(e). KEY_LANES lanes share a key's score, VALUE_LANES lanes
// lie along a value. UNIT elements are read at once: 16 bytes, 8 elements of a quantized cache, or one where rows are not
// aligned.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 q; uvec2 k; uvec2 v; uvec2 bias; uvec2 origin; uvec2 sink; uvec2 k_scale; uvec2 v_scale; uvec2 y; uvec2 parts; uvec2 stats; uvec2 arrivals; \
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
layout(constant_id = 12) const uint BIAS = 0;  // 1: contiguous along the keys, 2: the same for all keys
layout(constant_id = 13) const uint SOFTCAP = 0;
layout(constant_id = 14) const uint ORIGIN = 0;
layout(constant_id = 16) const uint SINK = 0;
layout(constant_id = 17) const uint PARTIAL = 1;
layout(constant_id = 19) const uint CODE = 0;  // element format of keys and values (kv_codes.glsl)
layout(constant_id = 20) const uint K_CHANNELS = 0;  // 1: one scale per feature, 0: one per tensor
layout(constant_id = 21) const uint V_CHANNELS = 0;
layout(constant_id = 18) const uint EARLY = 0;  // values that a lane loads at once, one unit each; the first before their weights are known
layout(constant_id = 22) const uint EARLY_KEYS = 0;  // keys that a lane loads at once, one unit each; its unit of the queries stays in registers
layout(constant_id = 24) const uint HALVES = 0;      // 1: queries are float16
layout(constant_id = 23) const uint COLUMNS = 16;  // lanes along a value when parts are joined

const float LOG2_E = 1.44269504089;
const uint SLICES = gl_WorkGroupSize.x / VALUE_LANES;  // number of slices that the keys are divided into, for the values
const uint WITHIN = SUBGROUP_LANES > VALUE_LANES ? SUBGROUP_LANES : VALUE_LANES;  // lanes whose slices are added by shuffles
const uint PARTS = gl_WorkGroupSize.x / WITHIN;
const uint WIDTH = VALUE_LANES * UNIT;
const uint HELD = EARLY > 0 ? EARLY : 1, HELD_KEYS = EARLY_KEYS > 0 ? EARLY_KEYS : 1;
const uint ROW_LANES = gl_WorkGroupSize.x / ROWS;
const uint TURN = gl_WorkGroupSize.x / KEY_LANES;                // keys whose scores are computed at a time
const uint JOINED = VALUE_SIZE % 4 == 0 ? 4 : 1;                 // elements of a part that are read at once
const uint JOIN_SLICES = ROW_LANES / COLUMNS;                    // number of slices that the parts are divided into
const uint AHEAD = 4;                                            // parts that a lane reads before it adds them up

#include "kv_codes.glsl"

TENSOR(T, Elements)
TENSOR(C, Stored)
TENSOR(BIAS_T, Biases)
TENSOR(float, Floats)
TENSOR(int, Ints)
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pairs { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Counts { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Parts { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer PartQuads { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) coherent buffer PartStats { vec2 v[]; };  // maximum score, sum of powers

shared float queries_of[EARLY_KEYS > 0 ? 1 : ROWS * SIZE];
shared float powers[ROWS * BLOCK];
shared float slices[PARTS * ROWS * WIDTH];
shared uint arrived;

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

uvec4 raw_at(uvec2 address, uint at) {  // `at` counts elements
    if (CODE == CODE_INT4) return uvec4(Words(address).v[at / UNIT], 0, 0, 0);
    if (CODE > CODE_BFLOAT16) return uvec4(Pairs(address).v[at / UNIT], 0, 0);
    return Quads(address).v[at / UNIT];
}

void load(uvec2 address, uint at) {
    if (UNIT != 1) unpack(raw_at(address, at));
    else if (CODE == 0) unit[0] = float(Stored(address).v[at]);
    else unit[0] = decode(uint(Stored(address).v[at / PACK]) >> at % PACK * 4);
}

float acc[ROWS * UNIT], scores[ROWS];

void add_weighted(uint place) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float power = powers[r * BLOCK + place];
        [[unroll]] for (uint i = 0; i < UNIT; i++) acc[r * UNIT + i] = fma(power, unit[i], acc[r * UNIT + i]);
    }
}

uint id, split, batch, kv_head, row0, rows, heads, key_end;
int origin;
uvec4 held[HELD], held_keys[HELD_KEYS];

// Rows after the last one are computed as the last one, and not stored.
uint head_of(uint row) { return kv_head * GROUP + min(row, rows - 1) / args.queries; }
uint query_of(uint row) { return min(row, rows - 1) % args.queries; }
uint row_at(uint row) { return (batch * heads + head_of(row)) * args.queries + query_of(row); }
uint query_at(uint row) { return batch * args.q_batch + head_of(row) * args.q_head + query_of(row) * args.q_row; }
float key_scale(uint e) {
    return CODE > CODE_BFLOAT16 ? args.scale * Floats(operand(args.k_scale, 6)).v[K_CHANNELS == 1 ? kv_head * SIZE + e : 0] : args.scale;
}

void store(uint row, uint column, float value) {
    if (CODE > CODE_BFLOAT16) value *= Floats(operand(args.v_scale, 7)).v[V_CHANNELS == 1 ? kv_head * VALUE_SIZE + column : 0];
    uint at = batch * heads * args.queries * VALUE_SIZE + head_of(row) * args.y_head + query_of(row) * args.y_row;
    Elements(operand(args.y, 8)).v[at + column] = T(value);
}

// Loads the lane's units of the next keys (values), of which `key` is the first; `place`: the unit in the first row of its head.
void hold_keys(uvec2 at, uint place, uint key) {
    [[unroll]] for (uint t = 0; t < HELD_KEYS; t++) held_keys[t] = raw_at(at, place + min(key + t * TURN, key_end - 1) * args.k_row);
}
void hold_values(uvec2 at, uint place, uint key) {
    [[unroll]] for (uint h = 0; h < HELD; h++) held[h] = raw_at(at, place + min(key + h * SLICES, key_end - 1) * args.v_row);
}

// Stores the scores of the TURN keys from `turn` on, of which this lane multiplied a part. All lanes call it.
void store_scores(uint turn) {
    uint key = turn + id / KEY_LANES;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float score = sum_over(scores[r], id, KEY_LANES);
        uint query = query_of(row0 + r);
        int distance = int(key) - int(query) - origin;
        if (SOFTCAP == 1) score = args.softcap * limited_tanh(score);
        if (id % KEY_LANES == 0 && key < key_end) {
            if (BIAS != 0) {
                uint at = batch * args.bias_batch + head_of(row0 + r) * args.bias_head + query * args.bias_row + (BIAS == 1 ? key : 0);
                score += float(Biases(operand(args.bias, 3)).v[at]) * LOG2_E;
            }
            if (distance >= args.first && distance < args.end) powers[r * BLOCK + key - split * BLOCK] = score;
        }
    }
}

// Joins the parts of all blocks, with ROW_LANES lanes per row. All lanes must call it.
void join(float sink) {
    uint row = row0 + id / ROW_LANES, row_lane = id % ROW_LANES, first = row_at(row) * args.splits;
    PartStats stats = PartStats(operand(args.stats, 10));
    uvec2 parts = operand(args.parts, 9);
    float most = sink, sum = 0.0;
    for (uint s = row_lane; s < args.splits; s += ROW_LANES) {
        vec2 part = stats.v[first + s];
        if (part.y != 0.0) {  // 0: the part has no visible key, and its values were not written
            float before = most;
            most = max(most, part.x);
            sum = (sum != 0.0 ? sum * exp2(before - most) : 0.0) + part.y * exp2(part.x - most);
        }
    }
    float own = most;
    most = most_over(most, id, ROW_LANES);
    sum = sum_over(sum != 0.0 ? sum * exp2(own - most) : 0.0, id, ROW_LANES);
    if (SINK == 1) sum += exp2(sink - most);
    float share = sum != 0.0 ? 1.0 / sum : 0.0;  // a row without a visible key is zero
    uint slice = row_lane % JOIN_SLICES, lane = row_lane / JOIN_SLICES;
    for (uint e0 = 0; e0 < VALUE_SIZE; e0 += COLUMNS * JOINED) {
        uint e = min(e0 + lane * JOINED, VALUE_SIZE - JOINED);
        float total[JOINED];
        [[unroll]] for (uint i = 0; i < JOINED; i++) total[i] = 0.0;
        for (uint s0 = slice; s0 < args.splits; s0 += JOIN_SLICES * AHEAD) {
            vec2 weights[AHEAD];
            float values[AHEAD * JOINED];
            [[unroll]] for (uint a = 0; a < AHEAD; a++) {
                uint at = first + min(s0 + a * JOIN_SLICES, args.splits - 1);
                weights[a] = stats.v[at];
                vec4 quad = vec4(0.0);
                if (JOINED == 4) quad = PartQuads(parts).v[(at * VALUE_SIZE + e) / 4];
                else quad.x = Parts(parts).v[at * VALUE_SIZE + e];
                [[unroll]] for (uint i = 0; i < JOINED; i++) values[a * JOINED + i] = quad[i];
            }
            [[unroll]] for (uint a = 0; a < AHEAD; a++) {
                bool counts = s0 + a * JOIN_SLICES < args.splits && weights[a].y != 0.0;
                float weight = counts ? exp2(weights[a].x - most) : 0.0;
                [[unroll]] for (uint i = 0; i < JOINED; i++) total[i] = fma(weight, counts ? values[a * JOINED + i] : 0.0, total[i]);
            }
        }
        [[unroll]] for (uint i = 0; i < JOINED; i++) {
            total[i] = sum_over(total[i], id, JOIN_SLICES);
            if (slice == 0 && row < rows && e0 + lane * JOINED + i < VALUE_SIZE) store(row, e + i, total[i] * share);
        }
    }
}

void main() {
    if (surplus_group()) return;  // a repeated workgroup would be counted twice
    id = gl_LocalInvocationIndex, split = group_id().x, batch = group_id().z;
    kv_head = group_id().y / args.row_tiles, row0 = group_id().y % args.row_tiles * ROWS, rows = GROUP * args.queries;
    heads = group_count().y / args.row_tiles * GROUP;
    origin = ORIGIN == 1 ? Ints(operand(args.origin, 4)).v[batch] : 0;

    // The keys of the block that at least one row sees.
    uint last_query = args.queries - 1;
    int begin = max(int(split * BLOCK), args.first + origin), stop = min(int(min((split + 1) * BLOCK, args.keys)), origin + int(last_query) + args.end);
    uint key0 = uint(max(begin, 0));
    key_end = uint(max(stop, int(key0)));

    uvec2 q_at = operand(args.q, 0), k_at = operand(args.k, 1), v_at = operand(args.v, 2);
    uint value_lane = id % VALUE_LANES, slice = id / VALUE_LANES, v0 = batch * args.v_batch + kv_head * args.v_head;
    uint key_lane = id % KEY_LANES, k0 = batch * args.k_batch + kv_head * args.k_head;
    float queries[EARLY_KEYS > 0 ? ROWS * UNIT : 1];
    if (key0 < key_end) {
        if (EARLY_KEYS > 0) hold_keys(k_at, k0 + key_lane * UNIT, key0 + id / KEY_LANES);
        if (EARLY > 0) hold_values(v_at, v0 + min(value_lane * UNIT, VALUE_SIZE - UNIT), key0 + slice);
    }
    if (EARLY_KEYS > 0) {
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            uint at = query_at(row0 + r) + key_lane * UNIT;
            [[unroll]] for (uint i = 0; i < UNIT; i += HALVES == 1 ? 8 : 4) {
                uvec4 raw = Quads(q_at).v[(at + i) / (HALVES == 1 ? 8 : 4)];
                [[unroll]] for (uint j = 0; j < (HALVES == 1 ? 8 : 4); j++)
                    queries[(r * UNIT + i + j) % (EARLY_KEYS > 0 ? ROWS * UNIT : 1)] = HALVES == 1 ? unpackHalf2x16(raw[j / 2 % 4])[j % 2] : uintBitsToFloat(raw[j % 4]);
            }
        }
        [[unroll]] for (uint i = 0; i < UNIT; i++) {
            float scale = key_scale(key_lane * UNIT + i);
            [[unroll]] for (uint r = 0; r < ROWS; r++) queries[(r * UNIT + i) % (EARLY_KEYS > 0 ? ROWS * UNIT : 1)] *= scale;
        }
    } else {
        for (uint e = id; e < ROWS * SIZE; e += gl_WorkGroupSize.x)
            queries_of[e] = float(Elements(q_at).v[query_at(row0 + e / SIZE) + e % SIZE]) * key_scale(e % SIZE);
    }
    for (uint e = id; e < ROWS * BLOCK; e += gl_WorkGroupSize.x) powers[e] = uintBitsToFloat(0xff800000u);
    barrier();

    // Scores. All lanes execute every iteration, since they combine values.
    if (EARLY_KEYS > 0) {
        for (uint from = key0; from < key_end; from += HELD_KEYS * TURN) {
            if (from > key0) hold_keys(k_at, k0 + key_lane * UNIT, from + id / KEY_LANES);
            [[unroll]] for (uint t = 0; t < HELD_KEYS; t++) {
                if (from + t * TURN < key_end) {
                    unpack(held_keys[t]);
                    [[unroll]] for (uint r = 0; r < ROWS; r++) {
                        scores[r] = 0.0;
                        [[unroll]] for (uint i = 0; i < UNIT; i++)
                            scores[r] = fma(unit[i], queries[(r * UNIT + i) % (EARLY_KEYS > 0 ? ROWS * UNIT : 1)], scores[r]);
                    }
                    store_scores(from + t * TURN);
                }
            }
        }
    } else {
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
    }
    barrier();

    // The maximum score of each row, the powers and their sum.
    uint own = id / ROW_LANES, row_lane = id % ROW_LANES;
    float least = uintBitsToFloat(0xff800000u), most = least, sum = 0.0;
    float sink = SINK == 1 ? float(Elements(operand(args.sink, 5)).v[head_of(row0 + own)]) * LOG2_E : least;
    for (uint e = row_lane; e < BLOCK; e += ROW_LANES) most = max(most, powers[own * BLOCK + e]);
    most = most_over(most, id, ROW_LANES);
    if (PARTIAL == 0) most = max(most, sink);
    for (uint e = row_lane; e < BLOCK; e += ROW_LANES) {
        float score = powers[own * BLOCK + e], power = isinf(score) && score < 0.0 ? 0.0 : exp2(score - most);
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
        if (EARLY > 0) {
            for (uint from = key0; from < key_end; from += HELD * SLICES) {
                if (from > key0) hold_values(v_at, v0 + min(value_lane * UNIT, VALUE_SIZE - UNIT), from + slice);
                [[unroll]] for (uint h = 0; h < HELD; h++) {
                    uint key = from + slice + h * SLICES;
                    if (key < key_end) {
                        unpack(held[h]);
                        add_weighted(key - split * BLOCK);
                    }
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
            uint row = row0 + e / WIDTH, column = u0 + e % WIDTH;
            if (row < rows && column < VALUE_SIZE) {
                float total = 0.0;
                [[unroll]] for (uint p = 0; p < PARTS; p++) total += slices[p * ROWS * WIDTH + e];
                if (PARTIAL == 1) Parts(operand(args.parts, 9)).v[(row_at(row) * args.splits + split) * VALUE_SIZE + column] = total;
                else store(row, column, total);
            }
        }
    }
    if (PARTIAL == 0) return;

    // Each lane's writes become available to the device before the workgroup is counted, and the other workgroups' writes
    // become visible before the last one reads them.
    Counts counts = Counts(operand(args.arrivals, 11));
    uint counter = batch * group_count().y + group_id().y;
    memoryBarrierBuffer();
    barrier();
    if (id == 0) {
        arrived = atomicAdd(counts.v[counter], 1);
        if (arrived == args.splits - 1) counts.v[counter] = 0;
    }
    barrier();
    if (arrived != args.splits - 1) return;
    memoryBarrierBuffer();
    join(sink);
}
