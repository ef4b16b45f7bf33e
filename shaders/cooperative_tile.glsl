// A TILE_M x TILE_N tile of a float16 matrix product a workgroup, with cooperative matrices (GL_KHR_cooperative_matrix) and
// float32 sums. Both operands are staged TILE_K steps of k at a time through shared memory; a subgroup computes SUB_M x SUB_N
// results. The next PREFETCH stages are loaded into registers while this one is multiplied.
//
// A kernel defines before it includes this:
//   uvec4 load_a(uint row, uint k, uint i)   eight halves along k of the workgroup's row (zero past the end of k); the
//                                        lane's i-th of a stage, whose row is the same in every stage
//   uvec4 load_b(uint column, uint k)    eight halves along k (B_ALONG_K) or along columns, likewise
//   void begin_stage(uint k)             called by all lanes before the loads of a stage
//   void store_eight(uint row, uint column, vec4 low, vec4 high)   takes eight results along a row, some past the edge
// and the workgroup has TILE_M / SUB_M * TILE_N / SUB_N full subgroups of SUBGROUP_LANES.
#ifndef VKEP_COOPERATIVE_TILE_GLSL
#define VKEP_COOPERATIVE_TILE_GLSL

// In units of eight halves. One unit more than the data keeps neighbouring rows in different banks.
const uint A_PITCH = TILE_K / 8 + 1;
const uint B_PITCH = (B_ALONG_K == 1 ? TILE_K : TILE_N) / 8 + 1;
const uint A_UNITS = TILE_M * A_PITCH;
const uint B_UNITS = (B_ALONG_K == 1 ? TILE_N : TILE_K) * B_PITCH;
const uint STAGE_UNITS = A_UNITS + B_UNITS;
// Sums leave through the same memory, MAT_M rows of SUB_N floats a subgroup at a time.
const uint OUT_PITCH = SUB_N / 4 + 1;
const uint OUT_UNITS = MAT_M * OUT_PITCH;
const uint TILE_UNITS = STAGE_UNITS * STAGES;
const uint ALL_OUT_UNITS = OUT_UNITS * (LANES / SUBGROUP_LANES);
const uint SHARED_UNITS = TILE_UNITS > ALL_OUT_UNITS ? TILE_UNITS : ALL_OUT_UNITS;

shared uvec4 tile[SHARED_UNITS];
uvec4 next_a[PREFETCH * A_LOADS], next_b[PREFETCH * B_LOADS];

#define ROWS_OF_MATRICES (SUB_M / MAT_M)
#define COLUMNS_OF_MATRICES (SUB_N / MAT_N)
coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> acc[ROWS_OF_MATRICES * COLUMNS_OF_MATRICES];

void load_stage(uint k, uint slot) {
    begin_stage(k);
    [[unroll]] for (uint i = 0; i < A_LOADS; i++) {
        uint e = gl_LocalInvocationIndex + i * LANES;
        next_a[slot * A_LOADS + i] = load_a(a_row_of(e), k + 8 * a_k_of(e), i);
    }
    [[unroll]] for (uint i = 0; i < B_LOADS; i++) {
        uint e = gl_LocalInvocationIndex + i * LANES;
        next_b[slot * B_LOADS + i] =
            B_ALONG_K == 1 ? load_b(b_line_of(e), k + 8 * b_unit_of(e)) : load_b(8 * b_unit_of(e), k + b_line_of(e));
    }
}

void store_stage(uint stage, uint slot) {
    [[unroll]] for (uint i = 0; i < A_LOADS; i++) {
        uint e = gl_LocalInvocationIndex + i * LANES;
        tile[stage * STAGE_UNITS + a_row_of(e) * A_PITCH + a_k_of(e)] = next_a[slot * A_LOADS + i];
    }
    [[unroll]] for (uint i = 0; i < B_LOADS; i++) {
        uint e = gl_LocalInvocationIndex + i * LANES;
        tile[stage * STAGE_UNITS + A_UNITS + b_line_of(e) * B_PITCH + b_unit_of(e)] = next_b[slot * B_LOADS + i];
    }
}

void multiply_stage(uint stage, uint row, uint column) {
    uint a0 = stage * STAGE_UNITS + row * A_PITCH, b0 = stage * STAGE_UNITS + A_UNITS;
    [[unroll]] for (uint k = 0; k < TILE_K; k += MAT_K) {
        coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> a[ROWS_OF_MATRICES];
        [[unroll]] for (uint i = 0; i < ROWS_OF_MATRICES; i++)
            coopMatLoad(a[i], tile, a0 + i * MAT_M * A_PITCH + k / 8, A_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint j = 0; j < COLUMNS_OF_MATRICES; j++) {
            coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> b;
            uint at = column + j * MAT_N;
            if (B_ALONG_K == 1) coopMatLoad(b, tile, b0 + at * B_PITCH + k / 8, B_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            else coopMatLoad(b, tile, b0 + k * B_PITCH + at / 8, B_PITCH, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint i = 0; i < ROWS_OF_MATRICES; i++)
                acc[i * COLUMNS_OF_MATRICES + j] = coopMatMulAdd(a[i], b, acc[i * COLUMNS_OF_MATRICES + j]);
        }
    }
}

// The tile's product over k in [begin, end); results go to store_eight.
void multiply_tile(uint begin, uint end) {
    uint row = gl_SubgroupID / SUBGROUPS_N * SUB_M, column = gl_SubgroupID % SUBGROUPS_N * SUB_N;
    [[unroll]] for (uint i = 0; i < ROWS_OF_MATRICES * COLUMNS_OF_MATRICES; i++)
        acc[i] = coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>(0.0);
    [[unroll]] for (uint slot = 0; slot < PREFETCH; slot++)
        if (slot == 0 || begin + slot * TILE_K < end) load_stage(begin + slot * TILE_K, slot);
    store_stage(0, 0);
    barrier();
    uint stage = 0;
    for (uint k0 = begin; k0 < end; k0 += PREFETCH * TILE_K) {
        [[unroll]] for (uint slot = 0; slot < PREFETCH; slot++) {  // the slot that the stage at k came from
            uint k = k0 + slot * TILE_K;
            if (slot == 0 || k < end) {
                if (k + PREFETCH * TILE_K < end) load_stage(k + PREFETCH * TILE_K, slot);
                multiply_stage(stage, row, column);
                if (STAGES == 2) {
                    stage ^= 1;
                } else {
                    barrier();
                }
                if (k + TILE_K < end) store_stage(stage, (slot + 1) % PREFETCH);
                barrier();
            }
        }
    }
    uint out0 = gl_SubgroupID * OUT_UNITS;
    [[unroll]] for (uint i = 0; i < ROWS_OF_MATRICES; i++) {
        [[unroll]] for (uint j = 0; j < COLUMNS_OF_MATRICES; j++)
            coopMatStore(acc[i * COLUMNS_OF_MATRICES + j], tile, out0 + j * MAT_N / 4, OUT_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        for (uint e = gl_SubgroupInvocationID; e < MAT_M * SUB_N / 8; e += SUBGROUP_LANES) {
            uint r = e / (SUB_N / 8), c = e % (SUB_N / 8);
            uint at = out0 + r * OUT_PITCH + 2 * c;
            store_eight(row + i * MAT_M + r, column + 8 * c, uintBitsToFloat(tile[at]), uintBitsToFloat(tile[at + 1]));
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    }
}
#endif
