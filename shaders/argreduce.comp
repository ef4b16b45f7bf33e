// ArgMax and ArgMin over the middle of [outer, axis, inner] into int64 y [outer, inner]. Lanes share a column as in reduce.comp.
// Among equal elements the lowest index wins, with LAST the highest. A NaN wins, as in numpy; with NAN_LOSES it loses.
//
// With PARTED, columns are divided into parts of elements that lie at equal distances, and an outer position has `block` elements.
// STAGE 1 takes x as [outer, axis, inner] with an element of each part along the middle, and writes the best one of each part to
// `parts`, with its index in the block. STAGE 2 finds the best of the parts of a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#ifdef PARTED
#define PARTS_OPERAND WRITTEN parts;
#define BLOCK uint block;
#else
#define PARTS_OPERAND
#define BLOCK
#endif
#define ARGS_BODY { uvec2 x; WRITTEN y; PARTS_OPERAND \
    uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; BLOCK }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"
#include "sortkey.glsl"

layout(constant_id = 4) const uint SPLIT = 1;
layout(constant_id = 5) const uint ACROSS = 0;
layout(constant_id = 6) const uint MAXIMUM = 1;
layout(constant_id = 7) const uint LAST = 0;
#ifdef PARTED
layout(constant_id = 8) const uint STAGE = 1;
layout(constant_id = 9) const uint NAN_LOSES = 0;
#else
const uint STAGE = 0, NAN_LOSES = 0;
#endif

TENSOR(uvec2, Int64Tensor)

// Maps an index so that the lower one wins, whether LAST is set or not; a candidate keeps the mapped one.
uint precedence(uint index) { return LAST != 0u ? ~index : index; }
Candidate better(Candidate a, Candidate b) {
    bool second = before(b, a);
    return Candidate(second ? b.key : a.key, second ? b.index : a.index);
}
COMBINE_SHARED(best_of, Candidate, better)

void main() {
    InTensor x = InTensor(operand(args.x, 0));
    uint width = gl_WorkGroupSize.x / SPLIT;
    uint lane = gl_LocalInvocationID.x;
    uint share = ACROSS != 0u ? lane % SPLIT : lane / width;
    uint local_column = ACROSS != 0u ? lane / SPLIT : lane % width;
    uint column = flat_group() * width + local_column;
    bool live = column < args.columns;
    uint i, outer = fast_divmod(live ? column : 0u, args.inner, args.inner_mul, args.inner_shift, i);

    uint first = outer * args.axis * args.inner, axis = live ? args.axis : 0u;
#ifdef PARTED
    Candidates parts = Candidates(operand(args.parts, 2));
    if (STAGE == 1u) {
        first = outer * args.block;
        if (live && (axis - 1u) * args.inner + i >= args.block) --axis;  // not every part has a last element
    }
#endif
    Candidate best = NONE;
#ifdef PARTED
    if (STAGE == 2u) {
        for (uint k = share; k < axis; k += SPLIT) best = better(best, parts.v[first + k]);
        axis = 0u;
    }
#endif
    KEY_T nan_key = NAN_LOSES != 0u ? KEY_T(0) : ~KEY_T(0);
    uint at = share * args.inner + i, found = 0u;
    for (uint k = share; k < axis; k += SPLIT) {  // the index only grows: keys alone decide
        KEY_T key = sort_key(load_element(x.v[first + at]), MAXIMUM != 0u, nan_key);
        bool second = (LAST != 0u ? key >= best.key : key > best.key) || k == share;
        best.key = second ? key : best.key;
        found = second ? k : found;
        at += SPLIT * args.inner;
    }
    if (share < axis) best.index = precedence(STAGE == 1u ? found * args.inner + i : found);
    best = best_of(best, local_column * SPLIT + share, SPLIT);
    if (!live || share != 0u) return;
#ifdef PARTED
    if (STAGE == 1u) {
        parts.v[column] = best;
        return;
    }
#endif
    Int64Tensor(operand(args.y, 1)).v[column] = uvec2(precedence(best.index), 0u);
}
