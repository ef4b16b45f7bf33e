// Included before args.glsl by kernels on cooperative matrices: extensions, the tile's spec constants, the assignment of loads to
// lanes, and the operands' elements T: float16_t, whose sums are float, or (CODES) int8_t, whose sums are int.
#ifndef VKEP_COOPERATIVE_GLSL
#define VKEP_COOPERATIVE_GLSL
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
layout(constant_id = 4) const uint TILE_M = 128;
layout(constant_id = 5) const uint TILE_N = 128;
layout(constant_id = 6) const uint TILE_K = 32;
layout(constant_id = 7) const uint SUB_M = 64;
layout(constant_id = 8) const uint SUB_N = 32;
layout(constant_id = 9) const uint MAT_M = 16;   // the cooperative matrices' shape, one of those that the device reports
layout(constant_id = 10) const uint MAT_N = 16;
layout(constant_id = 11) const uint MAT_K = 16;
layout(constant_id = 12) const uint PARTS = 1;  // 2: a stage of 64 is loaded at once, and multiplied in two halves
layout(constant_id = 13) const uint B_ALONG_K = 0;  // 1: b is staged with k running fastest
layout(constant_id = 14) const uint PARTIAL = 0;
layout(constant_id = 15) const uint SUBGROUP_LANES = 32;
layout(constant_id = 16) const uint STORE_VECTOR = 0;  // 1: results lie in aligned groups of eight along a row
layout(constant_id = 17) const uint WHOLE_K = 0;  // 1: k is a multiple of the stage, so that loads need no bounds check
layout(constant_id = 24) const uint LESS = 0;  // 1, of CODES: sums are less by a number for each column
layout(constant_id = 21) const uint PREFETCH = 1;  // stages that are being loaded into registers while one is multiplied

const uint SUBGROUPS_N = TILE_N / SUB_N;
const uint LANES = TILE_M / SUB_M * SUBGROUPS_N * SUBGROUP_LANES;
#ifdef CODES
const uint UNIT = 16;  // elements in 16 bytes
#define SUM int
#define SUM4 ivec4
#define SUMS_OF(unit) ivec4(unit)
#else
const uint UNIT = 8;
#define SUM float
#define SUM4 vec4
#define SUMS_OF(unit) uintBitsToFloat(unit)
#endif
const uint A_LOADS = TILE_M * TILE_K / UNIT / LANES;
const uint B_LOADS = TILE_N * TILE_K / UNIT / LANES;

const uint K_UNITS = TILE_K / UNIT;
const uint PART_K = TILE_K / PARTS;
// The assignment of an operand's loads along k to lanes: a lane's i-th load is a unit of one line. Eight lanes store to
// shared memory at a time; their lines lie in different banks. With PARTS 2, eight lanes load 128 bytes of one line, the
// fastest access to global memory. Of each pair of loads, one is of the first half of k and one of the second; their lines are
// four apart.
uint k_line_of(uint i) {
    uint lane = gl_LocalInvocationIndex, e = lane + i * LANES;
    if (PARTS == 2) return i / 2 * (LANES / 4) + lane / 32 * 8 + lane / 8 % 4 + i % 2 * 4;
    return K_UNITS >= 8 ? e / K_UNITS : e / (8 * K_UNITS) * 8 + e / 8 % K_UNITS + K_UNITS * (e % 8 / K_UNITS);
}
uint k_unit_of(uint i) { return (gl_LocalInvocationIndex + i * LANES) % K_UNITS ^ (PARTS == 2 ? i % 2 * 4 : 0); }
uint b_line_of(uint i) { return B_ALONG_K == 1 ? k_line_of(i) : (gl_LocalInvocationIndex + i * LANES) / (TILE_N / UNIT); }
uint b_unit_of(uint i) { return B_ALONG_K == 1 ? k_unit_of(i) : (gl_LocalInvocationIndex + i * LANES) % (TILE_N / UNIT); }

#ifdef CODES
#define WORD 4  // elements in four bytes
uint pack_word(T e[WORD]) { return uint(pack32(i8vec4(e[0], e[1], e[2], e[3]))); }
#else
#define WORD 2
uint pack_word(float16_t e[WORD]) { return packFloat2x16(f16vec2(e[0], e[1])); }
#endif
#endif
