// A workgroup computes a TILE_M x TILE_N tile of a matrix product, with cooperative matrices (GL_KHR_cooperative_matrix): of float16
// with float32 sums, or (CODES) of int8 with int32 sums. A subgroup computes SUB_M x SUB_N of its results. A stage is TILE_K steps of
// k. Both operands of a stage are loaded into registers, in units of 16 bytes, then stored to shared memory in PARTS. The next
// PREFETCH stages are loaded while this one is multiplied.
//
// A kernel defines before it includes this:
//   uvec4 load_a(uint row, uint k, uint i)   a unit along k of the workgroup's row (zero past the end of k); the
//                                        lane's i-th of a stage, whose row (k_line_of(i)) is the same in every stage
//   uvec4 load_b(uint column, uint k)    a unit along k (B_ALONG_K, needed for CODES) or along columns, likewise
//   void begin_stage(uint k)             called by all lanes before a stage's calls of load_a. Where b is staged by rows,
//                                        load_b may be called earlier and must not depend on it
//   void store_eight(uint row, uint column, SUM4 low, SUM4 high)   stores eight sums along a row, of which some may lie past
//                                        the edge; define STORES_IN_A_LOOP where the function is long
// and the workgroup has TILE_M / SUB_M * TILE_N / SUB_N full subgroups of SUBGROUP_LANES.
#ifndef VKEP_COOPERATIVE_TILE_GLSL
#define VKEP_COOPERATIVE_TILE_GLSL
// Converts what load_b returned to halves. A kernel may define it, to decode values after their load has completed.
#ifndef B_STAGED
#define B_STAGED(unit) (unit)
#endif

// Pitches in units. A spare unit per row puts neighbouring rows into different banks.
const uint A_PITCH = PART_K / UNIT + 1;
const uint B_PITCH = (B_ALONG_K == 1 ? PART_K : TILE_N) / UNIT + 1;
const uint A_UNITS = TILE_M * A_PITCH;
const uint B_UNITS = (B_ALONG_K == 1 ? TILE_N : PART_K) * B_PITCH;
const uint TILE_UNITS = A_UNITS + B_UNITS;
// Sums are written to y through the same memory: each subgroup stores MAT_M rows of OUT_N sums at a time. Two spare units per
// row put the four rows that half a subgroup stores to into different banks.
const uint OUT_N = SUB_N % 32 + 32 % MAT_N == 0 ? 32 : SUB_N;  // + for &&, with which glslang makes it no constant
const uint OUT_PITCH = OUT_N / 4 + 2;
const uint OUT_UNITS = MAT_M * OUT_PITCH;
const uint ALL_OUT_UNITS = OUT_UNITS * (LANES / SUBGROUP_LANES);
const uint SHARED_UNITS = TILE_UNITS > ALL_OUT_UNITS ? TILE_UNITS : ALL_OUT_UNITS;

// Matrices begin at elements of the tile, so these are half units where a matrix is half a unit long.
#ifdef HALF_UNITS
#define OF_UNIT 2
shared uvec2 tile[2 * SHARED_UNITS];
void store_unit(uint at, uvec4 unit) { tile[2 * at] = unit.xy; tile[2 * at + 1] = unit.zw; }
uvec4 unit_at(uint at) { return uvec4(tile[2 * at], tile[2 * at + 1]); }
#else
#define OF_UNIT 1
shared uvec4 tile[SHARED_UNITS];
void store_unit(uint at, uvec4 unit) { tile[at] = unit; }
uvec4 unit_at(uint at) { return tile[at]; }
#endif
uvec4 next_a[PREFETCH * A_LOADS], next_b[PREFETCH * B_LOADS];

#define ROWS_OF_MATRICES (SUB_M / MAT_M)
#define COLUMNS_OF_MATRICES (SUB_N / MAT_N)
coopmat<SUM, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> acc[ROWS_OF_MATRICES * COLUMNS_OF_MATRICES];

uvec4 load_b_unit(uint k, uint i) {
    return B_ALONG_K == 1 ? load_b(b_line_of(i), k + UNIT * b_unit_of(i)) : load_b(UNIT * b_unit_of(i), k + b_line_of(i));
}

