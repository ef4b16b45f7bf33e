// 2-D convolution, NCHW, float16 with float32 sums, as a matrix product on cooperative matrices: rows are output channels,
// columns are the pixels of all images, and k runs over taps, then channels (padded to a multiple of 8), as the packed
// weights do: [groups, out_channels, taps, padded channels]. The input is read in place (implicit im2col).
//
// WHOLE_TAPS: channels are a multiple of TILE_K, so that a stage lies within one tap. Workgroup z is
// (group * splits + split); PARTIAL stores sums to partials[split, image, channel, pixel].
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#define LANES_ALONG_COLUMNS
#include "cooperative.glsl"
#define ARGS_BODY { uvec2 x; uvec2 w; WRITTEN y; EXTRA_OPERANDS \
    uint channels; uint height; uint width; uint out_channels; uint groups; uint columns; \
    uint pixels; uint pixels_mul; uint pixels_shift; uint out_width; uint out_width_mul; uint out_width_shift; \
    uint padded; uint padded_mul; uint padded_shift; uint kernel_w; uint kernel_w_mul; uint kernel_w_shift; \
    uint stride_h; uint stride_w; uint dilation_h; uint dilation_w; uint pad_top; uint pad_left; \
    uint k_size; uint splits; uint split_k; uint y_batch; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 18) const uint WHOLE_TAPS = 1;
layout(constant_id = 19) const uint ONE_TAP = 0;  // 1x1 without padding: no bounds within the image

TENSOR(T, Elements)
TENSOR(float, Partial)
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Units { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer PartialUnits { vec4 v[]; };

Elements x;
Units w_units, y_units;
uint row0, column0, w0, k_end, plane, group;
uint image_at;      // offset in x of this lane's image and group; a lane loads the same column in every stage
int top, left;      // top left corner of its pixel's receptive field
bool column_inside;
uint stage_k, stage_at;  // WHOLE_TAPS: the first k of the stage's tap, and the tap's element of channel 0
bool stage_inside;

void find_tap(uint tap, out uint at, out bool inside) {
    if (ONE_TAP == 1) {
        at = image_at + uint(top) * args.width + uint(left);
        inside = column_inside;
        return;
    }
    uint tap_w, tap_h = fast_divmod(tap, args.kernel_w, args.kernel_w_mul, args.kernel_w_shift, tap_w);
    uint h = uint(top + int(tap_h * args.dilation_h)), v = uint(left + int(tap_w * args.dilation_w));
    inside = column_inside && h < args.height && v < args.width;
    at = image_at + h * args.width + v;
}

void begin_stage(uint k) {
    if (WHOLE_TAPS == 1) {
        uint channel, tap = 0;
        if (ONE_TAP == 0) tap = fast_divmod(k, args.padded, args.padded_mul, args.padded_shift, channel);
        stage_k = tap * args.padded;
        find_tap(tap, stage_at, stage_inside);
    }
}

uvec4 load_a(uint row, uint k, uint) {
    if (WHOLE_K == 0 && k >= k_end) return uvec4(0);
    return w_units.v[(w0 + min(row0 + row, args.out_channels - 1) * args.k_size + k) / 8];
}

uvec4 load_b(uint column, uint k) {
    uint at = stage_at, channel = k - stage_k;
    bool inside = stage_inside;
    if (WHOLE_TAPS == 0) {
        uint tap = fast_divmod(k, args.padded, args.padded_mul, args.padded_shift, channel);
        find_tap(tap, at, inside);
    }
    if (WHOLE_K == 0) inside = inside && k < k_end;
    // Lanes outside the image load a valid element instead, so that loads need no branch.
    at = inside ? at + channel * plane : 0;
    uint spacing = inside ? plane : 0;
    f16vec2 pairs[4];
    [[unroll]] for (uint i = 0; i < 4; i++) {
        [[unroll]] for (uint j = 0; j < 2; j++) {
            uint step = 2 * i + j;
            // With WHOLE_TAPS there are no padded channels.
            bool real = WHOLE_TAPS == 1 || (inside && channel + step < args.channels);
            pairs[i][j] = x.v[real ? at + step * spacing : 0];
            if (WHOLE_TAPS == 0 && !real) pairs[i][j] = float16_t(0.0);
        }
    }
    if (!inside) return uvec4(0);
    return uvec4(packFloat2x16(pairs[0]), packFloat2x16(pairs[1]), packFloat2x16(pairs[2]), packFloat2x16(pairs[3]));
}

uint partial0;

void store_eight(uint row, uint column, vec4 low, vec4 high) {
    uint channel = row0 + row;
    column += column0;
    if (channel >= args.out_channels || column >= args.columns) return;
    channel += group * args.out_channels;
    uint all_channels = args.groups * args.out_channels;
    uint pixel, image = fast_divmod(column, args.pixels, args.pixels_mul, args.pixels_shift, pixel);
    if (STORE_VECTOR == 1) {  // pixels is a multiple of 8
        uint o = (image * all_channels + channel) * args.pixels + pixel;
        if (PARTIAL == 1) {
            PartialUnits partial = PartialUnits(operand(args.y, 2));
            partial.v[(partial0 + o) / 4] = low;
            partial.v[(partial0 + o) / 4 + 1] = high;
            return;
        }
        [[unroll]] for (uint i = 0; i < 4; i++) {
            low[i] = epilogue(low[i], o + i, channel, pixel + i);
            high[i] = epilogue(high[i], o + 4 + i, channel, pixel + 4 + i);
        }
        y_units.v[(image * args.y_batch + channel * args.pixels + pixel) / 8] = pack_eight(low, high);
        return;
    }
    Elements y = Elements(operand(args.y, 2));
    Partial partial = Partial(operand(args.y, 2));
    [[unroll]] for (uint i = 0; i < 8; i++) {
        if (column + i < args.columns) {
            float v = i < 4 ? low[i & 3] : high[i & 3];
            uint o = (image * all_channels + channel) * args.pixels + pixel;
            if (PARTIAL == 1) partial.v[partial0 + o] = v;
            else y.v[image * args.y_batch + channel * args.pixels + pixel] = T(epilogue(v, o, channel, pixel));
            pixel++;
            if (pixel == args.pixels) {
                pixel = 0;
                image++;
            }
        }
    }
}
#define STORES_IN_A_LOOP
#include "cooperative_tile.glsl"

// channels and out_channels are those of one group; columns counts the pixels of all images.
void main() {
    uint split = group_id().z % args.splits;
    group = group_id().z / args.splits;
    row0 = group_id().x * TILE_M;  // neighbouring workgroups share the larger operand, the input
    column0 = group_id().y * TILE_N;
    x = Elements(operand(args.x, 0));
    w_units = Units(operand(args.w, 1));
    y_units = Units(operand(args.y, 2));
    plane = args.height * args.width;
    w0 = group * args.out_channels * args.k_size;
    uint column = column0 + gl_LocalInvocationIndex % TILE_N, pixel, x_out;
    column_inside = column < args.columns;
    uint image = fast_divmod(min(column, args.columns - 1), args.pixels, args.pixels_mul, args.pixels_shift, pixel);
    uint y_out = fast_divmod(pixel, args.out_width, args.out_width_mul, args.out_width_shift, x_out);
    image_at = (image * args.groups + group) * args.channels * plane;
    top = int(y_out * args.stride_h) - int(args.pad_top);
    left = int(x_out * args.stride_w) - int(args.pad_left);
    partial0 = split * args.groups * args.out_channels * args.columns;
    k_end = min((split + 1) * args.split_k, args.k_size);
    multiply_tile(split * args.split_k, k_end);
}
