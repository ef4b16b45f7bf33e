// ONNX NonMaxSuppression: the workgroup of a (batch, class) pair repeatedly picks the best remaining box, and removes
// those that overlap it by more than iou_threshold. `live` holds the remaining scores; picks are (batch, class, box)
// int64 rows.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 boxes; uvec2 scores; uvec2 live; uvec2 picks; uvec2 counts; \
    uint pairs; uint classes; uint box_count; uint most; float iou_threshold; float score_threshold; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint CENTERED = 0;
layout(constant_id = 5) const uint HAS_THRESHOLD = 0;

TENSOR(float, Floats)
TENSOR(vec4, Boxes)
TENSOR(int64_t, Longs)

const uint NONE = 0xffffffffu;
#define DEAD uintBitsToFloat(0xff800000u)  // minus infinity: never selected
shared float best_score[gl_WorkGroupSize.x];
shared uint best_box[gl_WorkGroupSize.x];

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
    Floats scores = Floats(operand(args.scores, 1)), live = Floats(operand(args.live, 2));
    Longs picks = Longs(operand(args.picks, 3));
    uint first = batch * args.box_count, mine = pair * args.box_count;
    for (uint n = lane; n < args.box_count; n += gl_WorkGroupSize.x) {
        float score = scores.v[mine + n];
        live.v[mine + n] = HAS_THRESHOLD != 0u && !(score > args.score_threshold) ? DEAD : score;
    }
    uint picked = 0u;
    for (; picked < args.most; ++picked) {
        float score = DEAD;
        uint box = NONE;
        for (uint n = lane; n < args.box_count; n += gl_WorkGroupSize.x)
            if (live.v[mine + n] > score) {
                score = live.v[mine + n];
                box = n;
            }
        best_score[lane] = score;
        best_box[lane] = box;
        barrier();
        [[dont_unroll]] for (uint half_width = gl_WorkGroupSize.x / 2u; half_width > 0u; half_width /= 2u) {
            if (lane < half_width) {
                float other = best_score[lane + half_width];
                uint other_box = best_box[lane + half_width];
                if (other > best_score[lane] || (other == best_score[lane] && other_box < best_box[lane])) {
                    best_score[lane] = other;
                    best_box[lane] = other_box;
                }
            }
            barrier();
        }
        uint chosen = best_box[0];
        barrier();
        if (chosen == NONE) break;
        if (lane < 3u)
            picks.v[(pair * args.most + picked) * 3u + lane] =
                int64_t(lane == 0u ? batch : lane == 1u ? class_index : chosen);
        vec4 kept = corners(boxes.v[first + chosen]);
        for (uint n = lane; n < args.box_count; n += gl_WorkGroupSize.x)
            if (n == chosen || overlap(kept, corners(boxes.v[first + n])) > args.iou_threshold) live.v[mine + n] = DEAD;
    }
    if (lane == 0u) Longs(operand(args.counts, 4)).v[pair] = int64_t(picked);
}
