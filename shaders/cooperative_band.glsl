// The tile of a product on cooperative matrices that a workgroup computes: tiles are visited in bands of BAND rows, so
// that a band's operands stay in cache. Include after args.glsl and the declarations of BAND, row0 and column0; the
// kernel's arguments have m, n.
//
// With COLUMNS the columns of the tiles are a part of the n ones.
#ifndef VKEP_COOPERATIVE_BAND_GLSL
#define VKEP_COOPERATIVE_BAND_GLSL
#ifndef COLUMNS
#define COLUMNS args.n
#endif
#include "workgroup.glsl"

// Sets row0 and column0, and returns false past the last tile. Tiles are numbered along the grid, so its x and y may have any
// sizes.
bool find_tile() {
    uint column_tiles = (COLUMNS + TILE_N - 1) / TILE_N, row_tiles = (args.m + TILE_M - 1) / TILE_M;
    uint flat_tile = flat_group();
    if (flat_tile >= column_tiles * row_tiles) return false;
    uint band = flat_tile / (BAND * column_tiles), rows = min(BAND, row_tiles - band * BAND);
    uint in_band = flat_tile - band * BAND * column_tiles;
    row0 = (band * BAND + in_band % rows) * TILE_M;
    column0 = in_band / rows * TILE_N;
    return true;
}
#endif
