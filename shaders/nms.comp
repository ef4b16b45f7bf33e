// ONNX NonMaxSuppression: the workgroup of a (batch, class) pair repeatedly picks the best remaining box, and removes
// those that overlap it by more than iou_threshold. It takes the boxes in portions, from the highest scores on, which a histogram
// of the scores bounds: each lane keeps a list of its remaining boxes of the portion in `live`, in order, and shortens it while it
// looks for the best one. Picks are (batch, class, box) int64 rows.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 boxes; uvec2 scores; WRITTEN live; WRITTEN picks; WRITTEN counts; \
    uint pairs; uint classes; uint box_count; uint most; float iou_threshold; float score_threshold; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint CENTERED = 0;
layout(constant_id = 5) const uint HAS_THRESHOLD = 0;

TENSOR(float, Floats)
TENSOR(uint, Indices)
TENSOR(vec4, Boxes)
TENSOR(int64_t, Longs)
layout(buffer_reference, scalar) coherent buffer Picks { int64_t v[]; };  // lanes read what another one wrote

const uint NONE = 0xffffffffu;
#define DEAD uintBitsToFloat(0xff800000u)  // minus infinity: never selected

const uint BINS = 2048u, PORTION = 128u;  // a portion has at least this many boxes
shared uint bins[BINS];

// Unsigned integers of the scores' order.
uint key_of(float score) {
    uint bits = score == 0.0 ? 0u : floatBitsToUint(score);
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}
// The bin of a score: higher scores are in the same one or a higher one. The bins cover scores from the highest one to a 256th.
uint bin_of(float score, uint highest) { return BINS - 1u - min((highest - key_of(score)) >> 15, BINS - 1u); }
bool selectable(float score) { return score > DEAD && (HAS_THRESHOLD == 0u || score > args.score_threshold); }

struct Candidate { float score; uint box; };
Candidate better(Candidate a, Candidate b) {
    return b.score > a.score || (b.score == a.score && b.box < a.box) ? b : a;
}
COMBINE_SHARED(best_of, Candidate, better)

// (low, high) corners; ONNX gives any two opposite corners, or the centre and the size with x first.
vec4 corners(vec4 box) {
    if (CENTERED != 0u) return vec4(box.xy - 0.5 * box.zw, box.xy + 0.5 * box.zw);
    return vec4(min(box.xy, box.zw), max(box.xy, box.zw));
}

float overlap(vec4 a, vec4 b) {
    vec2 shared_size = max(min(a.zw, b.zw) - max(a.xy, b.xy), vec2(0.0));
    float both = shared_size.x * shared_size.y;
    float area_a = (a.z - a.x) * (a.w - a.y), area_b = (b.z - b.x) * (b.w - b.y);
    return area_a <= 0.0 || area_b <= 0.0 || both <= 0.0 ? 0.0 : both / (area_a + area_b - both);
}

void main() {
    uint pair = flat_group(), lane = gl_LocalInvocationID.x;
    if (pair >= args.pairs) return;
    uint batch = pair / args.classes, class_index = pair % args.classes;
    Boxes boxes = Boxes(operand(args.boxes, 0));
    Floats scores = Floats(operand(args.scores, 1));
    Indices live = Indices(operand(args.live, 2));
    Picks picks = Picks(operand(args.picks, 3));
    uint first = batch * args.box_count, mine = pair * args.box_count;
    const Candidate none = Candidate(DEAD, NONE);
    Candidate best = none;
    for (uint b = lane; b < BINS; b += gl_WorkGroupSize.x) bins[b] = 0u;
    for (uint n = lane; n < args.box_count; n += gl_WorkGroupSize.x)
        if (selectable(scores.v[mine + n])) best = better(best, Candidate(scores.v[mine + n], n));
    barrier();
    uint highest = key_of(best_of(best, lane, gl_WorkGroupSize.x).score);
    for (uint n = lane; n < args.box_count; n += gl_WorkGroupSize.x) {
        float score = scores.v[mine + n];
        if (selectable(score)) atomicAdd(bins[bin_of(score, highest)], 1u);
    }
    barrier();
    best = none;
    uint left = 0u;  // boxes in this lane's list: the elements of `live` at its number, in steps of a workgroup
    uint bin = BINS, picked = 0u;
    for (; picked < args.most; ++picked) {
        uint chosen = best_of(best, lane, gl_WorkGroupSize.x).box;
        while (chosen == NONE && bin > 0u) {  // the next portion
            uint end = bin, count = 0u, listed = 0u;
            while (bin > 0u && count < PORTION) count += bins[--bin];
            for (uint n = lane; n < args.box_count; n += gl_WorkGroupSize.x) {
                float score = scores.v[mine + n];
                if (!selectable(score) || bin_of(score, highest) < bin || bin_of(score, highest) >= end) continue;
                live.v[mine + listed++ * gl_WorkGroupSize.x + lane] = n;
            }
            memoryBarrierBuffer();
            barrier();
            left = 0u;
            for (uint i = 0u; i < listed; ++i) {
                uint box = live.v[mine + i * gl_WorkGroupSize.x + lane];
                vec4 own = corners(boxes.v[first + box]);
                bool removed = false;
                for (uint p = 0u; p < picked && !removed; ++p) {
                    uint other = uint(picks.v[(pair * args.most + p) * 3u + 2u]);
                    removed = overlap(corners(boxes.v[first + other]), own) > args.iou_threshold;
                }
                if (removed) continue;
                live.v[mine + left++ * gl_WorkGroupSize.x + lane] = box;
                best = better(best, Candidate(scores.v[mine + box], box));
            }
            chosen = best_of(best, lane, gl_WorkGroupSize.x).box;
        }
        if (chosen == NONE) break;
        if (lane == 0u) {
            uint to = (pair * args.most + picked) * 3u;
            picks.v[to] = int64_t(batch);
            picks.v[to + 1u] = int64_t(class_index);
            picks.v[to + 2u] = int64_t(chosen);
            memoryBarrierBuffer();
        }
        vec4 kept = corners(boxes.v[first + chosen]);
        uint before = left;
        left = 0u;
        best = none;
        for (uint i = 0u; i < before; ++i) {
            uint box = live.v[mine + i * gl_WorkGroupSize.x + lane];
            if (box == chosen || overlap(kept, corners(boxes.v[first + box])) > args.iou_threshold) continue;
            live.v[mine + left++ * gl_WorkGroupSize.x + lane] = box;
            best = better(best, Candidate(scores.v[mine + box], box));
        }
    }
    if (lane == 0u) Longs(operand(args.counts, 4)).v[pair] = int64_t(picked);
}
