// Attention with float32 arithmetic in registers (attention.glsl has the algorithm). Each lane has MICRO_ROWS queries: every
// LANE_COLUMNS-th column of their scores, and every LANE_COLUMNS-th group of four of their results. Scores and powers pass
// through shared memory. There one lane, or a few, process a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 q; uvec2 k; uvec2 v; uvec2 bias; uvec2 origin; WRITTEN y; uint queries; uint keys; \
    uint q_batch; uint q_head; uint q_row; uint k_batch; uint k_head; uint k_row; uint v_batch; uint v_head; uint v_row; \
    uint y_head; uint y_row; uint bias_batch; uint bias_head; uint bias_row; \
    float scale; float softcap; int first; int end; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint SIZE = 64;
layout(constant_id = 5) const uint VALUE_SIZE = 64;
layout(constant_id = 6) const uint BLOCK_Q = 64;
layout(constant_id = 7) const uint BLOCK_K = 32;
layout(constant_id = 8) const uint VECTORS = 1;  // sizes, strides and addresses are whole groups of UNIT elements
layout(constant_id = 9) const uint GROUP = 1;    // heads that share keys and values
layout(constant_id = 10) const uint BIAS = 0;    // 1: a column for each key, dense; 2: one column for all keys
layout(constant_id = 11) const uint SOFTCAP = 0;
layout(constant_id = 12) const uint ORIGIN = 0;  // 1: first and end are relative to a position per batch
layout(constant_id = 13) const uint MICRO_ROWS = 8;
layout(constant_id = 14) const uint LANE_COLUMNS = 8;

#define UNIT 4
const uint LANE_ROWS = BLOCK_Q / MICRO_ROWS;
const uint LANES = LANE_ROWS * LANE_COLUMNS;
const uint DEPTH = (SIZE + UNIT - 1) / UNIT * UNIT;
const uint WIDTH = (VALUE_SIZE + UNIT - 1) / UNIT * UNIT;
const uint SCORES_AT = BLOCK_K * ((DEPTH / UNIT | 1) + (WIDTH / UNIT | 1));
const uint QUERIES_AT = SCORES_AT + BLOCK_Q * (BLOCK_K / 4 | 1);
const uint SHARED_UNITS = QUERIES_AT + BLOCK_Q * (DEPTH / UNIT | 1);
#include "attention.glsl"

const uint MICRO_KEYS = BLOCK_K / LANE_COLUMNS;
const uint MICRO_UNITS = (WIDTH / UNIT + LANE_COLUMNS - 1) / LANE_COLUMNS;

const uint S_PITCH = BLOCK_K / 4 | 1;
const uint SHARES = LANES / BLOCK_Q;
const uint OWN_KEYS = BLOCK_K / SHARES;

vec4 results[MICRO_ROWS * MICRO_UNITS];
float top, total;  // of the lane's row: the maximum so far; the sum over the lane's share of the keys
shared vec4 factors[BLOCK_Q / 4];  // by which each row's results so far are multiplied
shared float parts[LANES];

uint micro_row(uint i) { return i * LANE_ROWS + gl_LocalInvocationIndex / LANE_COLUMNS; }
uint micro_column(uint j) { return j * LANE_COLUMNS + gl_LocalInvocationIndex % LANE_COLUMNS; }
// A row's scores belong to SHARES lanes, BLOCK_Q apart.
uint lane_row() { return gl_LocalInvocationIndex % BLOCK_Q; }
uint lane_share() { return gl_LocalInvocationIndex / BLOCK_Q; }
uint scores_at() { return SCORES_AT + lane_row() * S_PITCH; }

float row_maximum(float v) {
    if (SHARES == 1) return v;
    parts[gl_LocalInvocationIndex] = v;
    barrier();
    [[unroll]] for (uint i = 0; i < SHARES; i++) v = max(v, parts[lane_row() + i * BLOCK_Q]);
    barrier();
    return v;
}
float row_sum(float v) {
    if (SHARES == 1) return v;
    parts[gl_LocalInvocationIndex] = v;
    barrier();
    v = 0.0;
    [[unroll]] for (uint i = 0; i < SHARES; i++) v += parts[lane_row() + i * BLOCK_Q];
    return v;
}

void set_factor(float factor) {
    if (lane_share() == 0) factors[lane_row() / 4][lane_row() % 4] = factor;
}

