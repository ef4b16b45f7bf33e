// ArgMax and ArgMin over the middle of [outer, axis, inner] into int64 y [outer, inner]; the first NaN wins, as in numpy. Lanes
// share a column as in reduce.comp. Among equal elements the lowest index wins, with LAST the highest.
//
// With PARTED, few long rows (inner is 1) take two dispatches. STAGE 1 splits each row into `inner` parts and writes the best
// element of each part to `parts`. STAGE 2 compares these.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#ifdef PARTED
#define PARTS_OPERAND WRITTEN parts;
#else
#define PARTS_OPERAND
#endif
#define ARGS_BODY { uvec2 x; WRITTEN y; PARTS_OPERAND uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; }
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
#endif

TENSOR(uvec2, Int64Tensor)

struct Candidate { KEY_T key; uint index; };
// Maps an index so that the greater value wins, whether LAST is set or not.
uint precedence(uint index) { return LAST != 0u ? ~index : index; }
Candidate better(Candidate a, Candidate b) {
    bool second = b.key > a.key || (b.key == a.key && precedence(b.index) < precedence(a.index));
    return second ? b : a;
}
#ifdef PARTED
layout(buffer_reference, scalar) buffer Parts { Candidate v[]; };
#endif
COMBINE_SHARED(best_of, Candidate, better)

void main() {
    InTensor x = InTensor(operand(args.x, 0));
    Int64Tensor y = Int64Tensor(operand(args.y, 1));
    uint width = gl_WorkGroupSize.x / SPLIT;
    uint lane = gl_LocalInvocationID.x;
    uint share = ACROSS != 0u ? lane % SPLIT : lane / width;
    uint local_column = ACROSS != 0u ? lane / SPLIT : lane % width;
    uint column = flat_group() * width + local_column;
    bool live = column < args.columns;
    uint i, outer = fast_divmod(live ? column : 0u, args.inner, args.inner_mul, args.inner_shift, i);

    uint at = (outer * args.axis + share) * args.inner + i;
    uint stride = SPLIT * args.inner;
    // Neutral: no key is below 0, and its index loses (or ties with) every other.
    Candidate best = Candidate(KEY_T(0), LAST != 0u ? 0u : 0xffffffffu);
#ifdef PARTED
    Parts parts = Parts(operand(args.parts, 2));
    uint length = (args.axis + args.inner - 1u) / args.inner, first = STAGE == 1u ? i * length : 0u;
    uint end = STAGE == 1u ? min(first + length, args.axis) : args.axis;
    for (uint k = first + share; live && k < end; k += SPLIT) {
        Candidate found = STAGE == 1u
            ? Candidate(sort_key(load_element(x.v[outer * args.axis + k]), MAXIMUM != 0u, ~KEY_T(0)), k)
            : parts.v[column * args.axis + k];
        best = better(best, found);
    }
    best = best_of(best, local_column * SPLIT + share, SPLIT);
    if (STAGE == 1u) {
        if (live && share == 0u) parts.v[column] = best;
        return;
    }
#else
    for (uint k = share; live && k < args.axis; k += SPLIT) {
        best = better(best, Candidate(sort_key(load_element(x.v[at]), MAXIMUM != 0u, ~KEY_T(0)), k));
        at += stride;
    }
    best = best_of(best, local_column * SPLIT + share, SPLIT);
#endif
    if (live && share == 0u) y.v[column] = uvec2(best.index, 0u);
}
