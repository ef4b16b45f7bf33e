// ONNX MaxRoiPool: y[r, c, ph, pw] is the maximum of x[image, c] inside one bin of region r, 0 for an empty bin. A
// region is (image, x1, y1, x2, y2); its corners are rounded to pixels, and it holds both of them.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 rois; WRITTEN y; WRITTEN fault; uint total; uint channels; uint height; uint width; \
    uint batches; uint out_height; uint out_width; float spatial_scale; uint fault_code; }
#include "args.glsl"
#include "elements.glsl"
#include "fault.glsl"
#include "workgroup.glsl"

// halves away from 0
int nearest(float v) { return int(clamp(sign(v) * floor(abs(v) + 0.5), -1e6, 1e6)); }

// Pixels [first, end) of bin `at` of `bins` from `low` to `high` on an axis of `size`: floor(at * extent / bins) and
// ceil((at + 1) * extent / bins), in integers, since a float's quotient may be rounded.
ivec2 bin_of(int low, int high, uint at, uint bins, uint size) {
    uint extent = uint(max(high - low + 1, 1)), whole = extent / bins, rest = extent % bins;
    uint first = at * whole + at * rest / bins, end = (at + 1u) * whole + ((at + 1u) * rest + bins - 1u) / bins;
    ivec2 range = ivec2(int(first), int(end)) + low;
    return clamp(range, ivec2(0), ivec2(int(size)));
}

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint pw = id % args.out_width, ph = id / args.out_width % args.out_height;
    uint channel = id / (args.out_width * args.out_height) % args.channels;
    uint region = id / (args.out_width * args.out_height * args.channels);
    InTensor rois = InTensor(operand(args.rois, 1)), x = InTensor(operand(args.x, 0));
    int box[5];
    [[unroll]] for (uint k = 0u; k < 5u; ++k) {
        precise float corner = float(load_element(rois.v[region * 5u + k])) * (k == 0u ? 1.0 : args.spatial_scale);
        box[k] = nearest(corner);
    }
    ivec2 rows = bin_of(box[2], box[4], ph, args.out_height, args.height);
    ivec2 cols = bin_of(box[1], box[3], pw, args.out_width, args.width);
    if (uint(box[0]) >= args.batches) note_fault(operand(args.fault, 3), args.fault_code);
    uint image = uint(clamp(box[0], 0, int(args.batches) - 1));
    uint base = (image * args.channels + channel) * args.height * args.width;
    COMPUTE_T greatest = COMPUTE_T(0);
    bool first = true;
    for (int row = rows.x; row < rows.y; ++row) {
        for (int col = cols.x; col < cols.y; ++col) {
            COMPUTE_T v = load_element(x.v[base + uint(row) * args.width + uint(col)]);
            if (first || v > greatest || v != v) greatest = v;
            if (v != v) {  // NaN is the maximum
                OutTensor(operand(args.y, 2)).v[id] = store_element(v);
                return;
            }
            first = false;
        }
    }
    OutTensor(operand(args.y, 2)).v[id] = store_element(greatest);
}
