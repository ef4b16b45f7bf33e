// A subgroup computes a register-blocked tile of ROWS x (LANE_COLUMNS * lanes) results. For drivers that run a subgroup as one
// CPU vector: each lane holds all ROWS of its own columns, and a row's value is broadcast from the lane that loaded it.
//
// On such a driver every load inside a loop is compiled to a gather. So an operand value must be loaded by one lane only, and
// there must be more accumulators than loads. A gather of 64-bit words takes about the time of one of 32-bit words: where T is
// float, and neighbours lie in aligned pairs, a lane loads two values at once.
//
// The workgroup is one full subgroup. Include after vkep.glsl; T is the storage type.
#ifndef VKEP_REGISTER_TILE_GLSL
#define VKEP_REGISTER_TILE_GLSL
#include "workgroup.glsl"
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require

layout(constant_id = 4) const uint ROWS = 16;
layout(constant_id = 5) const uint LANE_COLUMNS = 4;
layout(constant_id = 6) const uint UNROLL = 4;  // steps of k per iteration, an even number
const uint LANES = gl_WorkGroupSize.x;
const uint COLUMNS = LANE_COLUMNS * LANES;
const uint ROWS_AT_ONCE = ROWS % 8 == 0 ? 8 : ROWS % 2 == 0 ? 2 : 1;  // rows that are multiplied together, a divisor of ROWS
const uint ROW_REGISTERS = (ROWS + LANES - 1) / LANES;  // row r is in lane r % LANES of register r / LANES

TENSOR(T, Elements)
// PAIRS is defined where values are in pairs. A device without 64-bit integers runs the variant without it.
#ifdef PAIRS
layout(constant_id = 10) const uint ROW_PAIRS = 0;     // 1: a row's values are in pairs along k, and row_step is 1
layout(constant_id = 11) const uint COLUMN_PAIRS = 0;  // 1: a lane's columns are pairs of neighbours; 2: as ROW_PAIRS
TENSOR(uint64_t, Pairs)
vec2 pair(Elements from, uint at) { return uintBitsToFloat(unpackUint2x32(Pairs(from).v[at / 2])); }
#else
const uint ROW_PAIRS = 0, COLUMN_PAIRS = 0;
vec2 pair(Elements from, uint at) { return vec2(from.v[at], from.v[at + 1]); }
#endif

// n / d for n, d < 2**24. A CPU driver divides integer vectors lane by lane; the last step corrects a division that is
// not correctly rounded.
uint small_div(uint n, uint d) {
    uint q = uint(float(n) / float(d));
    int r = int(n) - int(q * d);
    return r < 0 ? q - 1 : r >= int(d) ? q + 1 : q;
}

// Row and column of this workgroup's tile: x and y of the grid count the tiles along the rows first, or along the columns
// first. The last workgroups may lie past the last tile: they repeat the last tile.
uvec2 workgroup_tile(uint row_tiles, uint column_tiles, bool rows_first) {
    uint tile = flat_group();
    uint inner = rows_first ? row_tiles : column_tiles;
    uint outer = small_div(tile, inner);
    return rows_first ? uvec2(tile - outer * inner, outer) : uvec2(outer, tile - outer * inner);
}

// FOUR_COLUMNS(b, at, k), where the includer defines it, gives four neighbours along k of the column that begins at `at`: k counts
// in steps of one then, and `multiply` takes a multiple of four steps.
#ifdef FOUR_COLUMNS
#define COLUMN_VALUE(b, at, k) FOUR_COLUMNS(b, at, (k) / 4 * 4)[(k) % 4]
#else
#define COLUMN_VALUE(b, at, k) float(b.v[(at) + (k)])
#endif

float acc[ROWS * LANE_COLUMNS];
uint row_at[ROW_REGISTERS];    // where this lane's rows begin in the row operand, in elements
uint column_at[LANE_COLUMNS];  // where this lane's columns begin in the column operand
#ifdef MASK_ROWS
bool row_valid[ROW_REGISTERS];  // false: the row's values are zero, whatever was read
#define ROW_VALUE(q, value) (row_valid[q] ? (value) : 0.0)
#else
#define ROW_VALUE(q, value) (value)
#endif

// Column c of a lane in a tile of which `last` is the last column, an odd number with pairs of columns.
uint column_of(uint c, uint lane, uint last) {
    return COLUMN_PAIRS == 1 ? min(c / 2 * 2 * LANES + 2 * lane, last - 1) + c % 2 : min(c * LANES + lane, last);
}

