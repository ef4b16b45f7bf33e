// The result of NonMaxSuppression: int64 rows (batch, class, box) of all pairs, one after another, and their number. `picks`
// [pairs, most] has the boxes that nms.comp selected, of each pair as many as `counts` says.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 picks; uvec2 counts; WRITTEN rows; WRITTEN count; uint pairs; uint classes; uint most; }
#include "args.glsl"
#include "workgroup.glsl"

TENSOR(uint, Words)
TENSOR(uvec2, Longs)

uint sum(uint a, uint b) { return a + b; }
COMBINE_SHARED(sum_of, uint, sum)

void main() {
    uint pair = flat_group(), lane = gl_LocalInvocationID.x;
    if (pair >= args.pairs) return;
    Words picks = Words(operand(args.picks, 0)), counts = Words(operand(args.counts, 1));
    Longs rows = Longs(operand(args.rows, 2));
    uint own = 0u;
    for (uint p = lane; p < pair; p += gl_WorkGroupSize.x) own += counts.v[p];
    uint first = sum_of(own, lane, gl_WorkGroupSize.x), picked = counts.v[pair];
    for (uint p = lane; p < picked; p += gl_WorkGroupSize.x) {
        uint to = (first + p) * 3u;
        rows.v[to] = uvec2(pair / args.classes, 0u);
        rows.v[to + 1u] = uvec2(pair % args.classes, 0u);
        rows.v[to + 2u] = uvec2(picks.v[pair * args.most + p], 0u);
    }
    if (pair == args.pairs - 1u && lane == 0u) Longs(operand(args.count, 3)).v[0] = uvec2(first + picked, 0u);
}
