// A workgroup computes a TILE_M x TILE_N tile of a matrix product, staged TILE_K steps of k at a time through shared memory;
// each lane keeps MICRO_M x MICRO_N results in registers. The next stage is loaded while this one is multiplied.
//
// A kernel defines load_a(row, k) and load_b(column, k) in the workgroup's tile (zero outside the operand), load_a_wide and
// load_b_wide for four elements at a time (A_WIDE, B_WIDE: along k, or along the rows or columns where A_ALONG_K or B_ALONG_K
// is 0) and begin_stage(k), before it includes this; the workgroup has (TILE_M / MICRO_M) * (TILE_N / MICRO_N) lanes.
#ifndef VKEP_SHARED_TILE_GLSL
#define VKEP_SHARED_TILE_GLSL
layout(constant_id = 4) const uint TILE_M = 64;
layout(constant_id = 5) const uint TILE_N = 64;
layout(constant_id = 6) const uint TILE_K = 16;
layout(constant_id = 7) const uint MICRO_M = 4;
layout(constant_id = 8) const uint MICRO_N = 4;
layout(constant_id = 9) const uint A_ALONG_K = 1;  // 1: neighbouring lanes load a along k, 0: along its rows
layout(constant_id = 10) const uint B_ALONG_K = 0;

layout(constant_id = 12) const uint A_WIDE = 0;
layout(constant_id = 13) const uint B_WIDE = 0;

const uint LANES = (TILE_M / MICRO_M) * (TILE_N / MICRO_N);
const uint A_LOADS = TILE_M * TILE_K / LANES;
const uint B_LOADS = TILE_N * TILE_K / LANES;
// Four spare elements per row put stores along k into different banks and keep rows 16-byte aligned.
const uint A_PITCH = TILE_M + 4;
const uint B_PITCH = TILE_N + 4;
// A lane's rows lie in runs of up to 4, so that one wide load fetches a run.
const uint RUN_M = MICRO_M < 4 ? MICRO_M : 4;
const uint RUN_N = MICRO_N < 4 ? MICRO_N : 4;

shared vec4 tile_a[TILE_K * A_PITCH / 4];
shared vec4 tile_b[TILE_K * B_PITCH / 4];
float next_a[A_LOADS], next_b[B_LOADS];
float acc[MICRO_M * MICRO_N];

uint a_row_of(uint e) { return A_ALONG_K == 1 ? e / TILE_K : e % TILE_M; }
uint a_k_of(uint e) { return A_ALONG_K == 1 ? e % TILE_K : e / TILE_M; }
uint b_column_of(uint e) { return B_ALONG_K == 1 ? e / TILE_K : e % TILE_N; }
uint b_k_of(uint e) { return B_ALONG_K == 1 ? e % TILE_K : e / TILE_N; }

// A lane's position among the tile's lanes. 32 neighbours form a block of 4 by 8, which reads fewer different elements than a
// line of 32 does. The bits of row and column alternate: lanes that differ in bit 0 share a row, those that differ in bit 1 a
// column. Hardware that merges the wide loads of such lanes then reads shared memory half as often.
const uint LANE_ROWS = TILE_M / MICRO_M, LANE_COLUMNS = TILE_N / MICRO_N;
const uint LEFT_OVER = LANE_ROWS % 4 + LANE_COLUMNS % 8;  // lanes that do not fill blocks
uint lane_row() {
    uint id = gl_LocalInvocationIndex;
    return LEFT_OVER == 0 ? id / (4 * LANE_COLUMNS) * 4 + (id >> 1 & 1 | id >> 2 & 2) : id / LANE_COLUMNS;
}
uint lane_column() {
    uint id = gl_LocalInvocationIndex;
    return LEFT_OVER == 0 ? id % (4 * LANE_COLUMNS) / 32 * 8 + (id & 1 | id >> 1 & 2 | id >> 2 & 4) : id % LANE_COLUMNS;
}

// Position in the tile of this lane's row or column i.
uint micro_row(uint i) { return i / RUN_M * (LANE_ROWS * RUN_M) + lane_row() * RUN_M + i % RUN_M; }
uint micro_column(uint j) { return j / RUN_N * (LANE_COLUMNS * RUN_N) + lane_column() * RUN_N + j % RUN_N; }

