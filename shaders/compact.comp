// The positions of nonzero elements, in order: place[i] is the number of nonzero elements up to and including i.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 place; WRITTEN positions; WRITTEN count; uint total; }
#include "args.glsl"
#include "workgroup.glsl"

TENSOR(int, Places)
TENSOR(int64_t, Longs)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    Places place = Places(operand(args.place, 0));
    int here = place.v[id], before = id == 0u ? 0 : place.v[id - 1u];
    if (here != before && uint(before) < args.total) Longs(operand(args.positions, 1)).v[before] = int64_t(id);
    if (id == args.total - 1u) Longs(operand(args.count, 2)).v[0] = int64_t(here);
}
