// Winograd F(4x4, 3x3), last step: products [36, channels, images * tiles] (float32) to y [images, channels, height, width].
// One lane per (channel, tile). A tile one of whose inputs is much larger than those of a window is the direct sum of x and w: the
// points add all inputs of a tile, and the products take away what a window does not have, up to rounding.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#include "winograd.glsl"
#define ARGS_BODY { uvec2 products; uvec2 sizes; uvec2 x; uvec2 w; WRITTEN y; EXTRA_OPERANDS \
    uint height; uint width; uint x_height; uint x_width; uint x_channels; uint pad_top; uint pad_left; uint columns; uint columns_mul; uint columns_shift; uint tiles; uint tiles_mul; uint tiles_shift; \
    uint images; uint images_mul; uint images_shift; uint channels; uint total; uint y_batch; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

TENSOR(T, Elements)
TENSOR(float, Points)
TENSOR(uint, Sizes)

// The largest quotient of inputs' sizes for which the rounding of points is near that of a direct sum, and a size up to which
// points do not overflow.
const float WIDEST = 64.0, LARGEST = 1e28;

// The direct sum of one output, in loops: few tiles need it, and drivers that unroll nothing compile it in no time.
float direct_sum(uint image, uint channel, uint h, uint c) {
    Elements x = Elements(operand(args.x, 2)), w = Elements(operand(args.w, 3));
    float sum = 0.0;
    for (uint from = 0; from < args.x_channels; from++) {
        uint x0 = (image * args.x_channels + from) * args.x_height * args.x_width;
        uint w0 = (channel * args.x_channels + from) * 9;
        for (uint t = 0; t < 9; t++) {
            uint i = h + t / 3 - args.pad_top, j = c + t % 3 - args.pad_left;  // wrap below 0
            bool valid = i < args.x_height && j < args.x_width;
            float value = float(x.v[x0 + (valid ? i * args.x_width + j : 0)]);
            sum += float(w.v[w0 + t]) * (valid ? value : 0.0);
        }
    }
    return sum;
}

// height and width are the output's; columns: tiles in a row; tiles: tiles in an image; total: channels * images * tiles
void main() {
    uint at = flat_lane();
    bool inside = at < args.total;
    at = min(at, args.total - 1);
    uint tile, image, column;
    uint rest = fast_divmod(at, args.tiles, args.tiles_mul, args.tiles_shift, tile);
    uint channel = fast_divmod(rest, args.images, args.images_mul, args.images_shift, image);
    uint row = fast_divmod(tile, args.columns, args.columns_mul, args.columns_shift, column);

    Elements y = Elements(operand(args.y, 4));
    uint plane = args.height * args.width, y0 = image * args.y_batch + channel * plane;
    uint o0 = (image * args.channels + channel) * plane;

    Sizes sizes = Sizes(operand(args.sizes, 1));
    uint tile_of_all = image * args.tiles + tile;
    float largest = uintBitsToFloat(sizes.v[tile_of_all]);
    float least = uintBitsToFloat(sizes.v[args.images * args.tiles + tile_of_all]);
    if (!(largest <= WIDEST * least && largest < LARGEST)) {
        for (uint k = 0; k < 16; k++) {
            uint h = row * 4 + k / 4, c = column * 4 + k % 4, pixel = h * args.width + c;
            if (inside && h < args.height && c < args.width)
                y.v[y0 + pixel] = T(epilogue(direct_sum(image, channel, h, c), o0 + pixel, channel, pixel));
        }
        return;
    }

    Points products = Points(operand(args.products, 0));
    float m[36];  // the results of the tile are m[6 * row + column]
    [[unroll]] for (uint i = 0; i < 36; i++) m[i] = products.v[i * args.total + at];
    [[unroll]] for (uint i = 0; i < 6; i++)
        WINOGRAD_OUTPUT(m[i * 6], m[i * 6 + 1], m[i * 6 + 2], m[i * 6 + 3], m[i * 6 + 4], m[i * 6 + 5])
    [[unroll]] for (uint j = 0; j < 4; j++) WINOGRAD_OUTPUT(m[j], m[6 + j], m[12 + j], m[18 + j], m[24 + j], m[30 + j])
    [[unroll]] for (uint i = 0; i < 4; i++) {
        [[unroll]] for (uint j = 0; j < 4; j++) {
            uint h = row * 4 + i, c = column * 4 + j, pixel = h * args.width + c;
            if (inside && h < args.height && c < args.width) y.v[y0 + pixel] = T(epilogue(m[i * 6 + j], o0 + pixel, channel, pixel));
        }
    }
}
