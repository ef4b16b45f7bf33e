// Attention in float16 with float32 sums on cooperative matrices (attention.glsl has the algorithm). A subgroup computes
// SUB_ROWS queries, MAT_M rows at a time, so that their softmax stays within it.
//
// The specification leaves open which lane holds which element of a matrix. In the order that drivers are known to use, the lanes
// turn scores into powers in their registers, and the sums' elements are those of a left matrix (attend_in_registers). In
// another order both pass through shared memory, a matrix at a time (attend_through_memory).
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
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
layout(constant_id = 16) const uint MAT_K = 16;  // MAT_N
layout(constant_id = 17) const uint SUBGROUP_LANES = 32;

#define UNIT 8
#define UNIT_T uvec4
#define UNIT_ALIGN 16
#define T float16_t
const uint SUBGROUPS = BLOCK_Q / SUB_ROWS;
const uint LANES = SUBGROUPS * SUBGROUP_LANES;
const uint DEPTH = (SIZE + MAT_K - 1) / MAT_K * MAT_K;
const uint WIDTH = (VALUE_SIZE + MAT_N - 1) / MAT_N * MAT_N;
const uint SLICE = MAT_M * MAT_N / 4;  // units of a matrix of a subgroup
// First the queries, then two stages of keys and values (or one, and the slices), then the results.
const uint QUERY_UNITS = BLOCK_Q * (DEPTH / UNIT | 1);
const uint RESULT_UNITS = BLOCK_Q * (WIDTH / UNIT | 1);
const uint STAGE_UNITS = BLOCK_K * ((DEPTH / UNIT | 1) + (WIDTH / UNIT | 1));
const uint SLICES_UNITS = SUBGROUPS * SLICE;
const uint STAGED_UNITS = STAGE_UNITS + (SLICES_UNITS > STAGE_UNITS ? SLICES_UNITS : STAGE_UNITS);
const uint ENDS_UNITS = QUERY_UNITS > RESULT_UNITS ? QUERY_UNITS : RESULT_UNITS;
const uint SHARED_UNITS = ENDS_UNITS > STAGED_UNITS ? ENDS_UNITS : STAGED_UNITS;
#include "attention.glsl"
#define MATRIX_MEMORY tile
#include "matrix_order.glsl"

#define ROW_MATRICES (SUB_ROWS / MAT_M)
#define DEPTH_STEPS (DEPTH / MAT_K)
#define KEY_COLUMNS (BLOCK_K / MAT_N)
#define VALUE_COLUMNS (WIDTH / MAT_N)
#define SUMS coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>
#define HALVES coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>
#define LEFT coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB>
#define SUBGROUP_BARRIER() { subgroupMemoryBarrierShared(); subgroupBarrier(); }

LEFT queries[ROW_MATRICES * DEPTH_STEPS], powers[ROW_MATRICES];
SUMS scores[ROW_MATRICES * KEY_COLUMNS], next_scores[ROW_MATRICES * KEY_COLUMNS], results[ROW_MATRICES * VALUE_COLUMNS];

uint matrix_row(uint i) { return gl_SubgroupID * SUB_ROWS + i * MAT_M; }

void take_queries() {
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++)
        [[unroll]] for (uint d = 0; d < DEPTH_STEPS; d++)
            coopMatLoad(queries[i * DEPTH_STEPS + d], tile, matrix_row(i) * K_PITCH + d * MAT_K / UNIT, K_PITCH, gl_CooperativeMatrixLayoutRowMajor);
}

// next_scores: the products of the queries and the keys of a stage.
void multiply_keys(uint stage) {
    [[unroll]] for (uint i = 0; i < ROW_MATRICES * KEY_COLUMNS; i++) next_scores[i] = SUMS(0.0);
    [[unroll]] for (uint d = 0; d < DEPTH_STEPS; d++) {
        [[unroll]] for (uint j = 0; j < KEY_COLUMNS; j++) {
            RIGHT b;
            coopMatLoad(b, tile, stage + KEYS_AT + j * MAT_N * K_PITCH + d * MAT_K / UNIT, K_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++)
                next_scores[i * KEY_COLUMNS + j] = coopMatMulAdd(queries[i * DEPTH_STEPS + d], b, next_scores[i * KEY_COLUMNS + j]);
        }
    }
}

