// Depthwise 2-D convolution, NCHW (one input channel per group): a lane computes STRIP vertical neighbours, so that an input
// row that several of them need is loaded once. Lanes run over (image, channel, strip, column) without gaps.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#define ARGS_BODY { uvec2 x; uvec2 w; WRITTEN y; EXTRA_OPERANDS \
    uint height; uint width; uint out_height; uint multiplier; uint total; \
    uint out_width; uint out_width_mul; uint out_width_shift; uint strips; uint strips_mul; uint strips_shift; \
    uint out_channels; uint out_channels_mul; uint out_channels_shift; \
    uint stride_w; uint dilation_w; uint pad_top; uint pad_left; uint y_batch; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 4) const uint KERNEL_H = 3;
layout(constant_id = 5) const uint KERNEL_W = 3;
layout(constant_id = 6) const uint STRIDE_H = 1;
layout(constant_id = 7) const uint DILATION_H = 1;
layout(constant_id = 8) const uint STRIP = 4;

TENSOR(T, Elements)

// total counts lanes; multiplier is the number of output channels per input channel.
void main() {
    uint at = flat_lane();
    bool inside = at < args.total;
    at = min(at, args.total - 1);
    uint column, strip, channel;
    uint rest = fast_divmod(at, args.out_width, args.out_width_mul, args.out_width_shift, column);
    uint plane = fast_divmod(rest, args.strips, args.strips_mul, args.strips_shift, strip);
    uint image = fast_divmod(plane, args.out_channels, args.out_channels_mul, args.out_channels_shift, channel);
    uint row0 = strip * STRIP;
    uint x0 = plane / args.multiplier * args.height * args.width;
    Elements x = Elements(operand(args.x, 0)), w = Elements(operand(args.w, 1)), y = Elements(operand(args.y, 2));

    float weights[KERNEL_H * KERNEL_W];
    [[unroll]] for (uint t = 0; t < KERNEL_H * KERNEL_W; t++) weights[t] = float(w.v[channel * KERNEL_H * KERNEL_W + t]);
    float acc[STRIP];
    [[unroll]] for (uint s = 0; s < STRIP; s++) acc[s] = 0.0;

    // Taps outside of the image load a valid element, which is then replaced by zero.
    int top = int(row0 * STRIDE_H) - int(args.pad_top), left = int(column * args.stride_w) - int(args.pad_left);
    uint column_at[KERNEL_W];
    bool column_valid[KERNEL_W];
    [[unroll]] for (uint tap_w = 0; tap_w < KERNEL_W; tap_w++) {
        uint v = uint(left + int(tap_w * args.dilation_w));
        column_valid[tap_w] = v < args.width;
        column_at[tap_w] = x0 + (column_valid[tap_w] ? v : 0);
    }
    [[unroll]] for (uint i = 0; i < (STRIP - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1; i++) {
        uint h = uint(top + int(i));
        bool row_valid = h < args.height;
        uint row_at = row_valid ? h * args.width : 0;
        [[unroll]] for (uint tap_w = 0; tap_w < KERNEL_W; tap_w++) {
            float value = float(x.v[column_at[tap_w] + row_at]);
            value = row_valid && column_valid[tap_w] ? value : 0.0;
            [[unroll]] for (uint s = 0; s < STRIP; s++) {
                if (i >= s * STRIDE_H && (i - s * STRIDE_H) % DILATION_H == 0 && (i - s * STRIDE_H) / DILATION_H < KERNEL_H)
                    acc[s] += weights[(i - s * STRIDE_H) / DILATION_H * KERNEL_W + tap_w] * value;
            }
        }
    }

    uint pixels = args.out_height * args.out_width;
    [[unroll]] for (uint s = 0; s < STRIP; s++) {
        uint row = row0 + s;
        if (inside && row < args.out_height) {
            uint pixel = row * args.out_width + column;
            y.v[image * args.y_batch + channel * pixels + pixel] = T(epilogue(acc[s], plane * pixels + pixel, channel, pixel));
        }
    }
}
