// Appends the keys and values of new tokens to the past ones in a cache [batch, kv heads, room, size], and rotates the keys and
// the queries by the angles of the tokens' positions. With NORM it first divides each of their rows by its root mean square and
// multiplies it by a gain. Rows after the new ones keep the past's contents. In rows that attention reads, NaN and infinity
// become 0. With OVER the cache is the past's own memory: only the new rows are written, and NaN and
// infinity in later rows that attention reads.
//
// Grid: z 0 processes keys and then the queries of the heads that share them, as rows after those of the cache; z 1 values. y
// counts (sequence, kv head). A lane moves UNIT elements of a row: 16 bytes, or one element where addresses are not aligned.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 q; uvec2 k; uvec2 v; uvec2 past_key; uvec2 past_value; uvec2 cos; uvec2 sin; uvec2 first; uvec2 ids; \
    uvec2 k_scale; uvec2 v_scale; uvec2 q_gain; uvec2 k_gain; WRITTEN turned; WRITTEN present_key; WRITTEN present_value; WRITTEN fault; \
    uint kv_heads; uint tokens; uint old; uint room; uint used; uint table_rows; uint lanes; \
    uint q_batch; uint q_head; uint q_row; uint k_batch; uint k_head; uint k_row; uint v_batch; uint v_head; uint v_row; \
    uint fault_code; float epsilon; }
#include "args.glsl"
#include "workgroup.glsl"
#include "fault.glsl"

layout(constant_id = 4) const uint SIZE = 64;
layout(constant_id = 5) const uint VALUE_SIZE = 64;
layout(constant_id = 6) const uint UNIT = 1;
layout(constant_id = 7) const uint HALF = 0;  // number of feature pairs that are rotated; 0: no rotation
layout(constant_id = 8) const uint INTERLEAVED = 0;
layout(constant_id = 9) const uint GROUP = 1;
layout(constant_id = 10) const uint IDS = 0;  // 1: positions are an input
layout(constant_id = 11) const uint OVER = 0;
layout(constant_id = 12) const uint CODE = 0;  // the cache's element format (kv_codes.glsl)
layout(constant_id = 13) const uint K_CHANNELS = 0;  // 1: one scale per feature, 0: one per tensor
layout(constant_id = 14) const uint V_CHANNELS = 0;
layout(constant_id = 15) const uint CLEAN = 1;  // 0: the cache's type has no NaN and no infinity
layout(constant_id = 16) const uint NORM = 0;
#include "kv_codes.glsl"

const uint SQUARES = SIZE % 8 == 0 ? 8 : 1;  // that are added up at a time

TENSOR(T, Elements)
TENSOR(C, Stored)
TENSOR(int, Ints)
TENSOR(float, Floats)
TENSOR(int64_t, Longs)
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 v[]; };

// The row of the cosine and sine tables for new token t of a sequence.
uint position_of(uint batch, uint t, int first) {
    int64_t asked = IDS == 1 ? Longs(operand(args.ids, 8)).v[batch * args.tokens + t] : int64_t(first) + int64_t(t);
    if (asked >= 0 && asked < int64_t(args.table_rows)) return uint(asked);
    note_fault(operand(args.fault, 16), args.fault_code);
    return 0;
}

float inverse_rms(Elements x, uint at) {
    float sum = 0.0;
    for (uint e = 0; e < SIZE; e += SQUARES)
        [[unroll]] for (uint i = 0; i < SQUARES; i++) sum = fma(float(x.v[at + e + i]), float(x.v[at + e + i]), sum);
    return inversesqrt(sum / float(SIZE) + args.epsilon);
}

float factor;  // of the row, with NORM
Elements gain;

float feature(Elements x, uint at, uint e) { return NORM == 1 ? float(x.v[at + e]) * factor * float(gain.v[e]) : float(x.v[at + e]); }

// Feature e of the row at `at`, rotated.
float turn(Elements x, uint at, uint e, uint position) {
    if (e >= 2 * HALF) return feature(x, at, e);
    uint pair = INTERLEAVED == 1 ? e / 2 : e % (HALF == 0 ? 1 : HALF);
    bool second = INTERLEAVED == 1 ? e % 2 == 1 : e >= HALF;
    uint other = INTERLEAVED == 1 ? e ^ 1 : second ? e - HALF : e + HALF;
    float cosine = float(Elements(operand(args.cos, 5)).v[position * HALF + pair]);
    float sine = float(Elements(operand(args.sin, 6)).v[position * HALF + pair]);
    return feature(x, at, e) * cosine + (second ? 1.0 : -1.0) * feature(x, at, other) * sine;
}

bool is_number(C x) {
    if (CODE == CODE_FLOAT8) return (uint(x) & 127u) != 127u;
    if (CODE == CODE_BFLOAT16) return (uint(x) & 0x7f80u) != 0x7f80u;
    return !isnan(float(x)) && !isinf(float(x));
}

