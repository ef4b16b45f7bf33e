// Attention of few queries (a decoder's step), as attention_parts.glsl says, where LINE lanes hold a key and then a value, a unit
// each. A subgroup processes HELD keys per line at a time: it holds the next keys and values in registers while it computes the
// scores and sums of these, with the maximum so far (M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax",
// 2018). With UPDATES the queries are one new token's, which lack their rotation (and norm), as its key does: the dispatch also
// does what cache_update.comp does in the past's memory. The keys that a sequence sees are shared evenly among its workgroups, whatever its length.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "attention_parts.glsl"

layout(constant_id = 7) const uint LINE = 8;         // lanes of a row: a power of two, at least ROWS
layout(constant_id = 8) const uint HELD = 8;
#ifdef UPDATES
#include "fault.glsl"
layout(constant_id = 25) const uint HALF = 1;  // pairs of features that are rotated: (i, i + HALF)
layout(constant_id = 26) const uint IDS = 0;   // 1: positions are an input
layout(constant_id = 27) const uint NORM = 0;  // 1: queries and keys are divided by their root mean square
#endif
layout(constant_id = 24) const uint HALVES = 0;      // 1: queries are float16

const uint WAVES = gl_WorkGroupSize.x / SUBGROUP_LANES;
const uint LINES = SUBGROUP_LANES / LINE;
const uint STEP = HELD * LINES;                                 // keys of a subgroup at a time
const uint SCORES = HELD * ROWS;                                // of a line
const uint OWN = SCORES > LINE ? SCORES / LINE : 1;             // scores that a lane gets of them, of one row
const uint ROW_RUN = LINE / ROWS;                               // lanes of a line that have scores of the same row
const uint SCALES = K_CHANNELS == 1 ? UNIT : 1;
const uint QUERY_QUADS = HALVES == 1 || UNIT == 4 ? 1 : 2;
const uint QUADS = VALUE_SIZE / 4, UNIT_QUADS = UNIT > 4 ? UNIT / 4 : 1;

shared vec2 wave_stats[WAVES * ROWS];  // maximum score, sum of powers
shared vec4 wave_sums[WAVES * ROWS * QUADS];

uvec4 keys[HELD], values[HELD];
uvec4 queries[ROWS * QUERY_QUADS];
float sums[ROWS * UNIT];
uint lane, line, place;  // in the subgroup; number of the line; first element of the lane's unit

// Loads the lane's units of the keys (values) of a step. `at`: the head's first element.
void hold_keys(uvec2 address, uint at, uint from) {
    [[unroll]] for (uint t = 0; t < HELD; t++)
        keys[t] = place < SIZE ? raw_at(address, at + min(from + t * LINES + line, key_end - 1) * args.k_row + place) : uvec4(0);
}
void hold_values(uvec2 address, uint at, uint from) {
    [[unroll]] for (uint t = 0; t < HELD; t++)
        values[t] = place < VALUE_SIZE ? raw_at(address, at + min(from + t * LINES + line, key_end - 1) * args.v_row + place) : uvec4(0);
}

#ifdef UPDATES
TENSOR(int64_t, Longs)
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer NewQuads { uvec4 v[]; };

// The position of the sequence's new token, by which it is rotated.
uint position() {
    int64_t asked = IDS == 1 ? Longs(operand(args.ids, 16)).v[batch] : int64_t(origin);
    if (asked >= 0 && asked < int64_t(args.table_rows)) return uint(asked);
    note_fault(operand(args.fault, 19), args.fault_code);
    return 0;
}

// The lane's unit of the head at `at`, normalized and rotated, as it is stored. All lanes of a line must call it.
uvec4 turned(uvec2 address, uint at, uvec2 gain, uvec4 cosines, uvec4 sines) {
    uint own = min(place, SIZE - UNIT), other = own < HALF ? own + HALF : own < 2 * HALF ? own - HALF : own;
    uvec4 raw = Quads(address).v[(at + own) / UNIT], partner = Quads(address).v[(at + other) / UNIT];
    uvec4 own_gain = uvec4(0), other_gain = uvec4(0);
    float factor = 1.0;
    if (NORM == 1) {
        own_gain = Quads(gain).v[own / UNIT], other_gain = Quads(gain).v[other / UNIT];
        float squares = 0.0;
        [[unroll]] for (uint i = 0; i < UNIT; i++) squares = fma(element(raw, i), element(raw, i), squares);
        if (place >= SIZE) squares = 0.0;
        [[unroll]] for (uint mask = 1; mask < LINE; mask *= 2) squares += subgroupShuffleXor(squares, mask);
        factor = inversesqrt(squares / float(SIZE) + args.epsilon);
    }
    float result[UNIT];
    [[unroll]] for (uint i = 0; i < UNIT; i++) {
        float x = element(raw, i), y = element(partner, i);
        if (NORM == 1) x *= factor * element(own_gain, i), y *= factor * element(other_gain, i);
        float to = x * element(cosines, i) + (own < HALF ? -y : y) * element(sines, i);
        result[i] = own < 2 * HALF ? to : x;
    }
    uvec4 made = uvec4(0);
    [[unroll]] for (uint i = 0; i < 4; i++)
        made[i] = UNIT == 8 ? packHalf2x16(vec2(result[2 * i % UNIT], result[(2 * i + 1) % UNIT])) : floatBitsToUint(result[i]);
    return place < SIZE ? made : uvec4(0);
}

