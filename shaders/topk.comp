// TopK of k up to some hundreds along the middle of x [outer, axis, inner] into sorted values and int64 indices [outer, k, inner].
// Of equal elements the lower index goes first; NaN is the largest. SPLIT lanes share a column and k times find the best element
// after the last one found. topk_sort.comp takes any k.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN values; WRITTEN indices; \
    uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; uint k; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"
#include "sortkey.glsl"

layout(constant_id = 4) const uint SPLIT = 1;
layout(constant_id = 5) const uint ACROSS = 0;
layout(constant_id = 6) const uint LARGEST = 1;

TENSOR(uvec2, Int64Tensor)

Candidate better(Candidate a, Candidate b) { return before(b, a) ? b : a; }
KEY_T key_of(COMPUTE_T v) { return sort_key(v, LARGEST != 0u, LARGEST != 0u ? ~KEY_T(0) : KEY_T(0)); }
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
    uint base = outer * args.axis * args.inner + i;
    uint axis = live ? args.axis : 0u;
    Candidate last = NONE;
    for (uint place = 0u; place < args.k; ++place) {
        Candidate best = NONE;
        for (uint j = share; j < axis; j += SPLIT) {
            Candidate candidate = Candidate(key_of(load_element(x.v[base + j * args.inner])), j);
            if (place == 0u || before(last, candidate)) best = better(best, candidate);
        }
        last = best_of(best, local_column * SPLIT + share, SPLIT);
        if (live && share == 0u) {
            uint to = (outer * args.k + place) * args.inner + i;
            OutTensor(operand(args.values, 1)).v[to] = OUT_T(x.v[base + min(last.index, args.axis - 1u) * args.inner]);
            Int64Tensor(operand(args.indices, 2)).v[to] = uvec2(last.index, 0u);
        }
    }
}
