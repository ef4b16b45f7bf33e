// y[row, target]: the total weight of the leaves that a row reaches, from leaf [rows, trees] and weights [leaves, targets]. NaN
// weights are skipped; the result is NaN where all are.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 leaf; uvec2 weights; WRITTEN y; uint total; uint trees; uint leaves; \
    uint targets; uint targets_mul; uint targets_shift; }
#include "args.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint MODE = 0;  // 0 the sum, 1 the minimum, 2 the maximum

TENSOR(uint, Words)
TENSOR(IN_T, Numbers)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    Words leaf = Words(operand(args.leaf, 0));
    Numbers weights = Numbers(operand(args.weights, 1)), y = Numbers(operand(args.y, 2));
    uint target, row = fast_divmod(id, args.targets, args.targets_mul, args.targets_shift, target);
    bool said = false;
    IN_T found = IN_T(0);
    for (uint tree = 0u; tree < args.trees; ++tree) {
        IN_T weight = weights.v[min(leaf.v[row * args.trees + tree], args.leaves - 1u) * args.targets + target];
        if (isnan(weight)) continue;
        found = !said ? weight : MODE == 1u ? min(found, weight) : MODE == 2u ? max(found, weight) : found + weight;
        said = true;
    }
    y.v[id] = said ? found : IN_T(uintBitsToFloat(0x7fc00000u));
}
