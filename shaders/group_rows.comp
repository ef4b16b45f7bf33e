// Sorts rows by group: each group's rows fill whole blocks of `block` slots. `places` [rows] is each row's slot, `sources`
// [blocks * block] each slot's row (0 for an empty slot), `owners` [blocks] each block's group (`groups` for an unused block).
// One workgroup. The order of rows within a group is not defined.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN places; WRITTEN sources; WRITTEN owners; uint rows; uint groups; uint block; uint blocks; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint MOST_GROUPS = 256;

TENSOR(int64_t, Longs)
TENSOR(uint, Words)

shared uint count[MOST_GROUPS];
shared uint first[MOST_GROUPS];  // each group's first block
shared uint used;

uint group_of(Longs x, uint row) { return uint(clamp(int(x.v[row]), 0, int(args.groups) - 1)); }

void main() {
    uint lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    Longs x = Longs(operand(args.x, 0));
    Words places = Words(operand(args.places, 1)), sources = Words(operand(args.sources, 2));
    Words owners = Words(operand(args.owners, 3));
    for (uint g = lane; g < args.groups; g += lanes) count[g] = 0u;
    barrier();
    for (uint row = lane; row < args.rows; row += lanes) atomicAdd(count[group_of(x, row)], 1u);
    barrier();
    if (lane == 0u) {
        used = 0u;
        for (uint g = 0u; g < args.groups; ++g) {
            first[g] = used;
            used += (count[g] + args.block - 1u) / args.block;
        }
    }
    barrier();
    for (uint g = lane; g < args.groups; g += lanes) {
        uint blocks = (count[g] + args.block - 1u) / args.block;
        for (uint i = 0u; i < blocks; ++i) owners.v[first[g] + i] = g;
        for (uint i = count[g]; i < blocks * args.block; ++i) sources.v[first[g] * args.block + i] = 0u;
    }
    for (uint i = used + lane; i < args.blocks; i += lanes) owners.v[i] = args.groups;
    for (uint i = used * args.block + lane; i < args.blocks * args.block; i += lanes) sources.v[i] = 0u;
    barrier();
    for (uint g = lane; g < args.groups; g += lanes) count[g] = 0u;
    barrier();
    for (uint row = lane; row < args.rows; row += lanes) {
        uint g = group_of(x, row), slot = first[g] * args.block + atomicAdd(count[g], 1u);
        places.v[row] = slot;
        sources.v[slot] = row;
    }
}
