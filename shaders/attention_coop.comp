// Attention in float16 with float32 sums on cooperative matrices (attention.glsl has the algorithm). A subgroup computes
// SUB_ROWS queries, so that their softmax stays within it, MAT_M rows at a time.
//
// The specification leaves open which lane holds which element of a matrix. So scores are stored to a slice of shared memory,
// and the powers are loaded from there. The factors that scale rows are loaded as a matrix with a column stride of 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
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
layout(constant_id = 7) const uint BLOCK_K = 64;
layout(constant_id = 8) const uint VECTORS = 1;  // sizes, strides and addresses are whole groups of UNIT elements
layout(constant_id = 9) const uint GROUP = 1;    // heads that share keys and values
layout(constant_id = 10) const uint BIAS = 0;    // 1: a column for each key, dense; 2: one column for all keys
layout(constant_id = 11) const uint SOFTCAP = 0;
layout(constant_id = 12) const uint ORIGIN = 0;  // 1: first and end are relative to a position per batch
layout(constant_id = 13) const uint SUB_ROWS = 16;
layout(constant_id = 14) const uint MAT_M = 16;  // the cooperative matrices' shape, one of those that the device reports
layout(constant_id = 15) const uint MAT_N = 16;
layout(constant_id = 16) const uint MAT_K = 16;
layout(constant_id = 17) const uint SUBGROUP_LANES = 32;

#define UNIT 8
#define UNIT_T uvec4
#define UNIT_ALIGN 16
#define T float16_t
const uint SUBGROUPS = BLOCK_Q / SUB_ROWS;
const uint LANES = SUBGROUPS * SUBGROUP_LANES;
#define ROWS MAT_M  // not a const, which would give the spec constant a second name
#define ROW_LANES SUBGROUP_LANES
#define ROW_SETS (SUB_ROWS / MAT_M)
const uint DEPTH = (SIZE + MAT_K - 1) / MAT_K * MAT_K;
const uint WIDTH = (VALUE_SIZE + MAT_N - 1) / MAT_N * MAT_N;
const uint QUERIES_AT = 0;
const uint QUERY_UNITS = BLOCK_Q * (DEPTH / UNIT | 1);
const uint STAGE_UNITS = BLOCK_K * ((DEPTH / UNIT | 1) + (WIDTH / UNIT | 1)) + SUBGROUPS * MAT_M * (BLOCK_K / 4 | 1);
const uint SHARED_UNITS = QUERY_UNITS > STAGE_UNITS ? QUERY_UNITS : STAGE_UNITS;
#define ROW_BARRIER() { subgroupMemoryBarrierShared(); subgroupBarrier(); }
#include "attention.glsl"

#define ROW_MATRICES ROW_SETS
#define DEPTH_STEPS (DEPTH / MAT_K)
#define KEY_COLUMNS (BLOCK_K / MAT_N)
#define KEY_STEPS (BLOCK_K / MAT_K)
#define VALUE_COLUMNS (WIDTH / MAT_N)
#define SUMS coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>
#define LEFT coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB>

LEFT queries[ROW_MATRICES * DEPTH_STEPS], powers[ROW_MATRICES * KEY_STEPS];
SUMS results[ROW_MATRICES * VALUE_COLUMNS];

// Lanes of a row are ROWS apart.
float row_maximum(float v) {
    for (uint mask = ROWS; mask < ROW_LANES; mask *= 2) v = max(v, subgroupShuffleXor(v, mask));
    return v;
}
float row_sum(float v) {
    for (uint mask = ROWS; mask < ROW_LANES; mask *= 2) v += subgroupShuffleXor(v, mask);
    return v;
}

uint lane_row() { return gl_SubgroupInvocationID % ROWS; }
uint lane_share() { return gl_SubgroupInvocationID / ROWS; }
uint scores_at() { return SCORES_AT + gl_SubgroupID * MAT_M * S_PITCH; }

// Multiplies the rows of matrix row i by the factors that the lanes hold, MAT_M rows of the subgroup at a time.
void scale_rows(uint i, float factor) {
    uint at = gl_SubgroupID * SUB_ROWS + i * MAT_M, row = at + lane_row();
    if (lane_share() == 0) factors[row / 4][row % 4] = factor;
    ROW_BARRIER();
    SUMS all;
    coopMatLoad(all, factors, at / 4, 0, gl_CooperativeMatrixLayoutColumnMajor);
    [[unroll]] for (uint j = 0; j < VALUE_COLUMNS; j++)
        results[i * VALUE_COLUMNS + j] = results[i * VALUE_COLUMNS + j] * all;
}

