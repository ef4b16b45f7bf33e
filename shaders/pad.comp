// Pad of contiguous x into y (shape `dims`), in units of UNIT_T: coordinate c of y reads c - begin of x's cropped range
// of `extent` elements (a negative pad crops; x's address offset `start` is the crop), in the mode's way.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; uint total; uint start; uint value_low; uint value_high; \
    FIELDS8(dim) FIELDS8(mul) FIELDS8(shift) FIELDS8(extent) FIELDS8(stride) FIELDS8_INT(begin) }
#include "args.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint RANK = 1;
layout(constant_id = 5) const uint MODE = 0;
const uint CONSTANT = 0u, EDGE = 1u, REFLECT = 2u, WRAP = 3u;

TENSOR(UNIT_T, Units)

// GLSL leaves % undefined where an operand is negative.
int floor_mod(int a, int n) {
    if (a >= 0) return a % n;
    int r = -a % n;
    return r == 0 ? 0 : n - r;
}

// The source coordinate, within [0, extent), of coordinate c outside of it.
int fold(int c, int extent) {
    if (MODE == EDGE) return clamp(c, 0, extent - 1);
    if (MODE == WRAP) return floor_mod(c, extent);
    if (extent == 1) return 0;
    int period = 2 * (extent - 1);  // reflection does not repeat the edge
    int phase = floor_mod(c, period);
    return phase < extent ? phase : period - phase;
}

UNIT_T fill() {
#if UNIT_BYTES == 8
    return uvec2(args.value_low, args.value_high);
#else
    return UNIT_T(args.value_low);
#endif
}

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint dims[8] = READ8(dim), muls[8] = READ8(mul), shifts[8] = READ8(shift), at[8];
    uint extents[8] = READ8(extent), strides[8] = READ8(stride);
    int begins[8] = READ8_INT(begin);
    COORDINATES(RANK, id, dims, muls, shifts, at)
    uint from = args.start;
    bool inside = true;
    [[unroll]] for (uint d = 0u; d < RANK; ++d) {
        int c = int(at[d]) - begins[d];
        if (uint(c) >= extents[d]) {
            inside = false;
            if (MODE != CONSTANT) c = fold(c, int(extents[d]));
        }
        from += uint(c) * strides[d];
    }
    Units y = Units(operand(args.y, 1));
    if (MODE == CONSTANT && !inside) y.v[id] = fill();
    else y.v[id] = Units(operand(args.x, 0)).v[from];
}
