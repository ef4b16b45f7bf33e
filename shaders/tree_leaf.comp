// leaf[row, tree]: the leaf that a row of x [rows, features] reaches in each tree. A node is three words (feature, missing and
// mode; the child if its comparison holds; the other child) and a split. A child with its top bit set is a leaf.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 roots; uvec2 nodes; uvec2 splits; WRITTEN leaf; uint total; uint features; uint count; uint depth; \
    uint trees; uint trees_mul; uint trees_shift; }
#include "args.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

TENSOR(uint, Words)
TENSOR(IN_T, Numbers)

const uint LEAF = 0x80000000u, MISSING = 8u;

bool holds(uint mode, IN_T x, IN_T split) {
    switch (mode) {
    case 0u: return x <= split;
    case 1u: return x < split;
    case 2u: return x >= split;
    case 3u: return x > split;
    case 4u: return x == split;
    default: return x != split;
    }
}

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    Numbers x = Numbers(operand(args.x, 0)), splits = Numbers(operand(args.splits, 3));
    Words roots = Words(operand(args.roots, 1)), nodes = Words(operand(args.nodes, 2)), leaf = Words(operand(args.leaf, 4));
    uint tree, row = fast_divmod(id, args.trees, args.trees_mul, args.trees_shift, tree);
    uint at = roots.v[tree];
    for (uint level = 0u; level < args.depth && at < args.count; ++level) {
        uint word = nodes.v[3u * at], mode = word & 7u;
        IN_T value = x.v[row * args.features + min(word >> 4, args.features - 1u)];
        bool first = isnan(value) ? (word & MISSING) != 0u || mode == 5u : holds(mode, value, splits.v[at]);
        at = nodes.v[3u * at + (first ? 1u : 2u)];
    }
    leaf.v[id] = at & ~LEAF;
}
