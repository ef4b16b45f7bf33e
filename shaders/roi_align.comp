// ONNX RoiAlign: y[r, c, ph, pw] pools bilinear samples of x[batch_indices[r], c] inside one bin of a region. MAXIMUM
// 1: the maximum of the weighted neighbours, as ONNX Runtime defines mode "max"; 0: the mean of the samples.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 rois; uvec2 indices; WRITTEN y; WRITTEN fault; uint total; uint channels; \
    uint height; uint width; uint batches; uint out_height; uint out_width; int sampling_ratio; \
    float spatial_scale; float offset; uint fault_code; }
#include "args.glsl"
#include "elements.glsl"
#include "real.glsl"
#define NEGATIVE false
#define FAULT 4
#include "indices.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint MAXIMUM = 0;
// limit of a bin's samples along an axis, where the region's size determines their number
const float MOST_SAMPLES = 65536.0;

// The range [first, end) of `samples` at low + (i + 0.5) * bin / samples that may lie on an axis of `size`, plus a few outside;
// the others are 0.
ivec2 samples_on(REAL low, REAL bin, int samples, uint size) {
    if (!(bin > 0.0) || samples <= 256) return ivec2(0, samples);
    REAL each = REAL(samples) / bin;
    REAL2 range = clamp(REAL2(-1.0 - low, REAL(size) - low) * each + REAL2(-3.0, 3.0), 0.0, REAL(samples));
    return ivec2(range);
}

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint pw = id % args.out_width, ph = id / args.out_width % args.out_height;
    uint channel = id / (args.out_width * args.out_height) % args.channels;
    uint region = id / (args.out_width * args.out_height * args.channels);
    InTensor rois = InTensor(operand(args.rois, 1));
    InTensor x = InTensor(operand(args.x, 0));
    REAL4 box;
    [[unroll]] for (uint k = 0u; k < 4u; ++k)
        box[k] = REAL(load_element(rois.v[region * 4u + k])) * args.spatial_scale - args.offset;
    REAL roi_width = box.z - box.x, roi_height = box.w - box.y;
    if (args.offset == 0.0) {
        roi_width = max(roi_width, 1.0);
        roi_height = max(roi_height, 1.0);
    }
    REAL bin_height = roi_height / REAL(args.out_height), bin_width = roi_width / REAL(args.out_width);
    REAL2 counts = REAL2(REAL(args.sampling_ratio));
    if (args.sampling_ratio <= 0) {
        counts = ceil(REAL2(bin_height, bin_width));
        bool few = counts.x <= MOST_SAMPLES && counts.y <= MOST_SAMPLES;
        if (!few || isnan(counts.x) || isnan(counts.y)) {
            note_fault(operand(args.fault, FAULT), args.fault_code);
            counts = REAL2(0.0);
        }
    }
    int rows = int(max(counts.x, 0.0)), cols = int(max(counts.y, 0.0));
    ivec2 on_rows = samples_on(box.y + REAL(ph) * bin_height, bin_height, rows, args.height);
    ivec2 on_cols = samples_on(box.x + REAL(pw) * bin_width, bin_width, cols, args.width);
    uint image = read_index(IndexWords(operand(args.indices, 2)), region, args.batches);
    uint base = (image * args.channels + channel) * args.height * args.width;

    REAL result = 0.0;
    bool first = on_rows == ivec2(0, rows) && on_cols == ivec2(0, cols);  // samples that are left out are 0
    for (int i = on_rows.x; i < on_rows.y; ++i) {
        for (int j = on_cols.x; j < on_cols.y; ++j) {
            REAL v = box.y + REAL(ph) * bin_height + (REAL(i) + 0.5) * bin_height / REAL(rows);
            REAL u = box.x + REAL(pw) * bin_width + (REAL(j) + 0.5) * bin_width / REAL(cols);
            REAL4 value = REAL4(0.0);
            if (v >= -1.0 && v <= REAL(args.height) && u >= -1.0 && u <= REAL(args.width)) {
                v = max(v, 0.0);
                u = max(u, 0.0);
                uint top = min(uint(v), args.height - 1u), left = min(uint(u), args.width - 1u);
                uint bottom = min(top + 1u, args.height - 1u), right = min(left + 1u, args.width - 1u);
                REAL down = top == bottom ? 0.0 : v - REAL(top), across = left == right ? 0.0 : u - REAL(left);
                value = REAL4((1.0 - down) * (1.0 - across) * REAL(load_element(x.v[base + top * args.width + left])),
                             (1.0 - down) * across * REAL(load_element(x.v[base + top * args.width + right])),
                             down * (1.0 - across) * REAL(load_element(x.v[base + bottom * args.width + left])),
                             down * across * REAL(load_element(x.v[base + bottom * args.width + right])));
            }
            if (MAXIMUM != 0u) {
                REAL greatest = max(max(value.x, value.y), max(value.z, value.w));
                result = first ? greatest : max(result, greatest);
            } else {
                result += value.x + value.y + value.z + value.w;
            }
            first = false;
        }
    }
    if (MAXIMUM == 0u) result /= max(REAL(rows) * REAL(cols), 1.0);
    OutTensor(operand(args.y, 3)).v[id] = store_element(COMPUTE_T(result));
}
