// Attention on a driver that runs a subgroup as one CPU vector: scores of ROWS queries and of COLUMNS keys at a time are a
// register tile (register_tile.glsl), and so are the products of their powers and the values. Powers pass through memory, ROWS x
// COLUMNS of each workgroup in `powers`. The algorithm is that of attention.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#extension GL_KHR_shader_subgroup_arithmetic : require
#define ARGS_BODY { uvec2 q; uvec2 k; uvec2 v; uvec2 bias; uvec2 origin; WRITTEN y; WRITTEN powers; uint queries; uint keys; \
    uint q_batch; uint q_head; uint q_row; uint k_batch; uint k_head; uint k_row; uint v_batch; uint v_head; uint v_row; \
    uint y_head; uint y_row; uint bias_batch; uint bias_head; uint bias_row; \
    float scale; float softcap; int first; int end; }
#include "args.glsl"
#include "register_tile.glsl"

layout(constant_id = 7) const uint SIZE = 64;
layout(constant_id = 8) const uint VALUE_SIZE = 64;
layout(constant_id = 9) const uint GROUP = 1;  // heads that share keys and values
layout(constant_id = 12) const uint BIAS = 0;  // 1: a column for each key, dense; 2: one column for all keys
layout(constant_id = 13) const uint SOFTCAP = 0;
layout(constant_id = 14) const uint ORIGIN = 0;  // 1: first and end are relative to a position per batch
#define BLOCK_Q ROWS
#define BLOCK_K COLUMNS
#include "attention_scores.glsl"

const uint TILE = ROWS * LANE_COLUMNS;
const uint PARTS = (VALUE_SIZE + COLUMNS - 1) / COLUMNS;  // of COLUMNS values

float results[PARTS * TILE];
float top[ROWS], total[ROWS];  // of a row: the maximum so far; the sum over the lane's keys. Powers are 0 before the first key

void main() {
    find_block();
    uint lane = gl_SubgroupInvocationID, last_row = uint(last_query) - query0, at = 0, step = 0;
    uint group = group_id().x + group_count().x * (group_id().y + group_count().y * group_id().z);
    Elements powers = Elements(operand(args.powers, 6)), y = Elements(operand(args.y, 5));
    [[unroll]] for (uint i = 0; i < PARTS * TILE; i++) results[i] = 0.0;
    [[unroll]] for (uint r = 0; r < ROWS; r++) top[r] = LOWEST_FINITE, total[r] = 0.0;

    for (int key = begin; key < end; key += int(COLUMNS)) {
        [[unroll]] for (uint i = 0; i < ROW_REGISTERS; i++)
            row_at[i] = q0 + (query0 + min(i * LANES + lane, last_row)) * args.q_row;
        [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++)
            column_at[c] = k0 + min(uint(key) + c * LANES + lane, args.keys - 1) * args.k_row;
        clear_tile();
        at = 0, step = 0;
        multiply(Elements(q), at, 1, Elements(k), step, 1, SIZE, 2 * COLUMN_PAIRS);

        bool whole = all_seen(key);
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            float best = LOWEST, sum = 0.0;
            [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) {
                uint i = r * LANE_COLUMNS + c;
                acc[i] = exponent_of(acc[i], min(r, last_row), uint(key) + c * LANES + lane, whole);
                best = max(best, acc[i]);
            }
            best = max(subgroupMax(best), top[r]);
            float factor = exp2(top[r] - best);
            [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) {
                float power = exp2(acc[r * LANE_COLUMNS + c] - best);
                sum += power;
                powers.v[group * ROWS * COLUMNS + r * COLUMNS + c * LANES + lane] = T(power);
            }
            total[r] = total[r] * factor + sum;
            top[r] = best;
            [[unroll]] for (uint p = 0; p < PARTS; p++)
                [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) results[p * TILE + r * LANE_COLUMNS + c] *= factor;
        }
        subgroupBarrier();

        uint count = min(COLUMNS, uint(end - key));
        [[unroll]] for (uint i = 0; i < ROW_REGISTERS; i++)
            row_at[i] = (group * ROWS + min(i * LANES + lane, ROWS - 1)) * COLUMNS;
        [[unroll]] for (uint p = 0; p < PARTS; p++) {
            [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++)
                column_at[c] = v0 + uint(key) * args.v_row + p * COLUMNS + column_of(c, lane, VALUE_SIZE - 1 - p * COLUMNS);
            [[unroll]] for (uint i = 0; i < TILE; i++) acc[i] = results[p * TILE + i];
            at = 0, step = 0;
            multiply(powers, at, 1, Elements(v), step, args.v_row, count, COLUMN_PAIRS);
            [[unroll]] for (uint i = 0; i < TILE; i++) results[p * TILE + i] = acc[i];
        }
        subgroupBarrier();
    }

    uint y0 = group_id().z * (group_count().y * args.queries * VALUE_SIZE) + group_id().y * args.y_head;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float factor = factor_of(subgroupAdd(total[r]));
        [[unroll]] for (uint p = 0; p < PARTS; p++) {
            [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) {
                uint column = p * COLUMNS + column_of(c, lane, VALUE_SIZE - 1 - p * COLUMNS);
                float v = factor * results[p * TILE + r * LANE_COLUMNS + c];
                y.v[y0 + (query0 + min(r, last_row)) * args.y_row + column] = T(v);
            }
        }
    }
}
