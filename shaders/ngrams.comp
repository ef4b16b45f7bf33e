// Counts n-grams: y[row, gram] is how often the gram occurs in row `row` of x [rows, steps]. A gram is `lengths` items of
// `pool` from `starts` on. Its items are 1 to `apart` steps apart in a row; a gram of one item is counted once per occurrence.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 pool; uvec2 grams; WRITTEN y; uint total; uint steps; uint items; uint apart; \
    uint count; uint count_mul; uint count_shift; }
#include "args.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

TENSOR(IN_T, Items)
TENSOR(uint, Words)
TENSOR(float, Floats)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    Items x = Items(operand(args.x, 0)), pool = Items(operand(args.pool, 1));
    Words grams = Words(operand(args.grams, 2));
    uint gram, row = fast_divmod(id, args.count, args.count_mul, args.count_shift, gram);
    uint start = min(grams.v[2u * gram], args.items), length = min(grams.v[2u * gram + 1u], args.items - start);
    uint found = 0u;
    for (uint step = 1u; length > 0u && step <= (length == 1u ? 1u : args.apart); ++step) {
        uint reach = (length - 1u) * step;
        for (uint at = 0u; reach < args.steps && at < args.steps - reach; ++at) {
            bool same = true;
            for (uint k = 0u; same && k < length; ++k)
                same = x.v[row * args.steps + at + k * step] == pool.v[start + k];
            found += same ? 1u : 0u;
        }
    }
    Floats(operand(args.y, 3)).v[id] = float(found);
}