void main() {
    bool values = group_id().z == 1;
    uint size = values ? VALUE_SIZE : SIZE, width = (size + PACK - 1) / PACK, units = width / UNIT;
    uint lane = group_id().x * gl_WorkGroupSize.x + gl_LocalInvocationID.x, row = lane / units, u0 = lane % units * UNIT;
    uint kv = group_id().y, batch = kv / args.kv_heads, head = kv % args.kv_heads;
    int first = Ints(operand(args.first, 7)).v[batch];
    if (OVER == 1) first = clamp(first, 0, int(args.room - args.tokens));

    uvec2 present = values ? operand(args.present_value, 15) : operand(args.present_key, 14);
    uint rows = OVER == 1 ? args.tokens : args.room, turning = HALF > 0 && !values ? GROUP * args.tokens : 0;
    if (row < rows) {
        uint at = OVER == 1 ? uint(first) + row : row, to = (kv * args.room + at) * width + u0;
        if (int(at) >= first && at - uint(first) < args.tokens) {
            uint t = at - uint(first);
            uint from = values ? batch * args.v_batch + head * args.v_head + t * args.v_row
                               : batch * args.k_batch + head * args.k_head + t * args.k_row;
            uint position = HALF > 0 && !values ? position_of(batch, t, first) : 0;
            uvec2 new = values ? operand(args.v, 2) : operand(args.k, 1), scales = values ? operand(args.v_scale, 10) : operand(args.k_scale, 9);
            if (NORM == 1 && !values) {
                gain = Elements(operand(args.k_gain, 12));
                factor = inverse_rms(Elements(new), from);
            }
            bool channels = values ? V_CHANNELS == 1 : K_CHANNELS == 1;
            [[unroll]] for (uint i = 0; i < UNIT; i++) {
                if (CODE == 0 && values) {
                    Stored(present).v[to + i] = Stored(new).v[from + u0 + i];
                    continue;
                }
                uint code = 0;
                [[unroll]] for (uint p = 0; p < PACK; p++) {
                    uint e = (u0 + i) * PACK + p;
                    float x = 0.0;
                    if (e < size) x = values ? float(Elements(new).v[from + e]) : turn(Elements(new), from, e, position);
                    if (CODE == 0) Stored(present).v[to + i] = C(x);
                    else code |= encode(x, CODE < CODE_INT8 || e >= size ? 1.0 : Floats(scales).v[channels ? head * size + e : 0]) << (p * 4);
                }
                if (CODE != 0) Stored(present).v[to + i] = C(code);
            }
        } else if (OVER == 0) {
            uvec2 past = values ? operand(args.past_value, 4) : operand(args.past_key, 3);
            uint from = (kv * args.old + row) * width + u0;
            if (CLEAN == 1 && row < args.old && int(row) >= first && row < args.used) {
                [[unroll]] for (uint i = 0; i < UNIT; i++) {
                    bool number = is_number(Stored(past).v[from + i]);
                    Stored(present).v[to + i] = number ? Stored(past).v[from + i] : C(0);
                }
            } else if (UNIT == 1) {
                if (row < args.old) Stored(present).v[to] = Stored(past).v[from];
                else Stored(present).v[to] = C(0);
            } else {
                Quads(present).v[to / UNIT] = row < args.old ? Quads(past).v[from / UNIT] : uvec4(0);
            }
        }
    } else if (row - rows < turning) {
        uint t = (row - rows) % args.tokens, q_head = head * GROUP + (row - rows) / args.tokens;
        uint from = batch * args.q_batch + q_head * args.q_head + t * args.q_row;
        uint to = ((batch * args.kv_heads * GROUP + q_head) * args.tokens + t) * SIZE;
        uint position = position_of(batch, t, first);
        Elements q = Elements(operand(args.q, 0));
        if (NORM == 1) {
            gain = Elements(operand(args.q_gain, 11));
            factor = inverse_rms(q, from);
        }
        [[unroll]] for (uint i = 0; i < UNIT * PACK; i++) {
            uint e = u0 * PACK + i;
            if (e < SIZE) Elements(operand(args.turned, 13)).v[to + e] = T(turn(q, from, e, position));
        }
    }
    if (OVER == 1 && CLEAN == 1) {
        uint after = uint(first) + args.tokens;
        for (uint i = lane; after < args.used && i < (args.used - after) * units; i += args.lanes) {
            uint to = (kv * args.room + after) * width + i * UNIT;
            [[unroll]] for (uint n = 0; n < UNIT; n++)
                if (!is_number(Stored(present).v[to + n])) Stored(present).v[to + n] = C(0);
        }
    }
}