uvec4 new_key, new_value;

void load_queries() {
    uint at = position() * HALF + min(place, SIZE - UNIT) % HALF;
    uvec4 cosines = Quads(operand(args.cos, 14)).v[at / UNIT], sines = Quads(operand(args.sin, 15)).v[at / UNIT];
    uvec2 address = operand(args.q, 0), gain = operand(args.q_gain, 17);
    [[unroll]] for (uint r = 0; r < ROWS; r++) queries[r] = turned(address, query_at(row0 + r), gain, cosines, sines);
    uint key = batch * args.new_k_batch + kv_head * args.new_k_head, value = batch * args.new_v_batch + kv_head * args.new_v_head;
    new_key = turned(operand(args.new_key, 12), key, operand(args.k_gain, 18), cosines, sines);
    new_value = Quads(operand(args.new_value, 13)).v[(value + min(place, VALUE_SIZE - UNIT)) / UNIT];
}
#else
// Queries stay as they are stored: as numbers, they would take registers that subgroups need.
void load_queries() {
    uvec2 address = operand(args.q, 0);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint i = 0; i < QUERY_QUADS; i++)
            queries[r * QUERY_QUADS + i] = place < SIZE ? Quads(address).v[(query_at(row0 + r) + place) / UNIT * QUERY_QUADS + i] : uvec4(0);
}
#endif

float query(uint r, uint i) {
    return HALVES == 1 ? unpackHalf2x16(queries[r * QUERY_QUADS + i / 8][i / 2 % 4])[i % 2] : uintBitsToFloat(queries[r * QUERY_QUADS + i / 4 % QUERY_QUADS][i % 4]);
}