void load_stage(uint k, uint slot) {
    begin_stage(k);
    [[unroll]] for (uint i = 0; i < A_LOADS; i++) next_a[slot * A_LOADS + i] = load_a(k_line_of(i), k + UNIT * k_unit_of(i), i);
    [[unroll]] for (uint i = 0; i < B_LOADS; i++) next_b[slot * B_LOADS + i] = load_b_unit(k, i);
}

void store_stage(uint slot) {
    [[unroll]] for (uint i = 0; i < A_LOADS; i++) store_unit(k_line_of(i) * A_PITCH + k_unit_of(i), next_a[slot * A_LOADS + i]);
    [[unroll]] for (uint i = 0; i < B_LOADS; i++)
        store_unit(A_UNITS + b_line_of(i) * B_PITCH + b_unit_of(i), B_STAGED(next_b[slot * B_LOADS + i]));
}

// PARTS 2. Registers are freed in this order: those of b's first half of k (by rows), then all others.
void load_b_first(uint k) {
    if (B_ALONG_K == 0) [[unroll]] for (uint i = 0; i < B_LOADS / 2; i++) next_b[i] = load_b_unit(k, i);
}

void load_others(uint k) {
    begin_stage(k);
    [[unroll]] for (uint i = 0; i < A_LOADS; i++) next_a[i] = load_a(k_line_of(i), k + UNIT * k_unit_of(i), i);
    if (B_ALONG_K == 1) {
        [[unroll]] for (uint i = 0; i < B_LOADS; i++) next_b[i] = load_b_unit(k, i);
    } else {
        [[unroll]] for (uint i = 0; i < B_LOADS / 2; i++) next_b[B_LOADS / 2 + i] = load_b_unit(k, B_LOADS / 2 + i);
    }
}

void store_part(uint part) {
    uint lane = gl_LocalInvocationIndex, second = lane / 4 % 2 ^ part;  // which load of each pair is of this half of k
    uint line = lane / 32 * 8 + lane / 8 % 4 + 4 * second, unit = lane % 4;
    [[unroll]] for (uint i = 0; i < A_LOADS / 2; i++)
        store_unit((line + i * (LANES / 4)) * A_PITCH + unit, second == 1 ? next_a[2 * i + 1] : next_a[2 * i]);
    if (B_ALONG_K == 1) {
        [[unroll]] for (uint i = 0; i < B_LOADS / 2; i++)
            store_unit(A_UNITS + (line + i * (LANES / 4)) * B_PITCH + unit, B_STAGED(second == 1 ? next_b[2 * i + 1] : next_b[2 * i]));
    } else {
        [[unroll]] for (uint i = 0; i < B_LOADS / 2; i++)
            store_unit(A_UNITS + b_line_of(i) * B_PITCH + b_unit_of(i), B_STAGED(next_b[part * (B_LOADS / 2) + i]));
    }
}

uint element_of(uint line_units, uint k) { return OF_UNIT * line_units + OF_UNIT * k / UNIT; }

