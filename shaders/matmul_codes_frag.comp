// y (m by n) = a (m by k) @ W for 2 to 32 rows and a W of codes of 2, 4 or 8 bits in blocks that have a scale each (com.microsoft
// MatMulNBits), float16 with float32 sums, on cooperative matrices that are filled from registers.
//
// With so few rows each weight is used once, so passing it through shared memory would be the bottleneck. The order of the
// steps of k does not matter as long as a has the same order. So a stage is four units of 32 weights. Lane 4 * g + t takes unit
// t of every (lanes / 4)-th column from g on. Of each 8 steps, steps 2 * t and 2 * t + 1 are a pair of its codes that are half
// a word apart and are extracted together. In the order of elements that drivers are known to use, these are the elements of a
// matrix that the lane holds. The kernel loads a matrix of indices to test for that order. In another order the same pairs pass
// through shared memory, where each subgroup has its own part.
//
// A subgroup computes ROW_TILES by COLUMN_TILES matrices. K_GROUPS subgroups of a workgroup share the stages, and their sums
// are added through shared memory. PAIRED: products by two W of n columns each. Half of a subgroup's COLUMN_TILES belong to
// each W, and the epilogue computes one y from both products.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "vkep.glsl"
#ifdef PAIRED
#define PAIR_OPERANDS uvec2 b2; uvec2 scales2; uvec2 zeros2;
#else
#define PAIR_OPERANDS
#endif
#define ARGS_BODY { uvec2 a; uvec2 b; uvec2 scales; uvec2 zeros; WRITTEN y; PAIR_OPERANDS EXTRA_OPERANDS \
    uint m; uint n; uint k; uint units; uint blocks; uint zero_bytes; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 4) const uint BITS = 4;
layout(constant_id = 5) const uint ROW_TILES = 1;
layout(constant_id = 6) const uint COLUMN_TILES = 2;
layout(constant_id = 7) const uint K_GROUPS = 8;
layout(constant_id = 8) const uint N_GROUPS = 1;   // subgroups of a workgroup along columns
layout(constant_id = 9) const uint SLOTS = 2;      // stages of b in registers
layout(constant_id = 10) const uint BLOCK = 32;    // weights per scale, 32 or more
layout(constant_id = 11) const uint ZEROS = 0;     // 0: half of the codes' range, 1: packed codes, 2: values of T
layout(constant_id = 12) const uint A_VECTOR = 1;  // 1: a is loaded along k in aligned groups of eight, 2: and k is whole stages
layout(constant_id = 14) const uint MAT_M = 16;
layout(constant_id = 15) const uint MAT_N = 16;
layout(constant_id = 16) const uint MAT_K = 16;
layout(constant_id = 17) const uint SUBGROUP_LANES = 32;
layout(constant_id = 18) const uint A_SLOTS = 2;   // stages of a in registers: SLOTS, or 1

#define WORDS BITS  // words per unit of 32 weights
const uint CODES = 32 / BITS;
const uint HALF = CODES / 2;  // pairs per word
const uint LINES = SUBGROUP_LANES / 4;             // columns, or rows of a, that lanes load together
const uint UNITS = COLUMN_TILES * MAT_N / LINES;   // units per lane and stage
const uint ROWS = ROW_TILES * MAT_M / LINES;       // rows per lane
#ifdef PAIRED
const uint SIDES = 2;
#else
const uint SIDES = 1;
#endif
const uint OF_SIDE = COLUMN_TILES / SIDES * MAT_N;  // columns per subgroup, of each W
const uint PAIRS = MAT_K / 8;                      // pairs per lane and step
const uint COLUMNS = N_GROUPS * OF_SIDE;            // columns per workgroup
// Sizes in units of 16 bytes: columns and rows of MAT_K halves before they are loaded as matrices (the pitch is odd, which puts
// neighbours into different banks), and sums before they are added.
const uint PITCH = PAIRS + (PAIRS + 1) % 2;
const uint STAGED = (COLUMN_TILES * MAT_N + ROW_TILES * MAT_M) * PITCH;
const uint SUM_PITCH = COLUMN_TILES * MAT_N / 4 + 1;
const uint SUMS = MAT_M * SUM_PITCH;
const uint PART = STAGED > SUMS ? STAGED : SUMS;  // size per subgroup