void take_queries() {
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++)
        [[unroll]] for (uint d = 0; d < DEPTH_STEPS; d++)
            coopMatLoad(queries[i * DEPTH_STEPS + d], tile, QUERIES_AT + (gl_SubgroupID * SUB_ROWS + i * MAT_M) * K_PITCH + d * MAT_K / UNIT,
                        K_PITCH, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0; i < ROW_MATRICES * VALUE_COLUMNS; i++) results[i] = SUMS(0.0);
    barrier();  // keys replace the queries in shared memory
}

void add_scores(uint key, bool whole) {
    SUMS scores[ROW_MATRICES * KEY_COLUMNS];
    [[unroll]] for (uint i = 0; i < ROW_MATRICES * KEY_COLUMNS; i++) scores[i] = SUMS(0.0);
    [[unroll]] for (uint d = 0; d < DEPTH_STEPS; d++) {
        [[unroll]] for (uint j = 0; j < KEY_COLUMNS; j++) {
            RIGHT b;
            coopMatLoad(b, tile, KEYS_AT + j * MAT_N * K_PITCH + d * MAT_K / UNIT, K_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++)
                scores[i * KEY_COLUMNS + j] = coopMatMulAdd(queries[i * DEPTH_STEPS + d], b, scores[i * KEY_COLUMNS + j]);
        }
    }
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++) {
        [[unroll]] for (uint j = 0; j < KEY_COLUMNS; j++)
            coopMatStore(scores[i * KEY_COLUMNS + j], tile, scores_at() + j * MAT_N / 4, S_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        ROW_BARRIER();
        uint row = gl_SubgroupID * SUB_ROWS + i * MAT_M + lane_row();
        float factor = next_powers(i, scores_at() + lane_row() * S_PITCH, row, lane_share(), key, whole);
        scale_rows(i, factor);
        [[unroll]] for (uint s = 0; s < KEY_STEPS; s++)
            coopMatLoad(powers[i * KEY_STEPS + s], tile, scores_at() + s * MAT_K / UNIT, S_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        ROW_BARRIER();
    }
}

void add_values() {
    [[unroll]] for (uint s = 0; s < KEY_STEPS; s++) {
        [[unroll]] for (uint j = 0; j < VALUE_COLUMNS; j++) {
            RIGHT b;
            coopMatLoad(b, tile, VALUES_AT + s * MAT_K * V_PITCH + j * MAT_N / UNIT, V_PITCH, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++)
                results[i * VALUE_COLUMNS + j] = coopMatMulAdd(powers[i * KEY_STEPS + s], b, results[i * VALUE_COLUMNS + j]);
        }
    }
}

// Results pass through the slice of scores, as many columns at a time as fit.
void store_results() {
    uint y0 = group_id().z * (group_count().y * args.queries * VALUE_SIZE) + group_id().y * args.y_head;
    uvec2 y = operand(args.y, 5);
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++) {
        scale_rows(i, last_factor(i));
        [[unroll]] for (uint j0 = 0; j0 < VALUE_COLUMNS; j0 += KEY_COLUMNS) {
            [[unroll]] for (uint j = 0; j < KEY_COLUMNS; j++)
                if (j0 + j < VALUE_COLUMNS)
                    coopMatStore(results[i * VALUE_COLUMNS + j0 + j], tile, scores_at() + j * MAT_N / 4, S_PITCH, gl_CooperativeMatrixLayoutRowMajor);
            ROW_BARRIER();
            for (uint e = gl_SubgroupInvocationID; e < MAT_M * BLOCK_K / UNIT; e += SUBGROUP_LANES) {
                uint r = e / (BLOCK_K / UNIT), c = e % (BLOCK_K / UNIT), column = j0 * MAT_N + c * UNIT;
                uint row = query0 + gl_SubgroupID * SUB_ROWS + i * MAT_M + r;
                if (row < args.queries && column < VALUE_SIZE) {
                    uint at = scores_at() + r * S_PITCH + 2 * c;
                    vec4 low = uintBitsToFloat(tile[at]), high = uintBitsToFloat(tile[at + 1]);
                    float unit[UNIT] = float[UNIT](low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w);
                    store_unit(y, y0 + row * args.y_row + column, VALUE_SIZE - column, unit);
                }
            }
            ROW_BARRIER();
        }
    }
}
