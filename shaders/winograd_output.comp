// Winograd F(4x4, 3x3), last step: products [36, channels, images * tiles] (float32) to y [images, channels, height, width].
// One lane per (channel, tile).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#include "winograd.glsl"
#define ARGS_BODY { uvec2 products; uvec2 y; EXTRA_OPERANDS \
    uint height; uint width; uint columns; uint columns_mul; uint columns_shift; uint tiles; uint tiles_mul; uint tiles_shift; \
    uint images; uint images_mul; uint images_shift; uint channels; uint total; uint y_batch; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

TENSOR(T, Elements)
TENSOR(float, Points)

// height and width are the output's; columns: tiles in a row; tiles: tiles in an image; total: channels * images * tiles
void main() {
    uint at = flat_lane();
    bool inside = at < args.total;
    at = min(at, args.total - 1);
    uint tile, image, column;
    uint rest = fast_divmod(at, args.tiles, args.tiles_mul, args.tiles_shift, tile);
    uint channel = fast_divmod(rest, args.images, args.images_mul, args.images_shift, image);
    uint row = fast_divmod(tile, args.columns, args.columns_mul, args.columns_shift, column);

    Points products = Points(operand(args.products, 0));
    float m[36];
    [[unroll]] for (uint i = 0; i < 36; i++) m[i] = products.v[i * args.total + at];
    [[unroll]] for (uint i = 0; i < 6; i++)
        WINOGRAD_OUTPUT(m[i * 6], m[i * 6 + 1], m[i * 6 + 2], m[i * 6 + 3], m[i * 6 + 4], m[i * 6 + 5])
    [[unroll]] for (uint j = 0; j < 4; j++) WINOGRAD_OUTPUT(m[j], m[6 + j], m[12 + j], m[18 + j], m[24 + j], m[30 + j])

    Elements y = Elements(operand(args.y, 1));
    uint plane = args.height * args.width, y0 = image * args.y_batch + channel * plane;
    uint o0 = (image * args.channels + channel) * plane;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        [[unroll]] for (uint j = 0; j < 4; j++) {
            uint h = row * 4 + i, c = column * 4 + j, pixel = h * args.width + c;
            if (inside && h < args.height && c < args.width) y.v[y0 + pixel] = T(epilogue(m[i * 6 + j], o0 + pixel, channel, pixel));
        }
    }
}