void take_scores() {
    [[unroll]] for (uint i = 0; i < ROW_MATRICES * KEY_COLUMNS; i++) scores[i] = next_scores[i];
}

// Adds the products of `powers`, of MAT_K keys from number s * MAT_K on, and of their values.
void multiply_values(uint stage, uint s) {
    [[unroll]] for (uint j = 0; j < VALUE_COLUMNS; j++) {
        RIGHT b;
        coopMatLoad(b, tile, stage + VALUES_AT + s * MAT_K * V_PITCH + j * MAT_N / UNIT, V_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++)
            results[i * VALUE_COLUMNS + j] = coopMatMulAdd(powers[i], b, results[i * VALUE_COLUMNS + j]);
    }
}

// ---- in registers: a lane holds elements of two rows of a matrix, and four lanes share a row

// A row's powers are relative to its maximum as of some block before: they are at most two to the power of MARGIN, which
// float16 holds as exactly. So the maxima and factors of most blocks need not be known.
const float MARGIN = 8.0;

float top[ROW_MATRICES][2], total[ROW_MATRICES][2];  // total: the sum over the lane's share of the keys

float row_maximum(float x) {
    x = max(x, subgroupShuffleXor(x, 1));
    return max(x, subgroupShuffleXor(x, 2));
}
float row_sum(float x) {
    x += subgroupShuffleXor(x, 1);
    return x + subgroupShuffleXor(x, 2);
}

void scale_rows(uint i, float factors[2]) {
    [[unroll]] for (uint j = 0; j < VALUE_COLUMNS; j++)
        [[unroll]] for (uint e = 0; e < 8; e++) results[i * VALUE_COLUMNS + j][e] *= factors[e / 4];
}

// Raises the maxima of all rows, where one of the subgroup's scores exceeds its row's by more than MARGIN.
void raise_tops(float scale) {
    float best[ROW_MATRICES][2];
    bool exceeds = false;
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++) {
        [[unroll]] for (uint r = 0; r < 2; r++) {
            best[i][r] = LOWEST;
            [[unroll]] for (uint j = 0; j < KEY_COLUMNS; j++)
                [[unroll]] for (uint e = 0; e < 4; e++) best[i][r] = max(best[i][r], scores[i * KEY_COLUMNS + j][4 * r + e]);
            exceeds = exceeds || scale * best[i][r] > top[i][r] + MARGIN;
        }
    }
    if (subgroupBallot(exceeds) == uvec4(0)) return;
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++) {
        float factors[2];
        [[unroll]] for (uint r = 0; r < 2; r++) {
            float raised = max(scale * row_maximum(best[i][r]), top[i][r]);
            factors[r] = exp2(top[i][r] - raised);
            top[i][r] = raised;
            total[i][r] *= factors[r];
        }
        scale_rows(i, factors);
    }
}

// Adds the keys of a block, whose products are in next_scores, and multiplies the queries and the keys of the next stage.
void add_block(uint stage, uint key, bool whole) {
    take_scores();
    bool plain = SOFTCAP == 0 && BIAS == 0 && whole && args.scale > 0.0;  // the scores' order is that of the products
    if (!plain) {
        [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++)
            [[unroll]] for (uint j = 0; j < KEY_COLUMNS; j++)
                [[unroll]] for (uint e = 0; e < 8; e++)
                    scores[i * KEY_COLUMNS + j][e] = exponent_of(scores[i * KEY_COLUMNS + j][e], matrix_row(i) + line_of_element(e),
                                                                 key + j * MAT_N + place_of_element(e), whole);
    }
    float scale = plain ? args.scale : 1.0;
    raise_tops(scale);
    multiply_keys(STAGE - stage);  // behind the last block: of what is there
    [[unroll]] for (uint s = 0; s < KEY_COLUMNS; s++) {
        [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++) {
            [[unroll]] for (uint e = 0; e < 8; e++) {
                float power = exp2(fma(scores[i * KEY_COLUMNS + s][e], scale, -top[i][e / 4]));
                total[i][e / 4] += power;
                powers[i][e] = float16_t(power);
            }
        }
        multiply_values(stage, s);
    }
}

