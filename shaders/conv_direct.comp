// Convolution of any kind, NCHW, one output element per lane: the fallback for shapes that no faster kernel supports (few channels
// per group).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 w; WRITTEN y; EXTRA_OPERANDS \
    uint channels; uint height; uint width; \
    uint out_channels; uint out_height; uint out_width; uint groups; uint total; \
    uint kernel_h; uint kernel_w; uint stride_h; uint stride_w; \
    uint dilation_h; uint dilation_w; uint pad_top; uint pad_left; uint y_batch; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

TENSOR(T, Elements)

// channels and out_channels are those of one group; total counts output elements.
void main() {
    uint o = flat_lane();
    if (o >= args.total) return;
    uint pixels = args.out_height * args.out_width, all_channels = args.out_channels * args.groups;
    uint pixel = o % pixels, channel = o / pixels % all_channels, image = o / pixels / all_channels;
    int left = int(pixel % args.out_width * args.stride_w) - int(args.pad_left);
    int top = int(pixel / args.out_width * args.stride_h) - int(args.pad_top);
    Elements x = Elements(operand(args.x, 0)), w = Elements(operand(args.w, 1)), y = Elements(operand(args.y, 2));

    uint plane = args.height * args.width;
    uint x0 = (image * args.groups + channel / args.out_channels) * args.channels * plane;
    uint w_at = channel * args.channels * args.kernel_h * args.kernel_w;
    float acc = 0.0;
    for (uint c = 0; c < args.channels; c++) {
        for (uint tap_h = 0; tap_h < args.kernel_h; tap_h++) {
            for (uint tap_w = 0; tap_w < args.kernel_w; tap_w++, w_at++) {
                int h = top + int(tap_h * args.dilation_h), v = left + int(tap_w * args.dilation_w);
                if (uint(h) < args.height && uint(v) < args.width)
                    acc += float(x.v[x0 + c * plane + uint(h) * args.width + uint(v)]) * float(w.v[w_at]);
            }
        }
    }
    y.v[image * args.y_batch + channel * pixels + pixel] = T(epilogue(acc, o, channel, pixel));
}
