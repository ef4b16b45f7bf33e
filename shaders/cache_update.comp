// Keys and values of new tokens join those of the past in a cache [batch, kv heads, room, size], the keys and the queries turned by
// the angles of the tokens' positions. Rows after the new ones stay as they are in the past; in those that are used, what is no
// number becomes 0, since attention reads them. With OVER the cache is the past's own memory: only the new rows are written, and
// what is no number in those after them that are used.
//
// z of the grid 0: keys, and the queries of the heads that share them, as rows after those of the cache; 1: values. y: a head of
// keys of a sequence. A lane moves UNIT elements of a row (16 bytes, or one where addresses are not aligned).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 q; uvec2 k; uvec2 v; uvec2 past_key; uvec2 past_value; uvec2 cos; uvec2 sin; uvec2 first; uvec2 ids; \
    uvec2 turned; uvec2 present_key; uvec2 present_value; uvec2 fault; \
    uint kv_heads; uint tokens; uint old; uint room; uint used; uint table_rows; uint lanes; \
    uint q_batch; uint q_head; uint q_row; uint k_batch; uint k_head; uint k_row; uint v_batch; uint v_head; uint v_row; \
    uint fault_code; }
#include "args.glsl"
#include "workgroup.glsl"
#include "fault.glsl"

layout(constant_id = 4) const uint SIZE = 64;
layout(constant_id = 5) const uint VALUE_SIZE = 64;
layout(constant_id = 6) const uint UNIT = 1;
layout(constant_id = 7) const uint HALF = 0;  // pairs of features that turn; 0: none does
layout(constant_id = 8) const uint INTERLEAVED = 0;
layout(constant_id = 9) const uint GROUP = 1;
layout(constant_id = 10) const uint IDS = 0;  // 1: positions are given
layout(constant_id = 11) const uint OVER = 0;

TENSOR(T, Elements)
TENSOR(int, Ints)
TENSOR(int64_t, Longs)
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 v[]; };

// The row of the tables for new token t of a sequence.
uint position_of(uint batch, uint t, int first) {
    int64_t asked = IDS == 1 ? Longs(operand(args.ids, 8)).v[batch * args.tokens + t] : int64_t(first) + int64_t(t);
    if (asked >= 0 && asked < int64_t(args.table_rows)) return uint(asked);
    note_fault(operand(args.fault, 12), args.fault_code);
    return 0;
}

// Feature e of the row at `at`, turned.
float turn(Elements x, uint at, uint e, uint position) {
    if (e >= 2 * HALF) return float(x.v[at + e]);
    uint pair = INTERLEAVED == 1 ? e / 2 : e % (HALF == 0 ? 1 : HALF);
    bool second = INTERLEAVED == 1 ? e % 2 == 1 : e >= HALF;
    uint other = INTERLEAVED == 1 ? e ^ 1 : second ? e - HALF : e + HALF;
    float cosine = float(Elements(operand(args.cos, 5)).v[position * HALF + pair]);
    float sine = float(Elements(operand(args.sin, 6)).v[position * HALF + pair]);
    return float(x.v[at + e]) * cosine + (second ? 1.0 : -1.0) * float(x.v[at + other]) * sine;
}

bool is_number(T x) {
    return !isnan(float(x)) && !isinf(float(x));
}

void main() {
    bool values = group_id().z == 1;
    uint size = values ? VALUE_SIZE : SIZE, units = size / UNIT;
    uint lane = group_id().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = lane / units, e0 = lane % units * UNIT;
    uint kv = group_id().y, batch = kv / args.kv_heads, head = kv % args.kv_heads;
    int first = Ints(operand(args.first, 7)).v[batch];
    if (OVER == 1) first = clamp(first, 0, int(args.room - args.tokens));

    uvec2 present = values ? operand(args.present_value, 11) : operand(args.present_key, 10);
    uint rows = OVER == 1 ? args.tokens : args.room;
    if (row < rows) {
        uint at = OVER == 1 ? uint(first) + row : row, to = (kv * args.room + at) * size + e0;
        if (int(at) >= first && at - uint(first) < args.tokens) {
            uint t = at - uint(first);
            if (values) {
                uint from = batch * args.v_batch + head * args.v_head + t * args.v_row + e0;
                [[unroll]] for (uint i = 0; i < UNIT; i++)
                    Elements(present).v[to + i] = Elements(operand(args.v, 2)).v[from + i];
            } else {
                uint from = batch * args.k_batch + head * args.k_head + t * args.k_row;
                uint position = HALF > 0 ? position_of(batch, t, first) : 0;
                [[unroll]] for (uint i = 0; i < UNIT; i++)
                    Elements(present).v[to + i] = T(turn(Elements(operand(args.k, 1)), from, e0 + i, position));
            }
        } else if (OVER == 0) {
            uvec2 past = values ? operand(args.past_value, 4) : operand(args.past_key, 3);
            uint from = (kv * args.old + row) * size + e0;
            if (row < args.old && int(row) >= first && row < args.used) {
                [[unroll]] for (uint i = 0; i < UNIT; i++) {
                    bool number = is_number(Elements(past).v[from + i]);
                    Elements(present).v[to + i] = number ? Elements(past).v[from + i] : T(0.0);
                }
            } else if (UNIT == 1) {
                if (row < args.old) Elements(present).v[to] = Elements(past).v[from];
                else Elements(present).v[to] = T(0.0);
            } else {
                Quads(present).v[to / UNIT] = row < args.old ? Quads(past).v[from / UNIT] : uvec4(0);
            }
        }
    } else if (HALF > 0 && !values && row - rows < GROUP * args.tokens) {
        uint t = (row - rows) % args.tokens, q_head = head * GROUP + (row - rows) / args.tokens;
        uint from = batch * args.q_batch + q_head * args.q_head + t * args.q_row;
        uint to = ((batch * args.kv_heads * GROUP + q_head) * args.tokens + t) * SIZE + e0;
        uint position = position_of(batch, t, first);
        [[unroll]] for (uint i = 0; i < UNIT; i++)
            Elements(operand(args.turned, 9)).v[to + i] = T(turn(Elements(operand(args.q, 0)), from, e0 + i, position));
    }
    if (OVER == 1) {
        uint after = uint(first) + args.tokens;
        for (uint i = lane; after < args.used && i < (args.used - after) * units; i += args.lanes) {
            uint to = (kv * args.room + after) * size + i * UNIT;
            [[unroll]] for (uint k = 0; k < UNIT; k++)
                if (!is_number(Elements(present).v[to + k])) Elements(present).v[to + k] = T(0.0);
        }
    }
}
