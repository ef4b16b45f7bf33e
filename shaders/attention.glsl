// y = softmax(softcap(scale * q k^T) + bias) v. A workgroup computes BLOCK_Q queries of one head. Scores stay in registers and
// shared memory. It takes BLOCK_K keys at a time. Each row keeps the maximum of its scores and the sum of its powers so far.
// Its results are rescaled when the maximum grows (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax",
// 2018; T. Dao, "FlashAttention-2", 2023).
//
// Query i sees the keys from i + first to i + end (excluded); with ORIGIN, relative to a position of its batch. Workgroup
// (x, y, z) is a block of queries, a head, a batch.
//
// A kernel defines before it includes this:
//   UNIT                 elements in the 16 bytes that shared memory is made of: 8 (halves) or 4 (floats)
//   UNIT_T, UNIT_ALIGN   the type that UNIT elements of q, k, v and y are moved by, and its bytes
//   LANES                lanes of a workgroup
//   ROWS, ROW_LANES      ROW_LANES lanes compute the softmax of ROWS rows together, ROW_SETS times
//   DEPTH, WIDTH         SIZE and VALUE_SIZE, padded with zeros to the multiples that the kernel's products need
//   QUERIES_AT           offset of the queries in shared memory before take_queries(), in units
//   SHARED_UNITS         size of shared memory in units
//   ROW_BARRIER()        the barrier of the ROW_LANES lanes that share rows
// and after it:
//   void take_queries()  called once the queries are in shared memory
//   void add_scores(uint key, bool whole)   computes scores of the keys from `key` on; next_powers() turns them into powers
//   void add_values()    adds powers times values to the results
//   void store_results()
#ifndef VKEP_ATTENTION_GLSL
#define VKEP_ATTENTION_GLSL
#include "workgroup.glsl"
#include "math.glsl"
#include "attention_bias.glsl"

TENSOR(T, Elements)
TENSOR(BIAS_T, Bias)
TENSOR(int, Origins)
layout(buffer_reference, std430, buffer_reference_align = UNIT_ALIGN) buffer Units { UNIT_T v[]; };

const uint K_PITCH = DEPTH / UNIT | 1;  // units per line; an odd number puts neighbouring lines into different banks
const uint V_PITCH = WIDTH / UNIT | 1;
const uint S_PITCH = BLOCK_K / 4 | 1;
const uint KEYS_AT = 0;
const uint VALUES_AT = KEYS_AT + BLOCK_K * K_PITCH;
const uint SCORES_AT = VALUES_AT + BLOCK_K * V_PITCH;

shared uvec4 tile[SHARED_UNITS];
shared vec4 factors[BLOCK_Q / 4];  // per row: the factor by which its results so far are multiplied

#define LOWEST uintBitsToFloat(0xff800000u)  // -infinity
const float LOG2_E = 1.4426950408889634;

uint query0, bias0;
int first_key, end_key, keys_end;  // of query 0, and of all
float top[ROW_SETS], total[ROW_SETS];  // per row: the maximum so far; the sum over the lane's share of the keys

void take_queries();
void add_scores(uint key, bool whole);
void add_values();
void store_results();
float row_maximum(float v);
float row_sum(float v);

#if UNIT == 8
uint pack_halves(float a, float b) { return packFloat2x16(f16vec2(a, b)); }
uvec4 pack_unit(float v[8]) {
    return uvec4(pack_halves(v[0], v[1]), pack_halves(v[2], v[3]), pack_halves(v[4], v[5]), pack_halves(v[6], v[7]));
}
uvec4 loaded(uvec4 unit) { return unit; }
#else
uvec4 pack_unit(float v[4]) { return floatBitsToUint(vec4(v[0], v[1], v[2], v[3])); }
uvec4 loaded(UNIT_T unit) { return floatBitsToUint(vec4(unit)); }
#endif

// Loads UNIT elements from element `at` on. Those from index `count` on are zero.
uvec4 load_unit(uvec2 address, uint at, uint count) {
    if (VECTORS == 1) return loaded(Units(address).v[at / UNIT]);
    float v[UNIT];
    [[unroll]] for (uint i = 0; i < UNIT; i++) v[i] = i < count ? float(Elements(address).v[at + min(i, count - 1)]) : 0.0;
    return pack_unit(v);
}

void store_unit(uvec2 address, uint at, uint count, float v[UNIT]) {
    if (VECTORS == 1) {
#if UNIT == 8
        Units(address).v[at / UNIT] = pack_unit(v);
#else
        Units(address).v[at / UNIT] = UNIT_T(v[0], v[1], v[2], v[3]);
#endif
    } else {
        [[unroll]] for (uint i = 0; i < UNIT; i++)
            if (i < count) Elements(address).v[at + i] = T(v[i]);
    }
}