void attend_in_registers() {
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++)
        [[unroll]] for (uint r = 0; r < 2; r++) {
            top[i][r] = LOWEST_FINITE;  // of a row that has seen no key: powers are 0
            total[i][r] = 0.0;
        }
    uint stage = 0;
    if (begin < end) {
        put_keys(KEYS_AT);
        barrier();
        fetch_keys(k, k0, args.k_row, begin + int(BLOCK_K), end);
        multiply_keys(0);
    }
    for (int key = begin; key < end; key += int(BLOCK_K)) {
        put_keys(STAGE - stage + KEYS_AT);  // all have passed the barrier after the block before, and so have read these lines
        put_values(stage + VALUES_AT);
        barrier();
        fetch_keys(k, k0, args.k_row, key + 2 * int(BLOCK_K), end);
        fetch_values(v, v0, args.v_row, key + int(BLOCK_K), end);
        add_block(stage, key, all_seen(key));
        stage = STAGE - stage;
    }
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++) {
        float factors[2] = float[2](factor_of(row_sum(total[i][0])), factor_of(row_sum(total[i][1])));
        scale_rows(i, factors);
    }
}

// ---- through memory: a lane reads and writes elements of one row of a matrix in its subgroup's slice

const uint SHARES = SUBGROUP_LANES / MAT_M;  // lanes per row
const uint OWN_UNITS = MAT_N / SHARES / 4;

uint lane_row() { return gl_SubgroupInvocationID % MAT_M; }
uint lane_share() { return gl_SubgroupInvocationID / MAT_M; }
uint slice() { return STAGE + gl_SubgroupID * SLICE; }
uint own_unit(uint u) { return slice() + lane_row() * (MAT_N / 4) + lane_share() * OWN_UNITS + u; }

// A matrix of a value per row, which the row's lanes give.
SUMS across_rows(float value) {
    if (lane_share() == 0) tile[slice() + lane_row() / 4][lane_row() % 4] = floatBitsToUint(value);
    SUBGROUP_BARRIER();
    SUMS all;
    coopMatLoad(all, tile, slice(), 0, gl_CooperativeMatrixLayoutColumnMajor);
    SUBGROUP_BARRIER();
    return all;
}

void store_sums(SUMS sums) {
    coopMatStore(sums, tile, slice(), MAT_N / 4, gl_CooperativeMatrixLayoutRowMajor);
    SUBGROUP_BARRIER();
}

// The lane's row's maximum; the scores become exponents.
float set_exponents(uint i, uint key, bool whole) {
    float best = LOWEST;
    [[unroll]] for (uint j = 0; j < KEY_COLUMNS; j++) {
        store_sums(scores[i * KEY_COLUMNS + j]);
        [[unroll]] for (uint u = 0; u < OWN_UNITS; u++) {
            vec4 own = uintBitsToFloat(tile[own_unit(u)]);
            [[unroll]] for (uint c = 0; c < 4; c++) {
                uint place = (lane_share() * OWN_UNITS + u) * 4 + c;
                own[c] = exponent_of(own[c], matrix_row(i) + lane_row(), key + j * MAT_N + place, whole);
                best = max(best, own[c]);
            }
            tile[own_unit(u)] = floatBitsToUint(own);
        }
        SUBGROUP_BARRIER();
        coopMatLoad(scores[i * KEY_COLUMNS + j], tile, slice(), MAT_N / 4, gl_CooperativeMatrixLayoutRowMajor);
        SUBGROUP_BARRIER();
    }
    for (uint mask = MAT_M; mask < SUBGROUP_LANES; mask *= 2) best = max(best, subgroupShuffleXor(best, mask));
    return best;
}

