// ONNX NonMaxSuppression: the workgroup of a (batch, class) pair lists the boxes that may be selected, sorts those of the highest
// scores, up to SIZE, and goes through them in groups of 32: a box is selected if it overlaps none that were selected before by
// more than iou_threshold. Then come the next boxes of the list. If these are more than SIZE, the best ones of SIZE parts of the
// list bound how many are taken. `picks` [pairs, most] are the selected boxes of each pair.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 boxes; uvec2 scores; WRITTEN listed; WRITTEN picks; WRITTEN counts; \
    uint pairs; uint classes; uint box_count; uint most; float iou_threshold; float score_threshold; }
#include "args.glsl"
#include "workgroup.glsl"
#define COMPUTE_T float
#define KEY_T uint
#define KEY_FLOAT 1
#include "sortkey.glsl"

layout(constant_id = 4) const uint CENTERED = 0;
layout(constant_id = 5) const uint HAS_THRESHOLD = 0;
layout(constant_id = 6) const uint SIZE = 1024;

#include "shared_sort.glsl"

TENSOR(float, Floats)
TENSOR(vec4, Boxes)
TENSOR(uint, Counts)
layout(buffer_reference, scalar) coherent buffer Listed { Candidate v[]; };  // lanes read what another one wrote
layout(buffer_reference, scalar) coherent buffer Picks { uint v[]; };

const uint GROUP = 32u;
shared uint counted;  // elements of the list, or of those that come next
shared vec4 group_boxes[GROUP];
shared uint overlapped[GROUP];  // the boxes before it in the group that it overlaps
shared uint removed;            // boxes of the group that overlap one selected earlier

bool selectable(float score) {
    return score > uintBitsToFloat(0xff800000u) && (HAS_THRESHOLD == 0u || score > args.score_threshold);
}

// (low, high) corners; ONNX gives any two opposite corners, or the centre and the size with x first.
vec4 corners(vec4 box) {
    if (CENTERED != 0u) return vec4(box.xy - 0.5 * box.zw, box.xy + 0.5 * box.zw);
    return vec4(min(box.xy, box.zw), max(box.xy, box.zw));
}

// Rounded as the operator's definition is: a GPU's own quotient of equal boxes may exceed 1, and so a threshold.
float overlap(vec4 a, vec4 b) {
    vec2 shared_size = max(min(a.zw, b.zw) - max(a.xy, b.xy), vec2(0.0));
    precise float both = shared_size.x * shared_size.y;
    precise float area_a = (a.z - a.x) * (a.w - a.y), area_b = (b.z - b.x) * (b.w - b.y);
    precise float either = area_a + area_b - both;
    return area_a <= 0.0 || area_b <= 0.0 || both <= 0.0 ? 0.0 : quotient_by_usual(both, either);
}

