// What a decoder's step does before its attention: keys and values of one new token join those of the past in a new cache [batch,
// kv heads, room, size], the key and the queries turned by the angles of the token's position. Rows after the new one are zero,
// since what the past's buffer holds beyond a sequence's end may be NaN.
//
// z of the grid 0: keys, and the queries of the heads that share them, as rows after the last one of the cache; 1: values. y: a head of
// keys of a sequence. A lane moves UNIT elements of a row (16 bytes, or one where addresses are not aligned).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 q; uvec2 k; uvec2 v; uvec2 past_key; uvec2 past_value; uvec2 cos; uvec2 sin; uvec2 lengths; uvec2 total; \
    uvec2 ids; uvec2 turned; uvec2 present_key; uvec2 present_value; uvec2 origin; uvec2 fault; \
    uint kv_heads; uint old; uint room; uint table_rows; \
    uint q_batch; uint q_head; uint k_batch; uint k_head; uint v_batch; uint v_head; uint fault_code; }
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

TENSOR(T, Elements)
TENSOR(int, Ints)
TENSOR(int64_t, Longs)
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 v[]; };

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

void main() {
    bool values = group_id().z == 1;
    uint size = values ? VALUE_SIZE : SIZE, units = values ? VALUE_SIZE / UNIT : SIZE / UNIT;
    uint lane = group_id().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = lane / units, e0 = lane % units * UNIT;
    uint kv = group_id().y, batch = kv / args.kv_heads, head = kv % args.kv_heads;
    int first = Ints(operand(args.total, 8)).v[0] == 1 ? 0 : Ints(operand(args.lengths, 7)).v[batch];
    if (!values && lane == 0 && head == 0) Ints(operand(args.origin, 13)).v[batch] = first;

    uint position = 0;
    if (HALF > 0 && !values) {
        int64_t asked = IDS == 1 ? Longs(operand(args.ids, 9)).v[batch] : int64_t(first);
        if (asked < 0 || asked >= int64_t(args.table_rows)) {
            note_fault(operand(args.fault, 14), args.fault_code);
            asked = 0;
        }
        position = uint(asked);
    }
    Elements k = Elements(operand(args.k, 1)), v = Elements(operand(args.v, 2));
    if (row < args.room) {
        uvec2 past = values ? operand(args.past_value, 4) : operand(args.past_key, 3);
        uvec2 present = values ? operand(args.present_value, 12) : operand(args.present_key, 11);
        uint from = (kv * args.old + row) * size + e0, to = (kv * args.room + row) * size + e0;
        bool kept = int(row) < first && row < args.old;
        if (int(row) == first) {
            [[unroll]] for (uint i = 0; i < UNIT; i++)
                Elements(present).v[to + i] = values ? v.v[batch * args.v_batch + head * args.v_head + e0 + i]
                                                     : T(turn(k, batch * args.k_batch + head * args.k_head, e0 + i, position));
        } else if (UNIT == 1) {
            if (kept) Elements(present).v[to] = Elements(past).v[from];
            else Elements(present).v[to] = T(0.0);
        } else {
            Quads(present).v[to / UNIT] = kept ? Quads(past).v[from / UNIT] : uvec4(0);
        }
    } else if (HALF > 0 && !values && row - args.room < GROUP) {
        uint q_head = head * GROUP + row - args.room, from = batch * args.q_batch + q_head * args.q_head;
        uint to = (batch * args.kv_heads * GROUP + q_head) * SIZE + e0;
        [[unroll]] for (uint i = 0; i < UNIT; i++)
            Elements(operand(args.turned, 10)).v[to + i] = T(turn(Elements(operand(args.q, 0)), from, e0 + i, position));
    }
}