void main() {
    if (surplus_group()) return;  // a repeated workgroup would be counted twice
    place_group();
    lane = id % SUBGROUP_LANES, line = lane / LINE, place = lane % LINE * UNIT;
    uint wave = id / SUBGROUP_LANES;

    // The keys that at least one row sees, and this workgroup's of them.
    int low = max(args.first + origin, 0), high = min(int(args.keys), origin + int(args.queries) - 1 + args.end);
    uint seen = uint(max(high - low, 0)), share = (seen + args.splits * STEP - 1) / (args.splits * STEP) * STEP;
    uint begin = uint(low) + split * share;
    key_end = min(begin + share, uint(low) + seen);

    uvec2 k_at = operand(args.k, 1), v_at = operand(args.v, 2);
    uint k0 = batch * args.k_batch + kv_head * args.k_head, v0 = batch * args.v_batch + kv_head * args.v_head;
    uint from = begin + wave * STEP;
    if (from < key_end) {
        hold_keys(k_at, k0, from);
        hold_values(v_at, v0, from);
    }
    load_queries();
    float scale = K_CHANNELS == 1 ? 1.0 : key_scale(0), scales[SCALES];
    [[unroll]] for (uint i = 0; i < SCALES; i++) scales[i] = K_CHANNELS == 1 ? key_scale(min(place + i, SIZE - 1)) : scale;
    [[unroll]] for (uint i = 0; i < ROWS * UNIT; i++) sums[i] = 0.0;

    uint newest = uint(origin);  // with UPDATES: the row of the new key
    // A lane's scores are of row `own`, and of the `first`th key of a line and those after it.
    uint own = lane % LINE / ROW_RUN, first = lane % LINE * SCORES / LINE % HELD;
    float least = uintBitsToFloat(0xff800000u), most = least, sum = 0.0;
    for (; from < key_end; from += WAVES * STEP) {
#ifdef UPDATES
        if (newest - from < STEP)
            [[unroll]] for (uint t = 0; t < HELD; t++) {
                uint key = from + t * LINES + line;
                if (min(key, key_end - 1) == newest) keys[t] = new_key, values[t] = new_value;
                if (key != newest || row0 > 0) continue;
                if (place < SIZE) NewQuads(k_at).v[(k0 + newest * args.k_row + place) / UNIT] = new_key;
                if (place < VALUE_SIZE) NewQuads(v_at).v[(v0 + newest * args.v_row + place) / UNIT] = new_value;
            }
#endif
        float scores[SCORES];
        [[unroll]] for (uint i = 0; i < SCORES; i++) scores[i] = 0.0;
        [[unroll]] for (uint i = 0; i < UNIT; i++) {
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                float of = K_CHANNELS == 1 ? query(r, i) * scales[i % SCALES] : query(r, i);
                [[unroll]] for (uint t = 0; t < HELD; t++) scores[r * HELD + t] = fma(element(keys[t], i), of, scores[r * HELD + t]);
            }
        }
        bool more = from + WAVES * STEP < key_end;
        if (more) hold_keys(k_at, k0, from + WAVES * STEP);

        // Sums over the lanes of a line. Each step halves the scores that a lane has, while it has several.
        [[unroll]] for (uint s = 0; s < 7; s++) {  // subgroups have up to 128 lanes
            uint mask = LINE / 2 >> s, kept = SCORES / 2 >> s;
            if (mask > 0 && kept > 0) {
                [[unroll]] for (uint i = 0; i < SCORES / 2; i++) {
                    if (i < kept) {
                        bool upper = (lane & mask) != 0;
                        float low_part = scores[i], high_part = scores[(i + kept) % SCORES];
                        scores[i] = (upper ? high_part : low_part) + subgroupShuffleXor(upper ? low_part : high_part, mask);
                    }
                }
            } else if (mask > 0) {
                scores[0] += subgroupShuffleXor(scores[0], mask);
            }
        }

        float before = most;
        [[unroll]] for (uint i = 0; i < OWN; i++) {
            scores[i] = score_of(scores[i] * scale, row0 + own, from + (first + i) * LINES + line);
            most = max(most, scores[i]);
        }
        [[unroll]] for (uint mask = 1; mask < SUBGROUP_LANES; mask *= 2)
            if (mask < ROW_RUN || mask >= LINE) most = max(most, subgroupShuffleXor(most, mask));
        float rest = before == most ? 1.0 : exp2(before - most);
        sum *= rest;
        [[unroll]] for (uint i = 0; i < OWN; i++) {
            scores[i] = power_of(scores[i], most);
            sum += scores[i];
        }

        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            float factor = subgroupShuffle(rest, line * LINE + r * ROW_RUN);
            [[unroll]] for (uint i = 0; i < UNIT; i++) sums[r * UNIT + i] *= factor;
        }
        [[unroll]] for (uint t = 0; t < HELD; t++) {
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                uint index = r * HELD + t;
                float power = subgroupShuffle(scores[index % OWN], line * LINE + index * LINE / SCORES);
                [[unroll]] for (uint i = 0; i < UNIT; i++) sums[r * UNIT + i] = fma(power, element(values[t], i), sums[r * UNIT + i]);
            }
        }
        if (more) hold_values(v_at, v0, from + WAVES * STEP);
    }

    // The sums of a subgroup, then of the workgroup.
    if (lane % LINE * SCORES % LINE != 0) sum = 0.0;  // a copy of another lane's
    [[unroll]] for (uint mask = 1; mask < SUBGROUP_LANES; mask *= 2) {
        if (mask < ROW_RUN || mask >= LINE) sum += subgroupShuffleXor(sum, mask);
        if (mask >= LINE)
            [[unroll]] for (uint i = 0; i < ROWS * UNIT; i++) sums[i] += subgroupShuffleXor(sums[i], mask);
    }
    if (lane < LINE && lane % ROW_RUN == 0) wave_stats[wave * ROWS + own] = vec2(most, sum);
    if (lane < LINE && place < VALUE_SIZE)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            [[unroll]] for (uint q = 0; q < UNIT_QUADS; q++) {
                uint i = r * UNIT + q * 4;
                wave_sums[(wave * ROWS + r) * QUADS + place / 4 + q] = vec4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
            }
    barrier();
    for (uint e = id; e < ROWS * QUADS; e += gl_WorkGroupSize.x) {
        uint r = e / QUADS, row = row0 + r, column = e % QUADS * 4;
        float top = PARTIAL == 0 ? sink_of(row) : least, powers = 0.0;
        [[unroll]] for (uint w = 0; w < WAVES; w++) top = max(top, wave_stats[w * ROWS + r].x);
        if (PARTIAL == 0 && SINK == 1) powers = exp2(sink_of(row) - top);
        vec4 total = vec4(0.0);
        [[unroll]] for (uint w = 0; w < WAVES; w++) {
            vec2 stats = wave_stats[w * ROWS + r];
            float weight = stats.y != 0.0 ? exp2(stats.x - top) : 0.0;
            powers = fma(weight, stats.y, powers);
            total = fma(vec4(weight), wave_sums[w * ROWS * QUADS + e], total);
        }
        if (row < rows && PARTIAL == 1) {
            uint at = row_at(row) * args.splits + split;
            PartQuads(operand(args.parts, 9)).v[at * QUADS + e % QUADS] = total;
            if (column == 0) PartStats(operand(args.stats, 10)).v[at] = vec2(top, powers);
        } else if (row < rows) {
            [[unroll]] for (uint i = 0; i < 4; i++) store(row, column + i, powers != 0.0 ? total[i] / powers : 0.0);  // 0: no visible key
        }
    }
    if (PARTIAL == 1) arrive();
}
