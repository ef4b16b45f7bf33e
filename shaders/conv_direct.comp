// Convolution of any kind in one, two or three dimensions, NC[D]HW, one output element per lane: the fallback for
// shapes that no faster kernel supports (few channels per group, three dimensions).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 w; WRITTEN y; EXTRA_OPERANDS \
    uint channels; uint depth; uint height; uint width; \
    uint out_channels; uint out_depth; uint out_height; uint out_width; uint groups; uint total; \
    uint kernel_d; uint kernel_h; uint kernel_w; uint stride_d; uint stride_h; uint stride_w; \
    uint dilation_d; uint dilation_h; uint dilation_w; uint pad_front; uint pad_top; uint pad_left; uint y_batch; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

TENSOR(T, Elements)

// channels and out_channels are those of one group; total counts output elements.
void main() {
    uint o = flat_lane();
    if (o >= args.total) return;
    uint pixels = args.out_depth * args.out_height * args.out_width, all_channels = args.out_channels * args.groups;
    uint pixel = o % pixels, channel = o / pixels % all_channels, image = o / pixels / all_channels;
    int left = int(pixel % args.out_width * args.stride_w) - int(args.pad_left);
    int top = int(pixel / args.out_width % args.out_height * args.stride_h) - int(args.pad_top);
    int front = int(pixel / args.out_width / args.out_height * args.stride_d) - int(args.pad_front);
    Elements x = Elements(operand(args.x, 0)), w = Elements(operand(args.w, 1)), y = Elements(operand(args.y, 2));

    uint volume = args.depth * args.height * args.width;
    uint x0 = (image * args.groups + channel / args.out_channels) * args.channels * volume;
    uint w_at = channel * args.channels * args.kernel_d * args.kernel_h * args.kernel_w;
    float acc = 0.0;
    for (uint c = 0; c < args.channels; c++) {
        for (uint tap_d = 0; tap_d < args.kernel_d; tap_d++) {
            for (uint tap_h = 0; tap_h < args.kernel_h; tap_h++) {
                for (uint tap_w = 0; tap_w < args.kernel_w; tap_w++, w_at++) {
                    int d = front + int(tap_d * args.dilation_d), h = top + int(tap_h * args.dilation_h), v = left + int(tap_w * args.dilation_w);
                    if (uint(d) < args.depth && uint(h) < args.height && uint(v) < args.width)
                        acc += float(x.v[x0 + c * volume + (uint(d) * args.height + uint(h)) * args.width + uint(v)]) * float(w.v[w_at]);
                }
            }
        }
    }
    y.v[image * args.y_batch + channel * pixels + pixel] = T(epilogue(acc, o, channel, pixel));
}
