// Convolution over one or two axes, channels last (NWC, NHWC), float16 with float32 sums, or (CODES) int8 with int32 sums, which are
// converted to float32, as a matrix product on cooperative matrices: rows are the pixels of all images, columns are output
// channels, and k runs over taps, then channels, as the packed weights do: [taps, channels of a group, out_channels padded to whole
// units], or (B_ALONG_K) [out_channels, taps, channels of a group], then a unit of zeros, one of the padding's elements, and (LESS)
// an int for each column. The input is read in place, a unit of channels at a time. Lanes outside the image read the unit behind the weights instead: replacing a
// loaded value would make the lane wait for its load right there.
//
// A tap here is a contiguous run of the input: the channels of one pixel or, where no columns are padded or skipped, of a row
// of pixels. WHOLE_TAPS: its channels are a multiple of TILE_K, so that a stage lies within one tap. Workgroup z is
// (group * splits + split); PARTIAL stores sums to partials[split, pixel, channel].
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#include "cooperative.glsl"
#define ARGS_BODY { uvec2 x; uvec2 w; WRITTEN y; EXTRA_OPERANDS \
    uint m; uint n; uint k; uint w_row; uint splits; uint split_k; uint height; uint width; \
    uint pitch; uint group_channels; uint group_columns; uint pixels; uint pixels_mul; uint pixels_shift; uint out_width; uint out_width_mul; uint out_width_shift; \
    uint channels; uint channels_mul; uint channels_shift; uint kernel_w; uint kernel_w_mul; uint kernel_w_shift; \
    uint stride_h; uint stride_w; uint dilation_h; uint dilation_w; uint pad_top; uint pad_left; \
    uint y_row; uint y_col; float alpha; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 18) const uint WHOLE_TAPS = 1;
layout(constant_id = 20) const uint BAND = 8;

TENSOR(T, Elements)
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Units { uvec4 v[]; };

uvec2 x_address, padding_address;
Units w_units;
uint row0, column0, column_end, k_end;
uint zeros_at;                            // the unit of zeros, in elements
int row_top[A_LOADS], row_left[A_LOADS];  // where the receptive fields of this lane's rows start in their images
uint row_at[A_LOADS];                     // offsets in x; they wrap for fields that start before the image
int tap_top, tap_left;                    // where the tap of `find_tap` lies in a receptive field
uint tap_at;                              // the tap's first element, relative to the field's first one, minus its first k

void find_tap(uint k) {
    uint tap = fast_div(k, args.channels_mul, args.channels_shift);
    uint tap_w, tap_h = fast_divmod(tap, args.kernel_w, args.kernel_w_mul, args.kernel_w_shift, tap_w);
    tap_top = int(tap_h * args.dilation_h);
    tap_left = int(tap_w * args.dilation_w);
    tap_at = (uint(tap_top) * args.width + uint(tap_left)) * args.pitch - tap * args.channels;
}

void begin_stage(uint k) {
    if (WHOLE_TAPS == 1) find_tap(k);
}

uvec4 load_a(uint, uint k, uint i) {
    if (WHOLE_TAPS == 0) find_tap(k);
    uint h = uint(row_top[i] + tap_top), v = uint(row_left[i] + tap_left);
    bool inside = h < args.height && v < args.width && (WHOLE_K == 1 || k < k_end);
    Units units = Units(inside ? x_address : padding_address);
    return units.v[inside ? (row_at[i] + tap_at + k) / UNIT : 0];
}

uvec4 load_b(uint column, uint k) {
    bool inside = WHOLE_K == 1 || k < k_end;
    column += column0;
    uint last = (column_end + UNIT - 1) / UNIT * UNIT - UNIT;
    uint at = B_ALONG_K == 1 ? min(column, column_end - 1) * args.w_row + k : k * args.w_row + min(column, last);
    return w_units.v[(inside ? at : zeros_at) / UNIT];
}
#define COLUMNS args.group_columns
#define COLUMN_END column_end
#include "cooperative_band.glsl"
#include "cooperative_store.glsl"
#include "cooperative_tile.glsl"

// pitch: elements between neighbouring pixels of x; group_channels and group_columns: its channels and those of y in a group.
void main() {
    if (!find_tile()) return;
    uint split = group_id().z % args.splits, group = group_id().z / args.splits, carry;
    column0 += group * args.group_columns;
    column_end = (group + 1) * args.group_columns;
    x_address = operand(args.x, 0);
    w_units = Units(operand(args.w, 1));
    zeros_at = (B_ALONG_K == 1 ? args.n : args.k) * args.w_row;
    padding_address = uvec2(w_units);
    padding_address.x = uaddCarry(padding_address.x, (zeros_at + UNIT) * (16 / UNIT), carry);
    padding_address.y += carry;
#ifdef CODES
    less_address.x = uaddCarry(padding_address.x, UNIT, carry);
    less_address.y = padding_address.y + carry;
#endif
    [[unroll]] for (uint i = 0; i < A_LOADS; i++) {
        uint row = min(row0 + k_line_of(i), args.m - 1), pixel, x_out;
        uint image = fast_divmod(row, args.pixels, args.pixels_mul, args.pixels_shift, pixel);
        uint y_out = fast_divmod(pixel, args.out_width, args.out_width_mul, args.out_width_shift, x_out);
        row_top[i] = int(y_out * args.stride_h) - int(args.pad_top);
        row_left[i] = int(x_out * args.stride_w) - int(args.pad_left);
        row_at[i] = uint((int(image * args.height) + row_top[i]) * int(args.width) + row_left[i]) * args.pitch + group * args.group_channels;
    }
    y0 = o0 = 0;
    partial0 = split * args.m * args.n;
    k_end = min((split + 1) * args.split_k, args.k);
    multiply_tile(split * args.split_k, k_end);
}