TENSOR(T, Elements)
layout(buffer_reference, scalar) readonly buffer Halves { float16_t v[]; };
layout(buffer_reference, scalar) readonly buffer Bytes { uint8_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pairs { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 v[]; };

shared uvec4 memory[N_GROUPS * K_GROUPS * PART];

#define MATRIX_MEMORY memory
#include "matrix_order.glsl"

Halves a, scales[SIDES];
Quads a_quads, b_quads[SIDES];
Pairs b_pairs[SIDES];
Bytes zeros[SIDES];
uint row0, column0;
uint magic, unit;  // pairs of float16: 1024, and one over the factor of a code that is higher in its bits
uint words[SLOTS * UNITS * WORDS];
float16_t loaded_scale[SLOTS * UNITS], loaded_zero[SLOTS * UNITS];
uint rows[A_SLOTS * ROWS * 16];  // 32 elements of a

coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> acc[ROW_TILES * COLUMN_TILES];

float16_t zero_of(uint side, uint column, uint block) {
    if (ZEROS == 1) {
        uint bit = block * BITS;
        return float16_t(uint(zeros[side].v[column * args.zero_bytes + bit / 8]) >> bit % 8 & (1u << BITS) - 1);
    }
    return ZEROS == 2 ? Halves(uvec2(zeros[side])).v[column * args.blocks + block] : float16_t(1 << (BITS - 1));
}

void load_b(uint stage, uint slot) {
    uint at = min(stage * 4 + gl_SubgroupInvocationID % 4, args.units - 1);
    [[unroll]] for (uint u = 0; u < UNITS; u++) {
        uint side = u / (UNITS / SIDES), line = u % (UNITS / SIDES) * LINES + gl_SubgroupInvocationID / 4;
        uint column = min(column0 + line, args.n - 1), to = (slot * UNITS + u) * WORDS;
        uint first = column * (args.blocks * (BLOCK / 32)) + at;
        if (BITS == 2) {
            uvec2 two = b_pairs[side].v[first];
            words[to] = two.x;
            words[to + 1] = two.y;
        } else {
            [[unroll]] for (uint i = 0; i < WORDS / 4; i++) {
                uvec4 four = b_quads[side].v[first * (WORDS / 4) + i];
                [[unroll]] for (uint e = 0; e < 4; e++) words[to + i * 4 + e] = four[e];
            }
        }
        uint block = at * 32 / BLOCK;
        loaded_scale[slot * UNITS + u] = scales[side].v[column * args.blocks + block];
        loaded_zero[slot * UNITS + u] = zero_of(side, column, block);
    }
}

// Rows past the edge repeat the last one, and their results are not stored.
void load_a(uint stage, uint slot) {
    uint k = (stage * 4 + gl_SubgroupInvocationID % 4) * 32;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint at = min(row0 + r * LINES + gl_SubgroupInvocationID / 4, args.m - 1) * args.k + k, to = (slot * ROWS + r) * 16;
        [[unroll]] for (uint q = 0; q < 4; q++) {
            if (A_VECTOR != 0) {
                uvec4 eight = A_VECTOR == 2 || k + q * 8 < args.k ? a_quads.v[at / 8 + q] : uvec4(0);
                [[unroll]] for (uint e = 0; e < 4; e++) rows[to + q * 4 + e] = eight[e];
            } else {
                [[unroll]] for (uint e = 0; e < 4; e++) {
                    uint i = q * 8 + e * 2;
                    float low = k + i < args.k ? float(a.v[at + i]) : 0.0, high = k + i + 1 < args.k ? float(a.v[at + i + 1]) : 0.0;
                    rows[to + q * 4 + e] = packFloat2x16(f16vec2(low, high));
                }
            }
        }
    }
}

