// 2-D convolution, NCHW, as a matrix product by shared-memory tiles (shared_tile.glsl): rows are output channels, columns
// output pixels, and k runs over input channels and taps as the OIHW weights do. The input is read in place (implicit
// im2col). Workgroup z is ((image * groups + group) * splits + split); PARTIAL as in matmul_tiled.comp.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#define ARGS_BODY { uvec2 x; uvec2 w; WRITTEN y; EXTRA_OPERANDS \
    uint channels; uint height; uint width; uint out_channels; uint out_height; uint out_width; uint groups; \
    uint taps; uint taps_mul; uint taps_shift; uint kernel_w; uint kernel_w_mul; uint kernel_w_shift; \
    uint stride_h; uint stride_w; uint dilation_h; uint dilation_w; uint pad_top; uint pad_left; \
    uint splits; uint split_k; uint y_batch; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 11) const uint PARTIAL = 0;
layout(constant_id = 14) const uint ONE_TAP = 0;  // 1x1: a lane's pixel is computed once

TENSOR(T, Elements)
TENSOR(float, Partial)
layout(buffer_reference, std430, buffer_reference_align = 8) buffer WideElements { WIDE_T v[]; };
Elements x, w;
WideElements w_wide;
uint row0, x0, w0, k_size, k_end;
int top, left;  // where the receptive field of this lane's pixel starts; a lane loads the same column in every stage
bool pixel_inside;

float load_a(uint row, uint k) {
    return row0 + row < args.out_channels && k < k_end ? float(w.v[w0 + (row0 + row) * k_size + k]) : 0.0;
}
vec4 load_a_wide(uint row, uint k) {
    return row0 + row < args.out_channels && k < k_end ? vec4(w_wide.v[(w0 + (row0 + row) * k_size + k) / 4]) : vec4(0.0);
}
void begin_stage(uint k) {}
float load_b(uint column, uint k) {
    if (ONE_TAP == 1)
        return pixel_inside && k < k_end ? float(x.v[x0 + (k * args.height + uint(top)) * args.width + uint(left)]) : 0.0;
    uint tap, tap_w;
    uint channel = fast_divmod(k, args.taps, args.taps_mul, args.taps_shift, tap);
    uint tap_h = fast_divmod(tap, args.kernel_w, args.kernel_w_mul, args.kernel_w_shift, tap_w);
    int h = top + int(tap_h * args.dilation_h), v = left + int(tap_w * args.dilation_w);
    bool inside = pixel_inside && k < k_end && uint(h) < args.height && uint(v) < args.width;
    return inside ? float(x.v[x0 + (channel * args.height + uint(h)) * args.width + uint(v)]) : 0.0;
}
vec4 load_b_wide(uint column, uint k) { return vec4(0.0); }  // B_WIDE is never set: neighbours may lie in other rows
#include "shared_tile.glsl"

// channels and out_channels are those of one group.
void main() {
    uint split = group_id().z % args.splits, image_group = group_id().z / args.splits;
    uint image = image_group / args.groups, group = image_group % args.groups;
    uint pixels = args.out_height * args.out_width, column0 = group_id().x * TILE_N;
    row0 = group_id().y * TILE_M;
    x = Elements(operand(args.x, 0));
    w = Elements(operand(args.w, 1));
    w_wide = WideElements(operand(args.w, 1));
    k_size = args.channels * args.taps;
    x0 = image_group * args.channels * args.height * args.width;
    w0 = group * args.out_channels * k_size;
    k_end = min((split + 1) * args.split_k, k_size);
    uint load_pixel = column0 + gl_LocalInvocationIndex % TILE_N;
    pixel_inside = load_pixel < pixels;
    top = int(load_pixel / args.out_width * args.stride_h) - int(args.pad_top);
    left = int(load_pixel % args.out_width * args.stride_w) - int(args.pad_left);
    if (ONE_TAP == 1) pixel_inside = pixel_inside && uint(top) < args.height && uint(left) < args.width;
    multiply_tile(split * args.split_k, k_end);

    uint y0 = image * args.y_batch + group * args.out_channels * pixels;
    uint o0 = image_group * args.out_channels * pixels, partial0 = split * (group_count().z / args.splits * args.out_channels * pixels);
    [[unroll]] for (uint i = 0; i < MICRO_M; i++) {
        [[unroll]] for (uint j = 0; j < MICRO_N; j++) {
            uint channel = row0 + micro_row(i), pixel = column0 + micro_column(j), at = channel * pixels + pixel;
            if (channel < args.out_channels && pixel < pixels) {
                float v = acc[i * MICRO_N + j];
                if (PARTIAL == 1) Partial(operand(args.y, 2)).v[partial0 + o0 + at] = v;
                else Elements(operand(args.y, 2)).v[y0 + at] = T(epilogue(v, o0 + at, group * args.out_channels + channel, pixel));
            }
        }
    }
}
