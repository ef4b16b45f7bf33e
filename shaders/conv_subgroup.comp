// 2-D convolution, NCHW, as a matrix product without im2col: rows are output pixels, columns output channels, and k runs over
// taps, then input channels (TAPS_INNER: over channels, then taps, for the few channels of an image). One subgroup computes a
// tile (register_tile.glsl); workgroup z is image * groups + group.
//
// w_* are the weights' strides in elements; tile j of the columns starts at j * w_panel (a panel's size where the weights are
// packed).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 w; WRITTEN y; EXTRA_OPERANDS \
    uint channels; uint height; uint width; uint out_channels; uint out_height; uint out_width; uint groups; \
    uint kernel_h; uint kernel_w; uint stride_h; uint stride_w; uint dilation_h; uint dilation_w; uint pad_top; uint pad_left; \
    uint w_group; uint w_panel; uint w_column; uint w_tap; uint w_channel; uint y_batch; uint rows_first; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"
#define MASK_ROWS
#include "register_tile.glsl"

layout(constant_id = 7) const uint TAPS_INNER = 0;
layout(constant_id = 8) const uint UNROLL_H = 1;  // with TAPS_INNER: rows of taps per iteration, a divisor of kernel_h
layout(constant_id = 9) const uint KERNEL_W = 1;  // with TAPS_INNER: kernel_w

int top[ROW_REGISTERS], left[ROW_REGISTERS];  // where the receptive fields of this lane's pixels start
uint x0;

// With TAPS_INNER: which taps of a row lie in the image for this lane's pixels, and where.
bool tap_valid[ROW_REGISTERS * KERNEL_W];
uint tap_at[ROW_REGISTERS * KERNEL_W];

void place_taps() {
    [[unroll]] for (uint q = 0; q < ROW_REGISTERS; q++) {
        [[unroll]] for (uint tap = 0; tap < KERNEL_W; tap++) {
            uint v = uint(left[q] + int(tap * args.dilation_w));
            tap_valid[q * KERNEL_W + tap] = v < args.width;
            tap_at[q * KERNEL_W + tap] = x0 + (v < args.width ? v : 0);
        }
    }
}

void place_rows(uint tap_h, uint tap_w) {
    [[unroll]] for (uint q = 0; q < ROW_REGISTERS; q++) {
        int h = top[q] + int(tap_h * args.dilation_h), v = left[q] + int(tap_w * args.dilation_w);
        row_valid[q] = uint(h) < args.height && uint(v) < args.width;
        row_at[q] = x0 + (row_valid[q] ? uint(h) * args.width + uint(v) : 0);
    }
}

// channels and out_channels are those of one group.
void main() {
    uint lane = gl_SubgroupInvocationID;
    uint image = small_div(group_id().z, args.groups), group = group_id().z - image * args.groups;
    uint plane = args.height * args.width, pixels = args.out_height * args.out_width;
    uint column_tiles = (args.out_channels + COLUMNS - 1) / COLUMNS;
    uvec2 tile = workgroup_tile((pixels + ROWS - 1) / ROWS, column_tiles, args.rows_first != 0);
    uint row0 = tile.x * ROWS, panel = min(tile.y, column_tiles - 1), column0 = panel * COLUMNS;
    Elements x = Elements(operand(args.x, 0)), w = Elements(operand(args.w, 1)), y = Elements(operand(args.y, 2));

    // Lanes past an edge compute and store the last pixel or channel again: on a CPU driver a conditional store is a loop over
    // the lanes.
    [[unroll]] for (uint q = 0; q < ROW_REGISTERS; q++) {
        uint pixel = min(row0 + q * LANES + lane, pixels - 1);
        uint out_row = small_div(pixel, args.out_width), out_column = pixel - out_row * args.out_width;
        top[q] = int(out_row * args.stride_h) - int(args.pad_top);
        left[q] = int(out_column * args.stride_w) - int(args.pad_left);
    }
    x0 = group_id().z * args.channels * plane;
    uint w0 = group * args.w_group + panel * args.w_panel, last = args.out_channels - 1 - column0;
    [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++)
        column_at[c] = w0 + column_of(c, lane, last) * args.w_column;

    clear_tile();
    if (TAPS_INNER == 1) {
        place_taps();
        uint x_k = 0, w_k = 0;
        for (uint channel = 0; channel < args.channels; channel++, x_k += plane) {
            for (uint h0 = 0; h0 < args.kernel_h; h0 += UNROLL_H) {
                [[unroll]] for (uint i = 0; i < UNROLL_H; i++) {
                    uint line[ROW_REGISTERS];
                    bool line_valid[ROW_REGISTERS];
                    [[unroll]] for (uint q = 0; q < ROW_REGISTERS; q++) {
                        uint h = uint(top[q] + int((h0 + i) * args.dilation_h));
                        line_valid[q] = h < args.height;
                        line[q] = x_k + (h < args.height ? h * args.width : 0);
                    }
                    [[unroll]] for (uint tap = 0; tap < KERNEL_W; tap++) {
                        [[unroll]] for (uint q = 0; q < ROW_REGISTERS; q++) {
                            row_valid[q] = line_valid[q] && tap_valid[q * KERNEL_W + tap];
                            row_at[q] = line[q] + tap_at[q * KERNEL_W + tap];
                        }
                        multiply_step(x, 0, w, w_k, COLUMN_PAIRS);
                        w_k += args.w_tap;
                    }
                }
            }
        }
    } else {
        for (uint tap_h = 0; tap_h < args.kernel_h; tap_h++) {
            for (uint tap_w = 0; tap_w < args.kernel_w; tap_w++) {
                place_rows(tap_h, tap_w);
                uint x_k = 0, w_k = (tap_h * args.kernel_w + tap_w) * args.w_tap;
                multiply(x, x_k, plane, w, w_k, args.w_channel, args.channels, COLUMN_PAIRS);
            }
        }
    }

    uint y0 = image * args.y_batch + group * args.out_channels * pixels;
    uint o0 = group_id().z * args.out_channels * pixels;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint pixel = min(row0 + r, pixels - 1);
        [[unroll]] for (uint c = 0; c < LANE_COLUMNS; c++) {
            uint channel = column0 + column_of(c, lane, last);
            uint at = channel * pixels + pixel;
            y.v[y0 + at] = T(epilogue(acc[r * LANE_COLUMNS + c], o0 + at, group * args.out_channels + channel, pixel));
        }
    }
}
