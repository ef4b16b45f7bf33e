// The sampled windows of a deformable convolution (ONNX DeformConv) as columns [n, channels, taps, pixels]: bilinear
// samples of x [n, channels, height, width] at the taps' positions plus their offsets, times the mask.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define ARGS_BODY { uvec2 x; uvec2 offset; uvec2 mask; WRITTEN y; uint total; uint height; uint width; \
    uint offset_groups; uint group_channels; uint stride_h; uint stride_w; uint dilation_h; uint dilation_w; \
    int pad_top; int pad_left; FIELDS8(dim) FIELDS8(mul) FIELDS8(shift) }
#include "args.glsl"
#include "elements.glsl"
#include "real.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint HAS_MASK = 0;

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    // dimensions: n, channels, kernel height, kernel width, out height, out width
    uint dims[8] = READ8(dim), muls[8] = READ8(mul), shifts[8] = READ8(shift), at[8];
    COORDINATES(6u, id, dims, muls, shifts, at)
    uint taps = dims[2] * dims[3], pixels = dims[4] * dims[5];
    uint tap = at[2] * dims[3] + at[3], pixel = at[4] * dims[5] + at[5];
    uint group = at[0] * args.offset_groups + at[1] / args.group_channels;
    InTensor offset = InTensor(operand(args.offset, 1));
    REAL shift_h = load_element(offset.v[((group * taps + tap) * 2u) * pixels + pixel]);
    REAL shift_w = load_element(offset.v[((group * taps + tap) * 2u + 1u) * pixels + pixel]);
    REAL h = REAL(int(at[4] * args.stride_h + at[2] * args.dilation_h) - args.pad_top) + shift_h;
    REAL w = REAL(int(at[5] * args.stride_w + at[3] * args.dilation_w) - args.pad_left) + shift_w;
    REAL sum = 0.0;
    // zero outside; the test also keeps the conversions to int within their defined range
    if (h > -1.0 && w > -1.0 && h < REAL(args.height) && w < REAL(args.width)) {
        InTensor x = InTensor(operand(args.x, 0));
        uint plane = (at[0] * dims[1] + at[1]) * args.height * args.width;
        int top = int(floor(h)), left = int(floor(w));
        for (int i = 0; i < 2; ++i) {
            for (int j = 0; j < 2; ++j) {
                uint row = uint(top + i), col = uint(left + j);
                if (row >= args.height || col >= args.width) continue;
                REAL weight = (1.0 - abs(h - REAL(top + i))) * (1.0 - abs(w - REAL(left + j)));
                sum += weight * load_element(x.v[plane + row * args.width + col]);
            }
        }
    }
    if (HAS_MASK != 0u) sum *= load_element(InTensor(operand(args.mask, 2)).v[(group * taps + tap) * pixels + pixel]);
    OutTensor(operand(args.y, 3)).v[id] = store_element(sum);
}
