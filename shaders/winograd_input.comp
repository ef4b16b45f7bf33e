// Winograd F(4x4, 3x3), first step: x [images, channels, height, width] to v [36, channels, images * tiles] (float32), the
// points of the 6x6 inputs of each 4x4 output tile. One lane per (channel, tile). sizes [2, images * tiles], 0 before, gets for
// each tile the largest size of its inputs in any channel, and one that each of its windows reaches.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#include "winograd.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN v; WRITTEN sizes; EXTRA_OPERANDS \
    uint height; uint width; uint out_height; uint out_width; uint pad_top; uint pad_left; \
    uint columns; uint columns_mul; uint columns_shift; uint tiles; uint tiles_mul; uint tiles_shift; \
    uint images; uint images_mul; uint images_shift; uint channels; uint total; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"

TENSOR(T, Elements)
TENSOR(float, Points)
TENSOR(uint, Sizes)

// columns: tiles in a row; tiles: tiles in an image; total: channels * images * tiles
void main() {
    uint at = flat_lane();
    bool inside = at < args.total;
    at = min(at, args.total - 1);
    uint tile, image, column;
    uint rest = fast_divmod(at, args.tiles, args.tiles_mul, args.tiles_shift, tile);
    uint channel = fast_divmod(rest, args.images, args.images_mul, args.images_shift, image);
    uint row = fast_divmod(tile, args.columns, args.columns_mul, args.columns_shift, column);
    Elements x = Elements(operand(args.x, 0));
    uint x0 = (image * args.channels + channel) * args.height * args.width;
    int top = int(row * 4) - int(args.pad_top), left = int(column * 4) - int(args.pad_left);

    uint column_at[6];
    bool column_valid[6];
    [[unroll]] for (uint j = 0; j < 6; j++) {
        uint c = uint(left + int(j));
        column_valid[j] = c < args.width;
        column_at[j] = x0 + (column_valid[j] ? c : 0);
    }
    // Inputs of which each window has one: in the middle of the tile, where its windows are inside the image.
    uint rows_left = args.out_height - row * 4, columns_left = args.out_width - column * 4;
    uint near_i = rows_left > 1 ? 2 : 1, far_i = rows_left > 3 ? 3 : near_i;
    uint near_j = columns_left > 1 ? 2 : 1, far_j = columns_left > 3 ? 3 : near_j;
    uint largest = 0, least = ~0u;
    float d[36];
    [[unroll]] for (uint i = 0; i < 6; i++) {
        uint h = uint(top + int(i));
        bool row_valid = h < args.height;
        uint row_at = row_valid ? h * args.width : 0;
        [[unroll]] for (uint j = 0; j < 6; j++) {
            float value = float(x.v[column_at[j] + row_at]);
            value = row_valid && column_valid[j] ? value : 0.0;
            d[i * 6 + j] = value;
            uint size = floatBitsToUint(value) & 0x7fffffffu;
            largest = max(largest, size);
            if (i > 0 && i < 4 && j > 0 && j < 4 && (i == near_i || i == far_i) && (j == near_j || j == far_j)) least = min(least, size);
        }
        WINOGRAD_INPUT(d[i * 6], d[i * 6 + 1], d[i * 6 + 2], d[i * 6 + 3], d[i * 6 + 4], d[i * 6 + 5])
    }
    [[unroll]] for (uint j = 0; j < 6; j++) WINOGRAD_INPUT(d[j], d[6 + j], d[12 + j], d[18 + j], d[24 + j], d[30 + j])

    Points v = Points(operand(args.v, 1));
    if (inside) {
        [[unroll]] for (uint i = 0; i < 36; i++) v.v[i * args.total + at] = d[i];
        Sizes sizes = Sizes(operand(args.sizes, 2));
        uint tile_of_all = image * args.tiles + tile;
        atomicMax(sizes.v[tile_of_all], largest);
        atomicMax(sizes.v[args.images * args.tiles + tile_of_all], least);
    }
}
