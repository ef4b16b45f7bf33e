// CropAndResize of com.microsoft: y[r, c, i, j] is x[indices[r], c] at a position in box r, whose corners lie in [0, 1]
// from the first to the last pixel. NEAREST 1: the nearest pixel (halves away from 0), else the mean of its neighbours
// by distance.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 rois; uvec2 indices; WRITTEN y; WRITTEN fault; uint total; uint channels; \
    uint height; uint width; uint batches; uint out_height; uint out_width; float outside; uint fault_code; }
#include "args.glsl"
#include "elements.glsl"
#define NEGATIVE false
#define FAULT 4
#include "indices.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint NEAREST = 0;

// The position of sample `at` of `count` on an axis of `size`; the last one is exactly the box's end, despite rounding.
float place(float low, float high, uint at, uint count, uint size) {
    float last = float(size - 1u);
    if (count == 1u) return 0.5 * (low + high) * last;
    if (at + 1u == count) return high * last;
    return low * last + float(at) * ((high - low) * last / float(count - 1u));
}

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint j = id % args.out_width, i = id / args.out_width % args.out_height;
    uint channel = id / (args.out_width * args.out_height) % args.channels;
    uint region = id / (args.out_width * args.out_height * args.channels);
    InTensor rois = InTensor(operand(args.rois, 1));
    InTensor x = InTensor(operand(args.x, 0));
    OutTensor y = OutTensor(operand(args.y, 3));
    vec4 box;
    [[unroll]] for (uint k = 0u; k < 4u; ++k) box[k] = float(load_element(rois.v[region * 4u + k]));
    uint image = read_index(IndexWords(operand(args.indices, 2)), region, args.batches);
    float v = place(box.x, box.z, i, args.out_height, args.height);
    float u = place(box.y, box.w, j, args.out_width, args.width);
    if (!(v >= 0.0 && v <= float(args.height - 1u) && u >= 0.0 && u <= float(args.width - 1u))) {
        y.v[id] = store_element(COMPUTE_T(args.outside));
        return;
    }
    uint base = (image * args.channels + channel) * args.height * args.width;
    if (NEAREST != 0u) {
        y.v[id] = store_element(load_element(x.v[base + uint(v + 0.5) * args.width + uint(u + 0.5)]));
        return;
    }
    uint top = uint(floor(v)), bottom = uint(ceil(v)), left = uint(floor(u)), right = uint(ceil(u));
    float across = u - floor(u);
    float above = mix(float(load_element(x.v[base + top * args.width + left])),
                      float(load_element(x.v[base + top * args.width + right])), across);
    float below = mix(float(load_element(x.v[base + bottom * args.width + left])),
                      float(load_element(x.v[base + bottom * args.width + right])), across);
    y.v[id] = store_element(COMPUTE_T(mix(above, below, v - floor(v))));
}