// The lowest bits of a float16 in [1024, 2048) are its integer part, so codes need no conversion instruction. An odd pair stays
// in its bits, one code higher, and so needs no shift. All steps before the product with the scale are exact.
// A driver makes constants of packed float16 again at each use, so two of them come from arguments.
f16vec2 weights_of(uint word, uint pair, float16_t scale, float16_t zero) {
    uint higher = BITS < 8 ? pair % 2 * BITS : 0, codes = word >> BITS * pair - higher & 0x00010001u * ((1u << BITS) - 1) << higher;
    float16_t least = float16_t(1024.0 / float(1u << higher));
    f16vec2 values = unpackFloat2x16(codes | magic), lowest = f16vec2(ZEROS == 2 ? -least : -least - zero);
    values = higher == 0 ? values + lowest : fma(values, unpackFloat2x16(unit), lowest);
    if (ZEROS == 2) values -= f16vec2(zero);
    return values * f16vec2(scale);
}

// The element of a's pair in the first half of a word, or with `odd` that in the second half.
float16_t row_element(uint slot, uint r, uint pair, uint odd) {
    uint i = pair / HALF * CODES + pair % HALF + odd * HALF;
    return unpackFloat2x16(rows[((A_SLOTS == 1 ? 0 : slot) * ROWS + r) * 16 + i / 2])[i % 2];
}

f16vec2 pair_of_weights(uint slot, uint unit, uint pair) {
    uint u = slot * UNITS + unit;
    return weights_of(words[u * WORDS + pair / HALF], pair % HALF, loaded_scale[u], loaded_zero[u]);
}

void multiply_in_order(uint slot) {
    [[unroll]] for (uint step = 0; step < 8; step++) {
        coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> left[ROW_TILES];
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
            [[unroll]] for (uint e = 0; e < 8; e++) {
                uint odd = e % 2, upper = e / 2 % 2, late = e / 4;
                left[r][odd + 2 * late + 4 * upper] = row_element(slot, 2 * r + upper, 2 * step + late, odd);
            }
        }
        [[unroll]] for (uint c = 0; c < COLUMN_TILES; c++) {
            coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> right;
            [[unroll]] for (uint e = 0; e < 4; e++) {
                uint upper = e / 2, late = e % 2;
                f16vec2 two = pair_of_weights(slot, 2 * c + upper, 2 * step + late);
                right[2 * late + 4 * upper] = two.x;
                right[1 + 2 * late + 4 * upper] = two.y;
            }
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++)
                acc[r * COLUMN_TILES + c] = coopMatMulAdd(left[r], right, acc[r * COLUMN_TILES + c]);
        }
    }
}

// All subgroups of a workgroup must call it equally often: in some drivers a subgroup's barrier is one of the workgroup.
void multiply_staged(uint slot, bool counts) {
    uint part = gl_SubgroupID * PART, a_part = part + COLUMN_TILES * MAT_N * PITCH;
    uint line = gl_SubgroupInvocationID / 4, word = gl_SubgroupInvocationID % 4;
    [[unroll]] for (uint step = 0; step < 16 / PAIRS; step++) {
        [[unroll]] for (uint late = 0; late < PAIRS; late++) {
            uint pair = step * PAIRS + late;
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                uint two = packFloat2x16(f16vec2(row_element(slot, r, pair, 0), row_element(slot, r, pair, 1)));
                memory[a_part + (r * LINES + line) * PITCH + late][word] = counts ? two : 0;
            }
            [[unroll]] for (uint u = 0; u < UNITS; u++)
                memory[part + (u * LINES + line) * PITCH + late][word] = counts ? packFloat2x16(pair_of_weights(slot, u, pair)) : 0;
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> left[ROW_TILES];
        [[unroll]] for (uint r = 0; r < ROW_TILES; r++)
            coopMatLoad(left[r], memory, a_part + r * MAT_M * PITCH, PITCH, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint c = 0; c < COLUMN_TILES; c++) {
            coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> right;
            coopMatLoad(right, memory, part + c * MAT_N * PITCH, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint r = 0; r < ROW_TILES; r++)
                acc[r * COLUMN_TILES + c] = coopMatMulAdd(left[r], right, acc[r * COLUMN_TILES + c]);
        }
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    }
}