void multiply_part(uint row, uint column) {
    [[unroll]] for (uint k = 0; k < PART_K; k += MAT_K) {
        coopmat<T, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> a[ROWS_OF_MATRICES];
        [[unroll]] for (uint i = 0; i < ROWS_OF_MATRICES; i++)
            coopMatLoad(a[i], tile, element_of((row + i * MAT_M) * A_PITCH, k), OF_UNIT * A_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint j = 0; j < COLUMNS_OF_MATRICES; j++) {
            coopmat<T, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> b;
            uint at = column + j * MAT_N;
            if (B_ALONG_K == 1)
                coopMatLoad(b, tile, element_of(A_UNITS + at * B_PITCH, k), OF_UNIT * B_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            else
                coopMatLoad(b, tile, element_of(A_UNITS + k * B_PITCH, at), OF_UNIT * B_PITCH, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint i = 0; i < ROWS_OF_MATRICES; i++)
                acc[i * COLUMNS_OF_MATRICES + j] = coopMatMulAdd(a[i], b, acc[i * COLUMNS_OF_MATRICES + j]);
        }
    }
}

void multiply_stages(uint begin, uint end, uint row, uint column) {
    [[unroll]] for (uint slot = 0; slot < PREFETCH; slot++)
        if (slot == 0 || begin + slot * TILE_K < end) load_stage(begin + slot * TILE_K, slot);
    store_stage(0);
    barrier();
    for (uint k0 = begin; k0 < end; k0 += PREFETCH * TILE_K) {
        [[unroll]] for (uint slot = 0; slot < PREFETCH; slot++) {  // the slot of the stage at k
            uint k = k0 + slot * TILE_K;
            if (slot == 0 || k < end) {
                if (k + PREFETCH * TILE_K < end) load_stage(k + PREFETCH * TILE_K, slot);
                multiply_part(row, column);
                barrier();
                if (k + TILE_K < end) store_stage((slot + 1) % PREFETCH);
                barrier();
            }
        }
    }
}

// Written twice, with constants: a loop over the halves was not unrolled, its registers were spilled, and the speed halved.
void multiply_halves(uint begin, uint end, uint row, uint column) {
    load_others(begin);
    load_b_first(begin);
    store_part(0);
    barrier();
    for (uint k = begin; k < end; k += TILE_K) {
        bool more = k + TILE_K < end;
        if (more) load_b_first(k + TILE_K);
        multiply_part(row, column);
        barrier();
        store_part(1);
        barrier();
        if (more) load_others(k + TILE_K);
        multiply_part(row, column);
        barrier();
        if (more) {
            store_part(0);
            barrier();
        }
    }
}

// The tile's product over k in [begin, end); results go to store_eight.
void multiply_tile(uint begin, uint end) {
    uint row = gl_SubgroupID / SUBGROUPS_N * SUB_M, column = gl_SubgroupID % SUBGROUPS_N * SUB_N;
    [[unroll]] for (uint i = 0; i < ROWS_OF_MATRICES * COLUMNS_OF_MATRICES; i++)
        acc[i] = coopmat<SUM, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>(SUM(0));
    if (PARTS == 2) multiply_halves(begin, end, row, column);
    else multiply_stages(begin, end, row, column);
    uint out0 = gl_SubgroupID * OUT_UNITS;
    const uint items = MAT_M * OUT_N / 8;
    [[unroll]] for (uint i = 0; i < ROWS_OF_MATRICES; i++) {
        [[unroll]] for (uint block = 0; block < SUB_N / OUT_N; block++) {
            [[unroll]] for (uint j = 0; j < OUT_N / MAT_N; j++)
                coopMatStore(acc[i * COLUMNS_OF_MATRICES + block * (OUT_N / MAT_N) + j], tile, OF_UNIT * (out0 + j * MAT_N / 4), OF_UNIT * OUT_PITCH, gl_CooperativeMatrixLayoutRowMajor);
            subgroupMemoryBarrierShared();
            subgroupBarrier();
#ifndef STORES_IN_A_LOOP
            [[unroll]]
#endif
            for (uint turn = 0; turn < (items + SUBGROUP_LANES - 1) / SUBGROUP_LANES; turn++) {
                uint e = turn * SUBGROUP_LANES + gl_SubgroupInvocationID;
                if (items % SUBGROUP_LANES == 0 || e < items) {
                    uint r = e / (OUT_N / 8), c = e % (OUT_N / 8), at = out0 + r * OUT_PITCH + 2 * c;
                    uint odd = e / 4 % 2;  // alternate groups of four lanes read their second half first, to use all banks
                    SUM4 one = SUMS_OF(unit_at(at + odd)), other = SUMS_OF(unit_at(at + (odd ^ 1)));
                    store_eight(row + i * MAT_M + r, column + block * OUT_N + 8 * c, odd == 1 ? other : one, odd == 1 ? one : other);
                }
            }
            subgroupMemoryBarrierShared();
            subgroupBarrier();
        }
    }
}
#endif
