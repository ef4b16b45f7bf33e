// ONNX GridSample over 1 to 3 spatial axes: y[n, c, p] sampled from x[n, c] at grid[n, p] (x first, in [-1, 1]). RANK
// spatial axes; METHOD 0 nearest, 1 linear, 2 cubic (Keys, a = -0.75); PADDING 0 zeros, 1 border, 2 reflection.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 grid; WRITTEN y; uint total; uint channels; uint channels_mul; uint channels_shift; \
    uint points; uint points_mul; uint points_shift; uint size0; uint size1; uint size2; }
#include "args.glsl"
#include "elements.glsl"
#include "real.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint RANK = 2;
layout(constant_id = 5) const uint METHOD = 1;
layout(constant_id = 6) const uint PADDING = 0;
layout(constant_id = 7) const uint ALIGN = 0;

#ifdef GRID_BFLOAT16
TENSOR(uint16_t, Grid)
REAL grid_element(uint16_t v) { return REAL(uintBitsToFloat(uint(v) << 16)); }
#else
TENSOR(GRID_T, Grid)
REAL grid_element(GRID_T v) { return REAL(v); }
#endif

REAL reflect_into(REAL v, REAL low, REAL high) {
    if (v >= low && v <= high) return v;
    REAL range = high - low;
    if (range <= 0.0) return low;
    REAL beyond = v < low ? low - v : v - high;
    REAL turns = floor(beyond / range);
    REAL rest = beyond - turns * range;
    bool even = mod(turns, 2.0) == 0.0;
    return (v < low) == even ? low + rest : high - rest;
}

// The element's position on an axis for an integer tap, or -1 outside.
int tap_position(int at, int size, REAL low, REAL high) {
    if (PADDING == 0u) return at >= 0 && at < size ? at : -1;
    if (PADDING == 1u) return clamp(at, 0, size - 1);
    return clamp(int(reflect_into(REAL(at), low, high)), 0, size - 1);
}

REAL weight(int tap, REAL fraction) {
    if (METHOD == 0u) return 1.0;
    if (METHOD == 1u) return tap == 0 ? 1.0 - fraction : fraction;
    const REAL a = -0.75;
    REAL d = abs(REAL(tap - 1) - fraction);
    return d <= 1.0 ? ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0 : ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
}

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint point, channel;
    uint rest = fast_divmod(id, args.points, args.points_mul, args.points_shift, point);
    uint image = fast_divmod(rest, args.channels, args.channels_mul, args.channels_shift, channel);
    Grid grid = Grid(operand(args.grid, 1));
    InTensor x = InTensor(operand(args.x, 0));
    int sizes[3] = int[3](int(args.size0), int(args.size1), int(args.size2));
    int taps = METHOD == 0u ? 1 : METHOD == 1u ? 2 : 4;

    int positions[3][4];
    REAL weights[3][4];
    uint base = rest;
    [[unroll]] for (uint axis = 0u; axis < RANK; ++axis) {
        REAL at = grid_element(grid.v[(image * args.points + point) * RANK + RANK - 1u - axis]);
        REAL size = REAL(sizes[axis]);
        REAL low = ALIGN != 0u ? 0.0 : -0.5, high = ALIGN != 0u ? size - 1.0 : size - 0.5;
        at = ALIGN != 0u ? (at + 1.0) * 0.5 * (size - 1.0) : ((at + 1.0) * size - 1.0) * 0.5;
        if (!(abs(at) <= 4.6116860e18)) at = low;  // NaN: ONNX Runtime uses the border
        if (METHOD == 0u) at = roundEven(at);
        if (PADDING == 2u && (at < low || at > high)) at = reflect_into(at, low, high);
        at = clamp(at, -1e6, 1e6 + size);  // within the range of int but still outside; each tap is clamped later
        int first = METHOD == 0u ? int(at) : int(floor(at)) - (METHOD == 2u ? 1 : 0);
        REAL fraction = at - floor(at);
        for (int tap = 0; tap < taps; ++tap) {
            positions[axis][tap] = tap_position(first + tap, sizes[axis], low, high);
            weights[axis][tap] = weight(tap, fraction);
        }
        base *= uint(sizes[axis]);
    }
    [[unroll]] for (uint axis = RANK; axis < 3u; ++axis) {
        positions[axis][0] = 0;
        weights[axis][0] = 1.0;
    }
    int taps1 = RANK > 1u ? taps : 1, taps2 = RANK > 2u ? taps : 1;
    int stride1 = RANK > 2u ? sizes[2] : 1;
    int stride0 = RANK > 1u ? stride1 * sizes[1] : 1;
    REAL sum = 0.0;
    for (int i = 0; i < taps; ++i)
        for (int j = 0; j < taps1; ++j)
            for (int k = 0; k < taps2; ++k) {
                if (positions[0][i] < 0 || positions[1][j] < 0 || positions[2][k] < 0) continue;
                int offset = positions[0][i] * stride0 + positions[1][j] * stride1 + positions[2][k];
                sum += weights[0][i] * weights[1][j] * weights[2][k] * REAL(load_element(x.v[base + uint(offset)]));
            }
    OutTensor(operand(args.y, 2)).v[id] = store_element(COMPUTE_T(sum));
}