void load_stage(uint k) {
    begin_stage(k);
    if (A_WIDE == 1) {
        [[unroll]] for (uint i = 0; i < A_LOADS / 4; i++) {
            uint e = 4 * (gl_LocalInvocationIndex + i * LANES);
            vec4 v = load_a_wide(a_row_of(e), k + a_k_of(e));
            [[unroll]] for (uint c = 0; c < 4; c++) next_a[4 * i + c] = v[c];
        }
    } else {
        [[unroll]] for (uint i = 0; i < A_LOADS; i++) {
            uint e = gl_LocalInvocationIndex + i * LANES;
            next_a[i] = load_a(a_row_of(e), k + a_k_of(e));
        }
    }
    if (B_WIDE == 1) {
        [[unroll]] for (uint i = 0; i < B_LOADS / 4; i++) {
            uint e = 4 * (gl_LocalInvocationIndex + i * LANES);
            vec4 v = load_b_wide(b_column_of(e), k + b_k_of(e));
            [[unroll]] for (uint c = 0; c < 4; c++) next_b[4 * i + c] = v[c];
        }
    } else {
        [[unroll]] for (uint i = 0; i < B_LOADS; i++) {
            uint e = gl_LocalInvocationIndex + i * LANES;
            next_b[i] = load_b(b_column_of(e), k + b_k_of(e));
        }
    }
}

void store_stage() {
    [[unroll]] for (uint i = 0; i < A_LOADS; i++) {
        uint e = A_WIDE == 1 ? 4 * (gl_LocalInvocationIndex + i / 4 * LANES) : gl_LocalInvocationIndex + i * LANES;
        uint at = a_k_of(e) * A_PITCH + a_row_of(e);
        if (A_WIDE == 0 || A_ALONG_K == 1) {
            if (A_WIDE == 1) at += i % 4 * A_PITCH;
            tile_a[at / 4][at % 4] = next_a[i];
        } else if (i % 4 == 0) {
            tile_a[at / 4] = vec4(next_a[i], next_a[i + 1], next_a[i + 2], next_a[i + 3]);
        }
    }
    [[unroll]] for (uint i = 0; i < B_LOADS; i++) {
        uint e = B_WIDE == 1 ? 4 * (gl_LocalInvocationIndex + i / 4 * LANES) : gl_LocalInvocationIndex + i * LANES;
        uint at = b_k_of(e) * B_PITCH + b_column_of(e);
        if (B_WIDE == 0 || B_ALONG_K == 1) {
            if (B_WIDE == 1) at += i % 4 * B_PITCH;
            tile_b[at / 4][at % 4] = next_b[i];
        } else if (i % 4 == 0) {
            tile_b[at / 4] = vec4(next_b[i], next_b[i + 1], next_b[i + 2], next_b[i + 3]);
        }
    }
}

// acc = the tile's product over k in [begin, end).
void multiply_tile(uint begin, uint end) {
    [[unroll]] for (uint i = 0; i < MICRO_M * MICRO_N; i++) acc[i] = 0.0;
    load_stage(begin);
    for (uint k = begin; k < end; k += TILE_K) {
        store_stage();
        barrier();
        if (k + TILE_K < end) load_stage(k + TILE_K);
        [[unroll]] for (uint s = 0; s < TILE_K; s++) {
            float a[MICRO_M], b[MICRO_N];
            [[unroll]] for (uint i = 0; i < MICRO_M; i += RUN_M) {
                uint at = s * A_PITCH + micro_row(i);
                if (RUN_M == 4) {
                    vec4 run = tile_a[at / 4];
                    [[unroll]] for (uint c = 0; c < 4; c++) a[i + c] = run[c];
                } else {
                    [[unroll]] for (uint c = 0; c < RUN_M; c++) a[i + c] = tile_a[at / 4][at % 4 + c];
                }
            }
            [[unroll]] for (uint j = 0; j < MICRO_N; j += RUN_N) {
                uint at = s * B_PITCH + micro_column(j);
                if (RUN_N == 4) {
                    vec4 run = tile_b[at / 4];
                    [[unroll]] for (uint c = 0; c < 4; c++) b[j + c] = run[c];
                } else {
                    [[unroll]] for (uint c = 0; c < RUN_N; c++) b[j + c] = tile_b[at / 4][at % 4 + c];
                }
            }
            [[unroll]] for (uint j = 0; j < MICRO_N; j++)
                [[unroll]] for (uint i = 0; i < MICRO_M; i++) acc[i * MICRO_N + j] = fma(a[i], b[j], acc[i * MICRO_N + j]);
        }
        barrier();
    }
}
#endif