void main() {
    uint pair = flat_group(), lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    if (pair >= args.pairs) return;
    Boxes boxes = Boxes(operand(args.boxes, 0));
    Floats scores = Floats(operand(args.scores, 1));
    Listed listed = Listed(operand(args.listed, 2));
    Picks picks = Picks(operand(args.picks, 3));
    uint first_box = pair / args.classes * args.box_count, mine = pair * args.box_count, chosen = pair * args.most;

    // bits of 32 elements first, then a loop over those that are set: a CPU driver runs what is in a branch for every element
    if (lane == 0u) counted = 0u;
    barrier();
    for (uint begin = lane; begin < args.box_count; begin += 32u * lanes) {
        uint mask = 0u;
        for (uint t = 0u; t < 32u && begin + t * lanes < args.box_count; ++t)
            mask |= uint(selectable(scores.v[mine + begin + t * lanes])) << t;
        while (mask != 0u) {
            uint box = begin + uint(findLSB(mask)) * lanes;
            mask &= mask - 1u;
            listed.v[mine + atomicAdd(counted, 1u)] = Candidate(sort_key(scores.v[mine + box], true, 0u), box);
        }
    }
    memoryBarrierBuffer();
    barrier();
    uint count = counted, left = count, next = 0u, picked = 0u;
    Candidate last = Candidate(0xffffffffu, 0u), least = NONE;  // the next boxes come after `last`, and not after `least`
    [[dont_unroll]] while (left > 0u && picked < args.most) {
        bool bounds = left > SIZE && next == 0u;
        if (bounds) {
            for (uint s = lane; s < SIZE; s += lanes) {
                Candidate best = NONE;
                for (uint t = s; t < count; t += SIZE) {
                    Candidate c = listed.v[mine + t];
                    if (before(last, c) && before(c, best)) best = c;
                }
                put(s, best);
            }
        } else {
            if (next == 0u) next = left;
            barrier();
            if (lane == 0u) counted = 0u;
            barrier();
            for (uint begin = lane; begin < count; begin += 32u * lanes) {
                uint mask = 0u;
                for (uint t = 0u; t < 32u && begin + t * lanes < count; ++t) {
                    Candidate c = listed.v[mine + begin + t * lanes];
                    mask |= uint(before(last, c) && !before(least, c)) << t;
                }
                while (mask != 0u) {
                    put(atomicAdd(counted, 1u), listed.v[mine + begin + uint(findLSB(mask)) * lanes]);
                    mask &= mask - 1u;
                }
            }
        }
        uint from = sort(bounds ? SIZE : next);
        if (bounds) {
            uint rank = SIZE;
            [[dont_unroll]] do {  // of rank 1 it is one box
                rank /= 2u;
                least = at(from + rank - 1u);
                barrier();
                if (lane == 0u) counted = 0u;
                barrier();
                uint own = 0u;
                for (uint t = lane; t < count; t += lanes) {
                    Candidate c = listed.v[mine + t];
                    own += uint(before(last, c) && !before(least, c));
                }
                atomicAdd(counted, own);
                barrier();
                next = counted;
            } while (next > SIZE);
            continue;
        }
        left -= next;
        last = at(from + next - 1u);
        least = NONE;

        [[dont_unroll]] for (uint begin = 0u; begin < next && picked < args.most; begin += GROUP) {
            uint members = min(GROUP, next - begin);
            for (uint m = lane; m < members; m += lanes) {
                group_boxes[m] = corners(boxes.v[first_box + places[from + begin + m]]);
                overlapped[m] = 0u;
            }
            if (lane == 0u) removed = 0u;
            barrier();
            for (uint item = lane; item < max(GROUP, lanes); item += lanes) {  // lanes share the boxes selected before
                uint m = item % GROUP;
                bool gone = false;
                for (uint p = item / GROUP; m < members && p < picked && !gone; p += max(lanes / GROUP, 1u))
                    gone = overlap(corners(boxes.v[first_box + picks.v[chosen + p]]), group_boxes[m]) > args.iou_threshold;
                if (gone) atomicOr(removed, 1u << m);
            }
            for (uint item = lane; item < members * GROUP; item += lanes) {
                uint m = item / GROUP, other = item % GROUP;
                if (other < m && overlap(group_boxes[other], group_boxes[m]) > args.iou_threshold)
                    atomicOr(overlapped[m], 1u << other);
            }
            barrier();
            uint kept = 0u, gone = removed;
            for (uint m = 0u; m < members && picked + bitCount(kept) < args.most; ++m)
                kept |= uint((gone >> m & 1u) == 0u && (overlapped[m] & kept) == 0u) << m;
            for (uint m = lane; m < members; m += lanes)
                if ((kept >> m & 1u) != 0u)
                    picks.v[chosen + picked + bitCount(kept & ((1u << m) - 1u))] = places[from + begin + m];
            picked += bitCount(kept);
            memoryBarrierBuffer();
            barrier();
        }
        next = 0u;
    }
    if (lane == 0u) Counts(operand(args.counts, 4)).v[pair] = picked;
}
