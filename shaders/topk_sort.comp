// Sorts parts of a column of [outer, room, inner] for TopK: a workgroup sorts a run of up to SIZE candidates in shared memory
// and keeps the first k. They are elements of x, or candidates of an earlier dispatch: as many as `room`, or COUNTED, as
// filtered by topk_filter.comp. If those are more than SIZE, the workgroup filters them until they are not: the k best of the
// best ones of SIZE parts bound what remains: elements of k parts at most.
//
// Results are candidates at the places of the run, or with LAST values and int64 indices [outer, k, inner] of TopK.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN found; WRITTEN sorted; WRITTEN counts; WRITTEN values; WRITTEN indices; \
    uint columns; uint room; uint inner; uint inner_mul; uint inner_shift; \
    uint run; uint runs; uint runs_mul; uint runs_shift; uint axis; uint k; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"
#include "sortkey.glsl"

layout(constant_id = 4) const uint LARGEST = 1;
layout(constant_id = 5) const uint SIZE = 2048;
layout(constant_id = 6) const uint FROM_X = 1;
layout(constant_id = 7) const uint COUNTED = 0;
layout(constant_id = 8) const uint LAST = 1;

TENSOR(uvec2, Int64Tensor)
layout(buffer_reference, scalar) coherent buffer Counts { uint v[]; };
layout(buffer_reference, scalar) coherent buffer Found { Candidate v[]; };

#include "shared_sort.glsl"

void main() {
    uint lane = gl_LocalInvocationID.x, block;
    uint column = fast_divmod(flat_group(), args.runs, args.runs_mul, args.runs_shift, block);
    if (column >= args.columns) return;
    InTensor x = InTensor(operand(args.x, 0));
    Found found = Found(operand(args.found, 1));
    Counts counts = Counts(operand(args.counts, 3));
    uint i, outer = fast_divmod(column, args.inner, args.inner_mul, args.inner_shift, i);
    uint start = block * args.run, base = (outer * args.room + start) * args.inner + i;
    uint n = COUNTED != 0u ? counts.v[column] : min(args.run, args.room - min(start, args.room)), from;
    if (FROM_X == 0u && COUNTED == 0u && lane == 0u) counts.v[column] = 0u;

    KEY_T nan_key = LARGEST != 0u ? ~KEY_T(0) : KEY_T(0);
    [[dont_unroll]] for (;;) {
        bool too_many = COUNTED != 0u && n > SIZE;
        for (uint s = lane; s < (too_many ? SIZE : n); s += gl_WorkGroupSize.x) {
            if (FROM_X != 0u) {
                uint place = (start + s) * args.inner + i;
                KEY_T key = sort_key(load_element(x.v[outer * args.axis * args.inner + place]), LARGEST != 0u, nan_key);
                put(s, Candidate(key, place));
                continue;
            }
            Candidate best = found.v[base + s * args.inner];
            if (COUNTED != 0u) {
                for (uint t = s + SIZE; t < n; t += SIZE) {
                    Candidate other = found.v[base + t * args.inner];
                    if (before(other, best)) best = other;
                }
            }
            put(s, best);
        }
        from = sort(too_many ? SIZE : n);
        if (!too_many) break;
        Candidate least = at(from + args.k - 1u);
        barrier();
        if (lane == 0u) counts.v[column] = 0u;
        memoryBarrierBuffer();
        barrier();
        // all lanes read as many elements before any of them is overwritten
        [[dont_unroll]] for (uint first = 0u; first < n; first += gl_WorkGroupSize.x) {
            uint t = first + lane;
            Candidate own = t < n ? found.v[base + t * args.inner] : NONE;
            barrier();
            if (t < n && !before(least, own)) found.v[base + atomicAdd(counts.v[column], 1u) * args.inner] = own;
            memoryBarrierBuffer();
            barrier();
        }
        n = counts.v[column];
        barrier();
    }
    for (uint s = lane; s < min(n, args.k); s += gl_WorkGroupSize.x) {
        Candidate c = at(from + s);
        if (LAST != 0u) {
            uint to = (outer * args.k + s) * args.inner + i;
            OutTensor(operand(args.values, 4)).v[to] = OUT_T(x.v[outer * args.axis * args.inner + c.index]);
            Int64Tensor(operand(args.indices, 5)).v[to] = uvec2(fast_div(c.index, args.inner_mul, args.inner_shift), 0u);
        } else Candidates(operand(args.sorted, 2)).v[base + s * args.inner] = c;
    }
}
