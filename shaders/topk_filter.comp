// Filters x [outer, axis, inner] for TopK: the k best elements are at least as good as the least of the k best parts of a column
// (argreduce.comp), and all in these. `best` [outer, parts, inner] has the parts' best elements in order; a part's elements are
// `parts` (a power of two) apart. What remains is appended to `found` [outer, capacity, inner], in no order, and counted. A lane takes
// up to 32 elements of a part.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 best; WRITTEN found; WRITTEN counts; \
    uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; \
    uint pieces; uint pieces_mul; uint pieces_shift; uint k; uint k_mul; uint k_shift; uint parts; uint capacity; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"
#include "sortkey.glsl"

layout(constant_id = 4) const uint LARGEST = 1;

TENSOR(uint, Counts)

void main() {
    uint piece, rank, i, item = fast_divmod(flat_lane(), args.pieces, args.pieces_mul, args.pieces_shift, piece);
    uint column = fast_divmod(item, args.k, args.k_mul, args.k_shift, rank);
    if (column >= args.columns) return;
    uint outer = fast_divmod(column, args.inner, args.inner_mul, args.inner_shift, i);
    InTensor x = InTensor(operand(args.x, 0));
    Candidates best = Candidates(operand(args.best, 1)), found = Candidates(operand(args.found, 2));
    Counts counts = Counts(operand(args.counts, 3));
    uint head = outer * args.parts * args.inner + i, base = outer * args.axis * args.inner + i;
    Candidate least = best.v[head + (args.k - 1u) * args.inner];
    uint part = fast_div(best.v[head + rank * args.inner].index, args.inner_mul, args.inner_shift) & (args.parts - 1u);
    uint first = part + piece * 32u * args.parts, mask = 0u;
    KEY_T nan_key = LARGEST != 0u ? ~KEY_T(0) : KEY_T(0);
    for (uint t = 0u; t < 32u; ++t) {
        uint at = first + t * args.parts;
        if (at >= args.axis) break;
        Candidate own = Candidate(sort_key(load_element(x.v[base + at * args.inner]), LARGEST != 0u, nan_key), at * args.inner + i);
        mask |= uint(!before(least, own)) << t;
    }
    while (mask != 0u) {  // few elements: a CPU driver runs what is in a branch for every element
        uint at = first + uint(findLSB(mask)) * args.parts;
        mask &= mask - 1u;
        uint slot = atomicAdd(counts.v[column], 1u);
        found.v[(outer * args.capacity + slot) * args.inner + i] =
            Candidate(sort_key(load_element(x.v[base + at * args.inner]), LARGEST != 0u, nan_key), at * args.inner + i);
    }
}