void multiply_stages(uint begin, bool in_order) {
    uint stages = (args.units + 3) / 4;
    [[unroll]] for (uint slot = 0; slot < SLOTS; slot++) {
        uint stage = begin + slot * K_GROUPS;
        if (stage < stages) {
            load_b(stage, slot);
            if (A_SLOTS > 1) load_a(stage, slot);
        }
    }
    for (uint at = 0; at < stages; at += SLOTS * K_GROUPS) {
        [[unroll]] for (uint slot = 0; slot < SLOTS; slot++) {
            if (at + slot * K_GROUPS < stages) {
                uint stage = begin + at + slot * K_GROUPS, next = stage + SLOTS * K_GROUPS;
                if (A_SLOTS == 1 && stage < stages) load_a(stage, 0);
                if (!in_order) multiply_staged(slot, stage < stages);
                else if (stage < stages) multiply_in_order(slot);
                if (next < stages) {
                    load_b(next, slot);
                    if (A_SLOTS > 1) load_a(next, slot);
                }
            }
        }
    }
}

// The sums of the K_GROUPS subgroups' parts for four elements of a row.
vec4 sum_of_parts(uint from) {
    vec4 sum = vec4(0.0);
    [[unroll]] for (uint part = 0; part < K_GROUPS; part++) sum += uintBitsToFloat(memory[from + part * PART]);
    return sum;
}

void main() {
    uint k_group = gl_SubgroupID % K_GROUPS, n_group = gl_SubgroupID / K_GROUPS;
    row0 = group_id().y * ROW_TILES * MAT_M;
    magic = args.m == 0 ? 0 : 0x64006400u;  // never 0
    unit = args.m == 0 ? 0 : packFloat2x16(f16vec2(1.0 / float(1u << BITS)));
    uint first_column = group_id().x * COLUMNS;
    column0 = first_column + n_group * OF_SIDE;
    a = Halves(operand(args.a, 0));
    a_quads = Quads(operand(args.a, 0));
    b_pairs[0] = Pairs(operand(args.b, 1));
    b_quads[0] = Quads(operand(args.b, 1));
    scales[0] = Halves(operand(args.scales, 2));
    zeros[0] = Bytes(operand(args.zeros, 3));
#ifdef PAIRED
    b_pairs[1] = Pairs(operand(args.b2, 5));
    b_quads[1] = Quads(operand(args.b2, 5));
    scales[1] = Halves(operand(args.scales2, 6));
    zeros[1] = Bytes(operand(args.zeros2, 7));
#endif
    [[unroll]] for (uint i = 0; i < ROW_TILES * COLUMN_TILES; i++)
        acc[i] = coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>(0.0);
    if (expected_order()) multiply_stages(k_group, true);
    else multiply_stages(k_group, false);

    [[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
        barrier();
        [[unroll]] for (uint c = 0; c < COLUMN_TILES; c++)
            coopMatStore(acc[r * COLUMN_TILES + c], memory, gl_SubgroupID * PART + c * MAT_N / 4, SUM_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        for (uint e = gl_LocalInvocationIndex; e < MAT_M * COLUMNS / 4; e += gl_WorkGroupSize.x) {
            uint in_row = e % (COLUMNS / 4) * 4, in_matrix = e / (COLUMNS / 4), row = row0 + r * MAT_M + in_matrix;
            uint from = in_row / OF_SIDE * K_GROUPS * PART + in_matrix * SUM_PITCH + in_row % OF_SIDE / 4;
            vec4 sums = sum_of_parts(from);
#ifdef PAIRED
            vec4 others = sum_of_parts(from + OF_SIDE / 4);
#endif
            [[unroll]] for (uint i = 0; i < 4; i++) {
                uint column = first_column + in_row + i, o = row * args.n + column;
#ifdef PAIRED
                w = others[i];
#endif
                if (row < args.m && column < args.n) Elements(operand(args.y, 4)).v[o] = T(epilogue(sums[i], o, row, column));
            }
        }
    }
}
