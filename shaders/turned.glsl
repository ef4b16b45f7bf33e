// Included by products whose columns are one token's queries, keys and values (TURNED), head by head: pairs of features are
// rotated, and keys and values go to the token's row of the caches, as cache_update.comp does it. The kernel has the results
// of columns HALF apart, and defines TURN_BASE, the first of these operands, and Y, the queries' operand.
#ifdef TURNED
#include "fault.glsl"
layout(constant_id = 20) const uint HALF = 1;  // pairs of features that are rotated: half of a head
layout(constant_id = 21) const uint IDS = 0;   // 1: the position is an input

TENSOR(int, Ints)
TENSOR(int64_t, Longs)

struct Turn {
    uint row;  // row of the caches
    float cosine, sine;
};

// The first of both columns of a pair.
uint column_of(uint pair) { return pair / HALF * HALF + pair; }

Turn turn_of(uint pair) {
    int row = clamp(Ints(operand(args.first, TURN_BASE + 2)).v[0], 0, int(args.room) - 1);
    int64_t position = IDS == 1 ? Longs(operand(args.ids, TURN_BASE + 3)).v[0] : int64_t(row);
    if (position < 0 || position >= int64_t(args.table_rows)) {
        note_fault(operand(args.fault, TURN_BASE + 6), args.fault_code);
        position = 0;
    }
    uint at = uint(position) * HALF + pair % HALF;
    float cosine = float(Elements(operand(args.cos, TURN_BASE)).v[at]), sine = float(Elements(operand(args.sin, TURN_BASE + 1)).v[at]);
    return Turn(uint(row), cosine, sine);
}

void store_turned(uint pair, vec2 x, Turn by) {
    uint head = pair / HALF, keys = args.heads, values = keys + args.kv_heads;
    if (head < values) x = vec2(x.x * by.cosine - x.y * by.sine, x.y * by.cosine + x.x * by.sine);
    uvec2 to = operand(args.y, Y);
    uint row = head;
    if (head >= values) {
        to = operand(args.present_value, TURN_BASE + 5);
        row = (head - values) * args.room + by.row;
    } else if (head >= keys) {
        to = operand(args.present_key, TURN_BASE + 4);
        row = (head - keys) * args.room + by.row;
    }
    uint at = row * 2 * HALF + pair % HALF;
    Elements(to).v[at] = T(x.x);
    Elements(to).v[at + HALF] = T(x.y);
}
#endif
