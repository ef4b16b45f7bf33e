// Max and average pooling of x [images, height, width, channels] to y [images, out_height, out_width, channels]: channels
// last, float16 with float arithmetic, with the results of pool.comp. A lane computes eight channels of a pixel; lanes run
// over (image, row, column, eight channels) without gaps.
//
// Defines: as for pool.comp: IN_T float16_t, COMPUTE_T float, and MAX_POOL (with LOWEST and PROPAGATE_NAN) or AVERAGE_POOL.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; \
    uint total; uint height; uint width; \
    uint units; uint units_mul; uint units_shift; \
    uint out_width; uint out_width_mul; uint out_width_shift; \
    uint out_height; uint out_height_mul; uint out_height_shift; \
    uint stride_h; uint stride_w; uint dilation_h; uint dilation_w; \
    int pad_h; int pad_w; uint pad_end_h; uint pad_end_w; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "pool.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint KERNEL_H = 1;
layout(constant_id = 5) const uint KERNEL_W = 1;
layout(constant_id = 6) const uint COUNT_INCLUDE_PAD = 0;
layout(constant_id = 7) const uint ALIGNED = 1;  // x and y are aligned to 16 bytes

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Units { uvec4 v[]; };

void load_eight(uvec2 x, uint unit, out float eight[8]) {
    if (ALIGNED == 1u) {
        uvec4 words = Units(x).v[unit];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            vec2 pair = vec2(unpackFloat2x16(words[i]));
            eight[2u * i] = pair.x;
            eight[2u * i + 1u] = pair.y;
        }
    } else {
        [[unroll]] for (uint c = 0u; c < 8u; ++c) eight[c] = load_element(InTensor(x).v[8u * unit + c]);
    }
}

void store_eight(uvec2 y, uint unit, float eight[8]) {
    if (ALIGNED == 1u) {
        uvec4 words;
        [[unroll]] for (uint i = 0u; i < 4u; ++i) words[i] = packFloat2x16(f16vec2(eight[2u * i], eight[2u * i + 1u]));
        Units(y).v[unit] = words;
    } else {
        [[unroll]] for (uint c = 0u; c < 8u; ++c) OutTensor(y).v[8u * unit + c] = store_element(eight[c]);
    }
}

// total counts lanes; units is channels / 8.
void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uvec2 x = operand(args.x, 0);
    uint unit, ow, oh;
    uint rest = fast_divmod(id, args.units, args.units_mul, args.units_shift, unit);
    rest = fast_divmod(rest, args.out_width, args.out_width_mul, args.out_width_shift, ow);
    uint image = fast_divmod(rest, args.out_height, args.out_height_mul, args.out_height_shift, oh);
    int h0 = int(oh * args.stride_h) - args.pad_h;
    int w0 = int(ow * args.stride_w) - args.pad_w;

    float acc[8];
#ifdef MAX_POOL
    [[unroll]] for (uint c = 0u; c < 8u; ++c) acc[c] = LOWEST;  // a window without elements
#else
    [[unroll]] for (uint c = 0u; c < 8u; ++c) acc[c] = 0.0;
#endif
    // Taps outside the image load a pixel inside, which is then ignored: without branches between them, loads overlap.
    uvec2 taps_h = taps_of(h0, KERNEL_H, args.dilation_h, args.height);
    uvec2 taps_w = taps_of(w0, KERNEL_W, args.dilation_w, args.width);
    for (uint kh = taps_h.x; kh < taps_h.y; ++kh) {
        uint h = uint(h0 + int(kh * args.dilation_h));  // a negative position wraps to a huge one
        bool row_inside = h < args.height;
        uint line = (image * args.height + (row_inside ? h : 0u)) * args.width;
        for (uint kw = taps_w.x; kw < taps_w.y; ++kw) {
            uint w = uint(w0 + int(kw * args.dilation_w));
            bool inside = row_inside && w < args.width;
            float eight[8];
            load_eight(x, (line + (w < args.width ? w : 0u)) * args.units + unit, eight);
            [[unroll]] for (uint c = 0u; c < 8u; ++c) {
#ifdef MAX_POOL
                if (inside && exceeds(eight[c], acc[c])) acc[c] = eight[c];
#else
                acc[c] += inside ? eight[c] : 0.0;
#endif
            }
        }
    }
#ifdef AVERAGE_POOL
    // Positions in the end padding count; those of a ceil-mode window beyond it do not.
    bool all = COUNT_INCLUDE_PAD != 0u;
    float count = float(count_inside(h0, KERNEL_H, args.dilation_h, all ? h0 : 0, int(args.height + (all ? args.pad_end_h : 0u))))
        * float(count_inside(w0, KERNEL_W, args.dilation_w, all ? w0 : 0, int(args.width + (all ? args.pad_end_w : 0u))));
    [[unroll]] for (uint c = 0u; c < 8u; ++c) acc[c] /= max(count, 1.0);  // 0 for a window without elements
#endif
    store_eight(operand(args.y, 1), id, acc);
}
