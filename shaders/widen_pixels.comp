// A float16 image [n, channels, height, width] as [n, height, wide_width, UNITS * 8]: a wide pixel holds UNITS * 8 / PADDED
// neighbouring pixels of a row with PADDED channels each; the first one starts pad_left pixels before the row. Missing channels
// and pixels outside the image are zero. A lane writes one unit of eight elements.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; \
    uint total; uint width; uint pad_left; \
    uint wide_width; uint wide_width_mul; uint wide_width_shift; uint height; uint height_mul; uint height_shift; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint CHANNELS = 3;
layout(constant_id = 5) const uint PADDED = 4;
layout(constant_id = 6) const uint UNITS = 1;

TENSOR(float16_t, Elements)
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Units { uvec4 v[]; };

void main() {
    uint at = flat_lane();
    if (at >= args.total) return;
    Elements x = Elements(operand(args.x, 0));
    uint unit = at % UNITS, wide, h;
    uint row = fast_divmod(at / UNITS, args.wide_width, args.wide_width_mul, args.wide_width_shift, wide);
    uint image = fast_divmod(row, args.height, args.height_mul, args.height_shift, h);
    uint plane = args.height * args.width, line = image * CHANNELS * plane + h * args.width;
    uint left = wide * (UNITS * 8 / PADDED) - args.pad_left;  // unsigned: a column before the image wraps to a huge number
    f16vec2 pairs[4];
    [[unroll]] for (uint i = 0; i < 8; i++) {
        uint channel = (unit * 8 + i) % PADDED, column = left + (unit * 8 + i) / PADDED;
        bool inside = channel < CHANNELS && column < args.width;
        // Lanes outside the image load a valid element instead, so that loads need no branch.
        float16_t value = x.v[line + (inside ? channel * plane + column : 0)];
        pairs[i / 2][i % 2] = inside ? value : float16_t(0.0);
    }
    Units(operand(args.y, 1)).v[at] =
        uvec4(packFloat2x16(pairs[0]), packFloat2x16(pairs[1]), packFloat2x16(pairs[2]), packFloat2x16(pairs[3]));
}
