// Merges pairs of sorted runs of candidates [outer, axis, inner] for TopK: the first k of each pair, or with LAST values and int64
// indices [outer, k, inner]. A lane writes CHUNK elements of a pair; it finds the first ones of both runs by binary search, as
// in shared_sort.glsl. All elements of the left run were before those of the right one, so that of equal ones the left one goes
// first. A column has 2 << `pair_bits` runs.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 sorted; WRITTEN merged; WRITTEN values; WRITTEN indices; \
    uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; \
    uint run; uint chunks; uint chunks_mul; uint chunks_shift; uint pair_bits; uint k; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"
#include "sortkey.glsl"

layout(constant_id = 4) const uint CHUNK = 8;
layout(constant_id = 5) const uint LAST = 1;

TENSOR(uvec2, Int64Tensor)

void main() {
    uint chunk, i, item = fast_divmod(flat_lane(), args.chunks, args.chunks_mul, args.chunks_shift, chunk);
    uint column = item >> args.pair_bits, pair = item & ((1u << args.pair_bits) - 1u);
    if (column >= args.columns) return;
    uint outer = fast_divmod(column, args.inner, args.inner_mul, args.inner_shift, i);
    InTensor x = InTensor(operand(args.x, 0));
    Candidates sorted = Candidates(operand(args.sorted, 1));
    uint base = outer * args.axis * args.inner + i, start = 2u * pair * args.run;
    uint left = min(start, args.axis), right = min(start + args.run, args.axis);
    uint left_end = min(left + args.k, right), right_end = min(right + min(args.run, args.k), args.axis);
    uint first = chunk * CHUNK, lefts = left_end - left, rights = right_end - right;
    uint end = min(min(first + CHUNK, args.k), lefts + rights);
    if (first >= end) return;

    uint low = first - min(first, rights), high = min(first, lefts);
    while (low < high) {
        uint middle = (low + high) / 2u;
        KEY_T of_left = sorted.v[base + (left + middle) * args.inner].key;
        KEY_T of_right = sorted.v[base + (right + first - 1u - middle) * args.inner].key;
        if (of_right > of_left) high = middle;
        else low = middle + 1u;
    }
    uint a = left + low, b = right + first - low;
    Candidate a_head = NONE, b_head = NONE;
    if (a < left_end) a_head = sorted.v[base + a * args.inner];
    if (b < right_end) b_head = sorted.v[base + b * args.inner];
    [[dont_unroll]] for (uint s = first; s < end; ++s) {
        bool of_b = a >= left_end || (b < right_end && b_head.key > a_head.key);
        Candidate c = Candidate(of_b ? b_head.key : a_head.key, of_b ? b_head.index : a_head.index);
        if (LAST != 0u) {
            uint to = (outer * args.k + s) * args.inner + i;
            OutTensor(operand(args.values, 3)).v[to] = OUT_T(x.v[outer * args.axis * args.inner + c.index]);
            Int64Tensor(operand(args.indices, 4)).v[to] = uvec2(fast_div(c.index, args.inner_mul, args.inner_shift), 0u);
        } else Candidates(operand(args.merged, 2)).v[base + (start + s) * args.inner] = c;
        b += uint(of_b);
        a += uint(!of_b);
        Candidate next = sorted.v[base + min(of_b ? b : a, args.axis - 1u) * args.inner];
        a_head.key = of_b ? a_head.key : next.key;
        a_head.index = of_b ? a_head.index : next.index;
        b_head.key = of_b ? next.key : b_head.key;
        b_head.index = of_b ? next.index : b_head.index;
    }
}