// Replaces a row's scores by powers of two relative to the row's maximum.
void set_powers(uint key, bool whole) {
    float own[OWN_KEYS], best = LOWEST;
    [[unroll]] for (uint i = 0; i < OWN_KEYS; i += 4) {
        uint at = lane_share() * OWN_KEYS + i;
        vec4 products = uintBitsToFloat(tile[scores_at() + at / 4]);
        [[unroll]] for (uint c = 0; c < 4; c++) {
            own[i + c] = exponent_of(products[c], lane_row(), key + at + c, whole);
            best = max(best, own[i + c]);
        }
    }
    best = max(row_maximum(best), top);
    float factor = exp2(top - best), sum = 0.0;
    [[unroll]] for (uint i = 0; i < OWN_KEYS; i++) {
        own[i] = exp2(own[i] - best);
        sum += own[i];
    }
    top = best;
    total = total * factor + sum;
    [[unroll]] for (uint i = 0; i < OWN_KEYS; i += UNIT) {
        float unit[UNIT];
        [[unroll]] for (uint c = 0; c < UNIT; c++) unit[c] = own[i + c];
        tile[scores_at() + (lane_share() * OWN_KEYS + i) / UNIT] = pack_unit(unit);
    }
    set_factor(factor);
}

void add_scores(uint key, bool whole) {
    float scores[MICRO_ROWS * MICRO_KEYS];
    [[unroll]] for (uint i = 0; i < MICRO_ROWS * MICRO_KEYS; i++) scores[i] = 0.0;
    for (uint d = 0; d < DEPTH / UNIT; d++) {
        vec4 b[MICRO_KEYS];
        [[unroll]] for (uint j = 0; j < MICRO_KEYS; j++) b[j] = uintBitsToFloat(tile[KEYS_AT + micro_column(j) * K_PITCH + d]);
        [[unroll]] for (uint i = 0; i < MICRO_ROWS; i++) {
            vec4 a = uintBitsToFloat(tile[QUERIES_AT + micro_row(i) * K_PITCH + d]);
            [[unroll]] for (uint j = 0; j < MICRO_KEYS; j++) {
                uint at = i * MICRO_KEYS + j;
                [[unroll]] for (uint c = 0; c < 4; c++) scores[at] = fma(a[c], b[j][c], scores[at]);
            }
        }
    }
    [[unroll]] for (uint i = 0; i < MICRO_ROWS; i++) {
        [[unroll]] for (uint j = 0; j < MICRO_KEYS; j++) {
            uint column = micro_column(j);
            tile[SCORES_AT + micro_row(i) * S_PITCH + column / 4][column % 4] = floatBitsToUint(scores[i * MICRO_KEYS + j]);
        }
    }
    barrier();
    set_powers(key, whole);
}

void scale_results() {
    [[unroll]] for (uint i = 0; i < MICRO_ROWS; i++) {
        float factor = factors[micro_row(i) / 4][micro_row(i) % 4];
        [[unroll]] for (uint j = 0; j < MICRO_UNITS; j++) results[i * MICRO_UNITS + j] *= factor;
    }
}

void add_values() {
    scale_results();
    for (uint s = 0; s < BLOCK_K / 4; s++) {
        vec4 a[MICRO_ROWS];
        [[unroll]] for (uint i = 0; i < MICRO_ROWS; i++) a[i] = uintBitsToFloat(tile[SCORES_AT + micro_row(i) * S_PITCH + s]);
        [[unroll]] for (uint c = 0; c < 4; c++) {
            [[unroll]] for (uint j = 0; j < MICRO_UNITS; j++) {  // units past the last one are not stored
                vec4 b = uintBitsToFloat(tile[VALUES_AT + (4 * s + c) * V_PITCH + min(micro_column(j), WIDTH / UNIT - 1)]);
                [[unroll]] for (uint i = 0; i < MICRO_ROWS; i++)
                    results[i * MICRO_UNITS + j] = fma(vec4(a[i][c]), b, results[i * MICRO_UNITS + j]);
            }
        }
    }
}

void store_results() {
    barrier();  // all lanes have read their factors
    set_factor(factor_of(row_sum(total)));
    barrier();
    scale_results();
    [[unroll]] for (uint i = 0; i < MICRO_ROWS; i++)
        [[unroll]] for (uint j = 0; j < MICRO_UNITS; j++)
            store_result(micro_row(i), micro_column(j) * UNIT, floatBitsToUint(results[i * MICRO_UNITS + j]));
}

void main() {
    find_block();
    [[unroll]] for (uint i = 0; i < MICRO_ROWS * MICRO_UNITS; i++) results[i] = vec4(0.0);
    top = LOWEST_FINITE;  // of a row that has seen no key: powers are 0
    total = 0.0;
    if (begin < end) {
        fetch_queries(q, q0, args.q_row, query0, args.queries);
        fetch_keys(k, k0, args.k_row, begin, end);
        fetch_values(v, v0, args.v_row, begin, end);
        put_queries(QUERIES_AT);
    }
    for (int key = begin; key < end; key += int(BLOCK_K)) {
        barrier();  // all have read the block before
        put_keys(KEYS_AT);
        put_values(VALUES_AT);
        barrier();
        if (key + int(BLOCK_K) < end) {
            fetch_keys(k, k0, args.k_row, key + int(BLOCK_K), end);
            fetch_values(v, v0, args.v_row, key + int(BLOCK_K), end);
        }
        add_scores(key, all_seen(key));
        barrier();
        add_values();
    }
    store_results();
}
