// Depthwise 2-D convolution, channels last (NHWC), float16 with float32 sums: a lane computes eight channels of STRIP
// neighbours in a row, so that an input column that several of them need is loaded once. Weights are [taps, channels]. Lanes
// run over (image, row, strip, eight channels) without gaps.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#define ARGS_BODY { uvec2 x; uvec2 w; WRITTEN y; EXTRA_OPERANDS \
    uint height; uint width; uint out_width; uint total; uint channels; \
    uint units; uint units_mul; uint units_shift; uint strips; uint strips_mul; uint strips_shift; \
    uint out_height; uint out_height_mul; uint out_height_shift; \
    uint stride_h; uint dilation_h; uint pad_top; uint pad_left; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"
#include "results.glsl"

layout(constant_id = 4) const uint KERNEL_H = 3;
layout(constant_id = 5) const uint KERNEL_W = 3;
layout(constant_id = 6) const uint STRIDE_W = 1;
layout(constant_id = 7) const uint DILATION_W = 1;
layout(constant_id = 8) const uint STRIP = 4;
layout(constant_id = 9) const uint STORE_VECTOR = 1;  // eight results are aligned

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Units { uvec4 v[]; };

void unpack(uvec4 units, out float values[8]) {
    [[unroll]] for (uint i = 0; i < 4; i++) {
        vec2 pair = unpackHalf2x16(units[i]);
        values[2 * i] = pair.x;
        values[2 * i + 1] = pair.y;
    }
}

// total counts lanes; units is channels / 8.
void main() {
    uint at = flat_lane();
    bool inside = at < args.total;
    at = min(at, args.total - 1);
    uint unit, strip, row;
    uint rest = fast_divmod(at, args.units, args.units_mul, args.units_shift, unit);
    rest = fast_divmod(rest, args.strips, args.strips_mul, args.strips_shift, strip);
    uint image = fast_divmod(rest, args.out_height, args.out_height_mul, args.out_height_shift, row);
    uint column0 = strip * STRIP;
    Units x = Units(operand(args.x, 0)), w = Units(operand(args.w, 1));

    float acc[STRIP * 8];
    [[unroll]] for (uint i = 0; i < STRIP * 8; i++) acc[i] = 0.0;
    int left = int(column0 * STRIDE_W) - int(args.pad_left);
    [[unroll]] for (uint tap_h = 0; tap_h < KERNEL_H; tap_h++) {
        uint h = uint(int(row * args.stride_h + tap_h * args.dilation_h) - int(args.pad_top));
        bool row_valid = h < args.height;
        uint row_at = ((image * args.height + (row_valid ? h : 0)) * args.width) * args.units + unit;
        float weights[KERNEL_W * 8];
        [[unroll]] for (uint tap_w = 0; tap_w < KERNEL_W; tap_w++) {
            float eight[8];
            unpack(w.v[(tap_h * KERNEL_W + tap_w) * args.units + unit], eight);
            [[unroll]] for (uint c = 0; c < 8; c++) weights[tap_w * 8 + c] = eight[c];
        }
        [[unroll]] for (uint i = 0; i < (STRIP - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1; i++) {
            uint v = uint(left + int(i));
            bool valid = row_valid && v < args.width;
            float eight[8];
            // Taps outside of the image load a valid element, which is then replaced by zero.
            unpack(x.v[row_at + (v < args.width ? v * args.units : 0)], eight);
            [[unroll]] for (uint s = 0; s < STRIP; s++) {
                if (i >= s * STRIDE_W && (i - s * STRIDE_W) % DILATION_W == 0 && (i - s * STRIDE_W) / DILATION_W < KERNEL_W) {
                    [[unroll]] for (uint c = 0; c < 8; c++)
                        acc[s * 8 + c] += weights[(i - s * STRIDE_W) / DILATION_W * 8 + c] * (valid ? eight[c] : 0.0);
                }
            }
        }
    }

    [[unroll]] for (uint s = 0; s < STRIP; s++) {
        uint column = column0 + s;
        if (inside && column < args.out_width) {
            uint pixel = (image * args.out_height + row) * args.out_width + column;
            uint o = pixel * args.channels + 8 * unit;
            vec4 low, high;
            [[unroll]] for (uint c = 0; c < 4; c++) {
                low[c] = acc[s * 8 + c];
                high[c] = acc[s * 8 + 4 + c];
            }
            epilogue_eight(low, high, o, pixel, 8 * unit);
            if (STORE_VECTOR == 1) {
                store_results(operand(args.y, 2), o, low, high);
            } else {
                [[unroll]] for (uint c = 0; c < 8; c++) Results(operand(args.y, 2)).v[o + c] = R(c < 4 ? low[c & 3] : high[c & 3]);
            }
        }
    }
}
