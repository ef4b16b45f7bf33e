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
#define ROWS BLOCK_Q  // not a const, which would give the spec constant a second name
#define ROW_LANES LANES
#define ROW_SETS 1
const uint DEPTH = (SIZE + UNIT - 1) / UNIT * UNIT;
const uint WIDTH = (VALUE_SIZE + UNIT - 1) / UNIT * UNIT;
const uint QUERIES_AT = BLOCK_K * ((DEPTH / UNIT | 1) + (WIDTH / UNIT | 1)) + BLOCK_Q * (BLOCK_K / 4 | 1);
const uint SHARED_UNITS = QUERIES_AT + BLOCK_Q * (DEPTH / UNIT | 1);
#define ROW_BARRIER() barrier()
#include "attention.glsl"

const uint MICRO_KEYS = BLOCK_K / LANE_COLUMNS;
const uint MICRO_UNITS = (WIDTH / UNIT + LANE_COLUMNS - 1) / LANE_COLUMNS;

vec4 results[MICRO_ROWS * MICRO_UNITS];
shared float parts[LANES];

uint micro_row(uint i) { return i * LANE_ROWS + gl_LocalInvocationIndex / LANE_COLUMNS; }
uint micro_column(uint j) { return j * LANE_COLUMNS + gl_LocalInvocationIndex % LANE_COLUMNS; }
uint lane_row() { return gl_LocalInvocationIndex % ROWS; }
uint lane_share() { return gl_LocalInvocationIndex / ROWS; }

float row_maximum(float v) {
    if (SHARES == 1) return v;
    parts[gl_LocalInvocationIndex] = v;
    barrier();
    [[unroll]] for (uint i = 0; i < SHARES; i++) v = max(v, parts[lane_row() + i * ROWS]);
    barrier();
    return v;
}
float row_sum(float v) {
    if (SHARES == 1) return v;
    parts[gl_LocalInvocationIndex] = v;
    barrier();
    v = 0.0;
    [[unroll]] for (uint i = 0; i < SHARES; i++) v += parts[lane_row() + i * ROWS];
    return v;
}

void take_queries() {
    [[unroll]] for (uint i = 0; i < MICRO_ROWS * MICRO_UNITS; i++) results[i] = vec4(0.0);
}

void set_factor(float factor) {
    if (lane_share() == 0) factors[lane_row() / 4][lane_row() % 4] = factor;
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
    set_factor(next_powers(0, SCORES_AT + lane_row() * S_PITCH, lane_row(), lane_share(), key, whole));
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
    set_factor(last_factor(0));
    barrier();
    scale_results();
    uint y0 = group_id().z * (group_count().y * args.queries * VALUE_SIZE) + group_id().y * args.y_head;
    uvec2 y = operand(args.y, 5);
    [[unroll]] for (uint i = 0; i < MICRO_ROWS; i++) {
        [[unroll]] for (uint j = 0; j < MICRO_UNITS; j++) {
            uint row = query0 + micro_row(i), column = micro_column(j) * UNIT;
            if (row < args.queries && column < VALUE_SIZE) {
                vec4 v = results[i * MICRO_UNITS + j];
                float unit[UNIT] = float[UNIT](v.x, v.y, v.z, v.w);
                store_unit(y, y0 + row * args.y_row + column, VALUE_SIZE - column, unit);
            }
        }
    }
}
