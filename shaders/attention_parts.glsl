// What the kernels of attention of few queries share (attention_split.comp, attention_stream.comp): a workgroup processes some
// of the keys for ROWS rows of one head of keys and values, where a row is a query of a head of its group. With PARTIAL it stores
// for each row the maximum score, the sum of the powers and the values weighted by them. The workgroups of the same rows count
// their arrivals in a counter; the last one joins the parts and sets the counter to zero again.
//
// Scores are exponents of two: `scale` and `softcap` contain log2(e). UNIT elements are read at once: 16 bytes, 8 elements of a
// quantized cache, or one where rows are not aligned.
#ifdef UPDATES
#define CACHE WRITTEN
#define UPDATE_OPERANDS uvec2 new_key; uvec2 new_value; uvec2 cos; uvec2 sin; uvec2 ids; uvec2 q_gain; uvec2 k_gain; WRITTEN fault;
#define UPDATE_PARAMS uint new_k_batch; uint new_k_head; uint new_v_batch; uint new_v_head; uint table_rows; uint fault_code; float epsilon;
#else
#define CACHE uvec2
#define UPDATE_OPERANDS
#define UPDATE_PARAMS
#endif
#define ARGS_BODY { uvec2 q; CACHE k; CACHE v; uvec2 bias; uvec2 origin; uvec2 sink; uvec2 k_scale; uvec2 v_scale; \
    WRITTEN y; WRITTEN parts; WRITTEN stats; WRITTEN arrivals; UPDATE_OPERANDS \
    uint queries; uint keys; uint row_tiles; uint splits; \
    uint q_batch; uint q_head; uint q_row; uint k_batch; uint k_head; uint k_row; uint v_batch; uint v_head; uint v_row; \
    uint y_head; uint y_row; uint bias_batch; uint bias_head; uint bias_row; float scale; float softcap; int first; int end; UPDATE_PARAMS }
#include "args.glsl"
#include "lanes.glsl"
#include "math.glsl"
#include "attention_bias.glsl"

layout(constant_id = 4) const uint SIZE = 64;
layout(constant_id = 5) const uint VALUE_SIZE = 64;
layout(constant_id = 6) const uint ROWS = 1;
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
layout(constant_id = 23) const uint COLUMNS = 16;  // lanes along a value when parts are joined

const float LOG2_E = 1.44269504089;
const uint ROW_LANES = gl_WorkGroupSize.x / ROWS;
const uint JOINED = VALUE_SIZE % 4 == 0 ? 4 : 1;  // elements of a part that are read at once
const uint JOIN_SLICES = ROW_LANES / COLUMNS;     // number of slices that the parts are divided into
const uint AHEAD = 4;                             // parts that a lane reads before it adds them up

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

shared uint arrived;

float add(float x, float y) { return x + y; }
float greater(float x, float y) { return max(x, y); }
COMBINE_LANES(sum_over, float, add)
COMBINE_LANES(most_over, float, greater)

// Element i of a unit of keys or values.
float element(uvec4 raw, uint i) {
    if (CODE == CODE_BFLOAT16) return decode(raw[i / 2 % 4] >> i % 2 * 16 & 0xffffu);
    if (CODE == CODE_INT4) return decode(raw.x >> i * 4);
    if (CODE != 0) return decode(raw[i / 4 % 4] >> i % 4 * 8 & 255u);
    return UNIT == 8 ? unpackHalf2x16(raw[i / 2 % 4])[i % 2] : uintBitsToFloat(raw[i % 4]);
}

uvec4 raw_at(uvec2 address, uint at) {  // `at` counts elements
    if (CODE == CODE_INT4) return uvec4(Words(address).v[at / UNIT], 0, 0, 0);
    if (CODE > CODE_BFLOAT16) return uvec4(Pairs(address).v[at / UNIT], 0, 0);
    return Quads(address).v[at / UNIT];
}

uint id, split, batch, kv_head, row0, rows, heads, key_end;
int origin;

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

// The score of a row and a key, from the product of both; minus infinity where the row does not see the key.
float score_of(float product, uint row, uint key) {
    uint query = query_of(row);
    int distance = int(key) - int(query) - origin;
    if (SOFTCAP == 1) product = args.softcap * limited_tanh(product);
    if (BIAS != 0 && key < key_end) {
        uint at = batch * args.bias_batch + head_of(row) * args.bias_head + query * args.bias_row + (BIAS == 1 ? key : 0);
        product = biased(product, float(Biases(operand(args.bias, 3)).v[at]));
    }
    return key < key_end && distance >= args.first && distance < args.end ? product : uintBitsToFloat(0xff800000u);
}

// 2 to the power of a score, of which `most` is the maximum.
float power_of(float score, float most) { return isinf(score) && score < 0.0 ? 0.0 : exp2(score - most); }

float sink_of(uint row) {
    return SINK == 1 ? float(Elements(operand(args.sink, 5)).v[head_of(row)]) * LOG2_E : uintBitsToFloat(0xff800000u);
}

void place_group() {
    id = gl_LocalInvocationIndex, split = group_id().x, batch = group_id().z;
    kv_head = group_id().y / args.row_tiles, row0 = group_id().y % args.row_tiles * ROWS, rows = GROUP * args.queries;
    heads = group_count().y / args.row_tiles * GROUP;
    origin = ORIGIN == 1 ? Ints(operand(args.origin, 4)).v[batch] : 0;
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

// Joins the parts where this workgroup is the last one of its rows. Each lane's writes become available to the device before the
// workgroup is counted, and the other workgroups' writes become visible before the last one reads them. All lanes must call it.
void arrive() {
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
    join(sink_of(row0 + id / ROW_LANES));
}