void clear_tile() {
    [[unroll]] for (uint i = 0; i < ROWS * LANE_COLUMNS; i++) acc[i] = 0.0;
}

// One step of k: acc += rows (outer product) columns, with the operands' values `row_k` and `column_k` elements on.
void multiply_step(Elements a, uint row_k, Elements b, uint column_k, uint column_pairs) {
    float columns[LANE_COLUMNS], rows[ROW_REGISTERS];
    [[unroll]] for (uint q = 0; q < ROW_REGISTERS; q++) rows[q] = ROW_VALUE(q, float(a.v[row_at[q] + row_k]));
    if (column_pairs == 1) {
        [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c += 2) {
            vec2 two = pair(b, column_at[c] + column_k);
            columns[c] = two.x, columns[c + 1] = two.y;
        }
    } else {
        [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) columns[c] = COLUMN_VALUE(b, column_at[c], column_k);
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float row = subgroupBroadcast(rows[r / LANES], r % LANES);
        [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) acc[r * LANE_COLUMNS + c] += row * columns[c];
    }
}

// acc += rows (outer product) columns over `count` steps of k; `row_k` and `column_k` move by their steps. `column_pairs`: as
// COLUMN_PAIRS.
void multiply(Elements a, inout uint row_k, uint row_step, Elements b, inout uint column_k, uint column_step, uint count,
              uint column_pairs) {
    uint k = 0;
    for (; k + UNROLL <= count; k += UNROLL) {
        float columns[UNROLL * LANE_COLUMNS], rows[UNROLL * ROW_REGISTERS];
        [[unroll]] for (uint s = 0; s < UNROLL; s++) {
            if (ROW_PAIRS == 0) {
                [[unroll]] for (uint q = 0; q < ROW_REGISTERS; q++)
                    rows[s * ROW_REGISTERS + q] = ROW_VALUE(q, float(a.v[row_at[q] + row_k]));
            } else if (s % 2 == 0) {
                [[unroll]] for (uint q = 0; q < ROW_REGISTERS; q++) {
                    vec2 two = pair(a, row_at[q] + row_k);
                    rows[s * ROW_REGISTERS + q] = ROW_VALUE(q, two.x);
                    rows[(s + 1) * ROW_REGISTERS + q] = ROW_VALUE(q, two.y);
                }
            }
#ifdef FOUR_COLUMNS
            if (s % 4 == 0) {
                [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) {
                    vec4 four = FOUR_COLUMNS(b, column_at[c], column_k);
                    [[unroll]] for (uint i = 0; i < 4; i++) columns[(s + i) * LANE_COLUMNS + c] = four[i];
                }
            }
#else
            if (column_pairs == 0) {
                [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++)
                    columns[s * LANE_COLUMNS + c] = float(b.v[column_at[c] + column_k]);
            } else if (column_pairs == 1) {
                [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c += 2) {
                    vec2 two = pair(b, column_at[c] + column_k);
                    columns[s * LANE_COLUMNS + c] = two.x, columns[s * LANE_COLUMNS + c + 1] = two.y;
                }
            } else if (s % 2 == 0) {
                [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) {
                    vec2 two = pair(b, column_at[c] + column_k);
                    columns[s * LANE_COLUMNS + c] = two.x, columns[(s + 1) * LANE_COLUMNS + c] = two.y;
                }
            }
#endif
            row_k += row_step;
            column_k += column_step;
        }
        // A few rows at a time, for all steps, so that their sums stay in registers; the sums of all rows would not fit.
        [[unroll]] for (uint r0 = 0; r0 < ROWS; r0 += ROWS_AT_ONCE) {
            [[unroll]] for (uint s = 0; s < UNROLL; s++) {
                [[unroll]] for (uint i = 0; i < ROWS_AT_ONCE; i++) {
                    uint r = r0 + i;
                    float row = subgroupBroadcast(rows[s * ROW_REGISTERS + r / LANES], r % LANES);
                    [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++)
                        acc[r * LANE_COLUMNS + c] += row * columns[s * LANE_COLUMNS + c];
                }
            }
        }
    }
    for (; k < count; k++) {
        multiply_step(a, row_k, b, column_k, column_pairs);
        row_k += row_step;
        column_k += column_step;
    }
}
#endif