void attend_through_memory() {
    float lane_top[ROW_MATRICES];
    SUMS sums[ROW_MATRICES];
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++) {
        lane_top[i] = LOWEST_FINITE;
        sums[i] = SUMS(0.0);
    }
    for (int key = begin; key < end; key += int(BLOCK_K)) {
        put_keys(KEYS_AT);
        put_values(VALUES_AT);
        barrier();
        fetch_keys(k, k0, args.k_row, key + int(BLOCK_K), end);
        fetch_values(v, v0, args.v_row, key + int(BLOCK_K), end);
        multiply_keys(0);
        take_scores();
        [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++) {
            float best = max(set_exponents(i, key, all_seen(key)), lane_top[i]);
            SUMS tops = across_rows(best), factors = across_rows(exp2(lane_top[i] - best));
            lane_top[i] = best;
            sums[i] = sums[i] * factors;
            [[unroll]] for (uint j = 0; j < VALUE_COLUMNS; j++)
                results[i * VALUE_COLUMNS + j] = results[i * VALUE_COLUMNS + j] * factors;
            [[unroll]] for (uint j = 0; j < KEY_COLUMNS; j++) {
                for (uint e = 0; e < tops.length(); e++) {
                    float power = exp2(scores[i * KEY_COLUMNS + j][e] - tops[e]);
                    sums[i][e] += power;
                    scores[i * KEY_COLUMNS + j][e] = power;
                }
            }
        }
        [[unroll]] for (uint s = 0; s < KEY_COLUMNS; s++) {
            [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++) {
                coopMatStore(HALVES(scores[i * KEY_COLUMNS + s]), tile, slice(), MAT_N / UNIT, gl_CooperativeMatrixLayoutRowMajor);
                SUBGROUP_BARRIER();
                coopMatLoad(powers[i], tile, slice(), MAT_N / UNIT, gl_CooperativeMatrixLayoutRowMajor);
                SUBGROUP_BARRIER();
            }
            multiply_values(0, s);
        }
        barrier();  // all have read the block
    }
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++) {
        store_sums(sums[i]);
        float sum = 0.0;
        [[unroll]] for (uint u = 0; u < OWN_UNITS; u++) sum += dot(uintBitsToFloat(tile[own_unit(u)]), vec4(1.0));
        for (uint mask = MAT_M; mask < SUBGROUP_LANES; mask *= 2) sum += subgroupShuffleXor(sum, mask);
        SUBGROUP_BARRIER();
        SUMS factors = across_rows(factor_of(sum));
        [[unroll]] for (uint j = 0; j < VALUE_COLUMNS; j++)
            results[i * VALUE_COLUMNS + j] = results[i * VALUE_COLUMNS + j] * factors;
    }
}

void store_results() {
    barrier();  // all have read the last block
    [[unroll]] for (uint i = 0; i < ROW_MATRICES; i++)
        [[unroll]] for (uint j = 0; j < VALUE_COLUMNS; j++)
            coopMatStore(HALVES(results[i * VALUE_COLUMNS + j]), tile, matrix_row(i) * V_PITCH + j * MAT_N / UNIT, V_PITCH, gl_CooperativeMatrixLayoutRowMajor);
    SUBGROUP_BARRIER();
    for (uint e = gl_SubgroupInvocationID; e < SUB_ROWS * (WIDTH / UNIT); e += SUBGROUP_LANES) {
        uint row = matrix_row(0) + e / (WIDTH / UNIT), unit = e % (WIDTH / UNIT);
        store_result(row, unit * UNIT, tile[row * V_PITCH + unit]);
    }
}

void main() {
    find_block();
    [[unroll]] for (uint i = 0; i < ROW_MATRICES * VALUE_COLUMNS; i++) results[i] = SUMS(0.0);
    if (begin < end) {
        fetch_queries(q, q0, args.q_row, query0, args.queries);
        fetch_keys(k, k0, args.k_row, begin, end);
        fetch_values(v, v0, args.v_row, begin, end);
    }
    bool in_order = expected_order();
    if (begin < end) put_queries(0);
    barrier();
    take_queries();
    barrier();  // keys replace the queries in shared memory
    if (in_order) attend_in_registers();
    else attend_through_memory();
    store_results();
}