// Copies lines of a tensor to shared memory: fetch_NAME loads LINES of them into registers, put_NAME stores these. Lines from
// `end` on become zero; their loads are clamped to the line before `end`.
#define LINES_IN_REGISTERS(NAME, LINES, COLUMNS, ELEMENTS, PITCH) \
    const uint NAME##_line = (COLUMNS) / UNIT, NAME##_filled = (ELEMENTS + UNIT - 1) / UNIT; \
    const uint NAME##_loads = (LINES * NAME##_line + LANES - 1) / LANES; \
    uvec4 NAME##_next[NAME##_loads]; \
    void fetch_##NAME(uvec2 address, uint at, uint stride, uint first, uint end) { \
        [[unroll]] for (uint i = 0; i < NAME##_loads; i++) { \
            uint e = gl_LocalInvocationIndex + i * LANES, line = first + e / NAME##_line; \
            uint unit = e % NAME##_line, column = min(unit, NAME##_filled - 1) * UNIT; \
            uvec4 v = load_unit(address, at + min(line, end - 1) * stride + column, ELEMENTS - column); \
            NAME##_next[i] = line < end && unit < NAME##_filled ? v : uvec4(0); \
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

const uint SHARES = ROW_LANES / ROWS;  // lanes per row
const uint OWN_KEYS = BLOCK_K / SHARES;

// Replaces a row's scores (floats from unit `at` of shared memory on) by powers of two relative to the row's maximum,
// as elements. Returns the factor for the row's results so far. `whole`: each row sees all of these keys.
float next_powers(uint set, uint at, uint row, uint share, uint key, bool whole) {
    uint line = min(query0 + row, args.queries - 1);
    int first = int(query0 + row) + first_key, end = min(keys_end, int(query0 + row) + end_key);
    float v[OWN_KEYS], best = LOWEST;
    [[unroll]] for (uint i = 0; i < OWN_KEYS; i += 4) {
        uint k = share * OWN_KEYS + i;
        vec4 products = uintBitsToFloat(tile[at + k / 4]);
        [[unroll]] for (uint c = 0; c < 4; c++) {
            float score = args.scale * products[c];
            if (SOFTCAP == 1) score = args.softcap * limited_tanh(score);
            if (BIAS != 0) {
                uint column = BIAS == 1 ? min(key + k + c, args.keys - 1) : 0;
                Bias bias = Bias(operand(args.bias, 3));
                score = biased(score, float(bias.v[bias0 + line * args.bias_row + column]));
            }
            int place = int(key + k + c);
            v[i + c] = whole || (place >= first && place < end) ? score : LOWEST;
            best = max(best, v[i + c]);
        }
    }
    best = max(row_maximum(best), top[set]);
    float base = best == LOWEST ? 0.0 : best;  // no visible key yet: all powers become 0
    float factor = exp2(top[set] - base), sum = 0.0;
    [[unroll]] for (uint i = 0; i < OWN_KEYS; i++) {
        v[i] = exp2(v[i] - base);
        sum += v[i];
    }
    top[set] = best;
    total[set] = total[set] * factor + sum;
    ROW_BARRIER();  // all have read their scores
    [[unroll]] for (uint i = 0; i < OWN_KEYS; i += UNIT) {
        float unit[UNIT];
        [[unroll]] for (uint c = 0; c < UNIT; c++) unit[c] = v[i + c];
        tile[at + (share * OWN_KEYS + i) / UNIT] = pack_unit(unit);
    }
    return factor;
}

// The reciprocal of a row's sum of powers; 0 for a row that saw no key.
float last_factor(uint set) {
    float sum = row_sum(total[set]);
    return sum == 0.0 ? 0.0 : 1.0 / sum;
}

void main() {
    query0 = (group_count().x - 1 - group_id().x) * BLOCK_Q;  // the last blocks go first: under a causal mask they take the longest
    uint head = group_id().y, batch = group_id().z, kv_head = head / GROUP;
    uint q0 = batch * args.q_batch + head * args.q_head;
    uint k0 = batch * args.k_batch + kv_head * args.k_head;
    uint v0 = batch * args.v_batch + kv_head * args.v_head;
    bias0 = batch * args.bias_batch + head * args.bias_head;
    uvec2 q = operand(args.q, 0), k = operand(args.k, 1), v = operand(args.v, 2);
    int last_query = int(min(query0 + BLOCK_Q, args.queries)) - 1;
    int origin = ORIGIN == 1 ? Origins(operand(args.origin, 4)).v[batch] : 0;
    first_key = origin + args.first;
    end_key = origin + args.end;
    keys_end = int(args.keys);
    int begin = max(0, int(query0) + first_key), end = min(keys_end, last_query + end_key);
    [[unroll]] for (uint i = 0; i < ROW_SETS; i++) {
        top[i] = LOWEST;
        total[i] = 0.0;
    }
    if (begin < end) {
        fetch_queries(q, q0, args.q_row, query0, args.queries);
        fetch_keys(k, k0, args.k_row, begin, end);
        put_queries(QUERIES_AT);
        barrier();
    }
    take_queries();
    for (int key = begin; key < end; key += int(BLOCK_K)) {
        put_keys(KEYS_AT);
        barrier();
        fetch_values(v, v0, args.v_row, key, end);
        int after = key + int(BLOCK_K);
        add_scores(key, after <= keys_end && key >= last_query + first_key && after <= int(query0) + end_key);
        put_values(VALUES_AT);
        barrier();
        if (after < end) fetch_keys(k, k0, args.k_row, after, end);
        add_values();
    }
    store_results();
}
#endif
