// Max and average pooling of x [images, height, width, channels] to y [images, out_height, out_width, channels]: channels
// last, float16 with float arithmetic or the maximum of 8-bit integers, with the results of pool.comp. A lane computes a UNIT of
// channels of a pixel, 16 bytes; lanes run over (image, row, column, unit) without gaps.
//
// Defines: as for pool.comp: IN_T float16_t, COMPUTE_T float, and MAX_POOL (with LOWEST and PROPAGATE_NAN) or AVERAGE_POOL; or with
// BYTES, IN_T int8_t or uint8_t, COMPUTE_T int or uint, and MAX_POOL.
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

#ifdef BYTES
const uint UNIT = 16u;
COMPUTE_T element_of(uvec4 words, uint c) { return bitfieldExtract(COMPUTE_T(words[c / 4u]), int(c % 4u * 8u), 8); }
void set_element(inout uvec4 words, uint c, COMPUTE_T v) { words[c / 4u] = bitfieldInsert(words[c / 4u], uint(v), int(c % 4u * 8u), 8); }
#else
const uint UNIT = 8u;
float element_of(uvec4 words, uint c) { return float(unpackFloat2x16(words[c / 2u])[c % 2u]); }
void set_element(inout uvec4 words, uint c, float v) {
    f16vec2 pair = unpackFloat2x16(words[c / 2u]);
    pair[c % 2u] = float16_t(v);
    words[c / 2u] = packFloat2x16(pair);
}
#endif

void load_unit(uvec2 x, uint unit, out COMPUTE_T values[UNIT]) {
    if (ALIGNED == 1u) {
        uvec4 words = Units(x).v[unit];
        [[unroll]] for (uint c = 0u; c < UNIT; ++c) values[c] = element_of(words, c);
    } else {
        [[unroll]] for (uint c = 0u; c < UNIT; ++c) values[c] = load_element(InTensor(x).v[UNIT * unit + c]);
    }
}

void store_unit(uvec2 y, uint unit, COMPUTE_T values[UNIT]) {
    if (ALIGNED == 1u) {
        uvec4 words = uvec4(0u);
        [[unroll]] for (uint c = 0u; c < UNIT; ++c) set_element(words, c, values[c]);
        Units(y).v[unit] = words;
    } else {
        [[unroll]] for (uint c = 0u; c < UNIT; ++c) OutTensor(y).v[UNIT * unit + c] = store_element(values[c]);
    }
}

// total counts lanes; units is channels / UNIT.
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

    COMPUTE_T acc[UNIT];
#ifdef MAX_POOL
    [[unroll]] for (uint c = 0u; c < UNIT; ++c) acc[c] = LOWEST;  // a window without elements
#else
    [[unroll]] for (uint c = 0u; c < UNIT; ++c) acc[c] = 0.0;
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
            COMPUTE_T values[UNIT];
            load_unit(x, (line + (w < args.width ? w : 0u)) * args.units + unit, values);
            [[unroll]] for (uint c = 0u; c < UNIT; ++c) {
#ifdef MAX_POOL
                if (inside && exceeds(values[c], acc[c])) acc[c] = values[c];
#else
                acc[c] += inside ? values[c] : 0.0;
#endif
            }
        }
    }
#ifdef AVERAGE_POOL
    // Positions in the end padding count; those of a ceil-mode window beyond it do not.
    bool all = COUNT_INCLUDE_PAD != 0u;
    float count = float(count_inside(h0, KERNEL_H, args.dilation_h, all ? h0 : 0, int(args.height + (all ? args.pad_end_h : 0u))))
        * float(count_inside(w0, KERNEL_W, args.dilation_w, all ? w0 : 0, int(args.width + (all ? args.pad_end_w : 0u))));
    [[unroll]] for (uint c = 0u; c < UNIT; ++c) acc[c] /= max(count, 1.0);  // 0 for a window without elements
#endif
    store_unit(operand(args.y, 1), id, acc);
}
