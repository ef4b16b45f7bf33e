// A fused elementwise expression whose output runs along another axis than some of its inputs (a transposition): a workgroup
// takes TILE x TILE elements of the two axes, reads those inputs along their own axis (ALONG) into shared memory, and writes
// along the output's. vkep/kernels/pointwise.py generates:
//   TILE_DECLS      pointer types, and a shared array for each input that runs along ALONG
//   TILE_FUNCTION   value of one output element
//   TILE_REGISTERS  for each such input, a register for every row that a lane loads
//   TILE_LOAD       element (row along the last axis, column along ALONG) of each such input into its register `n`
//   TILE_KEEP       registers from `n` on into the array's slot
//   TILE_STORE      computes and stores one output element
//
// With PAIR 2, elements are of two bytes and move in pairs: a lane loads the pairs of two neighbouring rows, exchanges
// the inner two of the four, and so has a pair along the last axis for each of two positions on ALONG. The even positions'
// pairs lie in one plane of the array, the odd ones' in another: lanes write neighbouring words and read words PITCH (odd)
// apart, so that 32 of them meet 32 banks both times. An index then counts pairs, where its operand is read or written in pairs.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#include "fault.glsl"
#include "math.glsl"
#include "workgroup.glsl"

#define ARGS_BODY { WRITTEN y; EXTRA_OPERANDS \
    uint last; uint along; uint groups; uint last_tiles; uint last_tiles_mul; uint last_tiles_shift; \
    uint along_tiles; uint along_tiles_mul; uint along_tiles_shift; EXTRA_PARAMS }
#include "args.glsl"

layout(constant_id = 4) const uint TILE = 64;
layout(constant_id = 5) const uint LINES = 4;  // of lanes: the workgroup's height
#ifndef PAIR
#define PAIR 1u
#endif
const uint SIDE = TILE / PAIR;
const uint ROWS = TILE / LINES;
const uint PITCH = SIDE + 1;  // neighbouring rows begin in different banks
const uint PLANE = SIDE * PITCH;

uint16_t bfloat16_bits(float v) {
    uint bits = floatBitsToUint(v);
    if (isnan(v)) return uint16_t((bits >> 16) | 0x40u);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);  // to nearest, ties to even
}

TILE_DECLS
TILE_FUNCTION

// The workgroup is SIDE by LINES lanes; q_last and q_along are positions on the two axes.
void main() {
    uint group = flat_group(), last_tile, along_tile;
    if (group >= args.groups) return;
    uint rest = fast_divmod(group, args.last_tiles, args.last_tiles_mul, args.last_tiles_shift, last_tile);
    rest = fast_divmod(rest, args.along_tiles, args.along_tiles_mul, args.along_tiles_shift, along_tile);
    TILE_COORDINATES
    TILE_REGISTERS
    // Lanes outside load an element inside: without branches all loads are in flight at once.
    [[unroll]] for (uint n = 0; n < ROWS; n++) {
        uint row = (gl_LocalInvocationID.y + n / PAIR * LINES) * PAIR + n % PAIR;
        uint q_last = min(last_tile * TILE + row, args.last - 1);
        uint q_along = min(along_tile * SIDE + gl_LocalInvocationID.x, args.along / PAIR - 1);
        TILE_LOAD
    }
    [[unroll]] for (uint n = 0; n < ROWS; n += PAIR) {
        uint slot = (gl_LocalInvocationID.y + n / PAIR * LINES) * PITCH + gl_LocalInvocationID.x;
        TILE_KEEP
    }
    barrier();
    [[unroll]] for (uint n = 0; n < ROWS; n++) {
        uint row = gl_LocalInvocationID.y + n * LINES;
        uint q_along = along_tile * TILE + row, q_last = last_tile * SIDE + gl_LocalInvocationID.x;
        uint slot = row % PAIR * PLANE + gl_LocalInvocationID.x * PITCH + row / PAIR;
        if (q_last < args.last / PAIR && q_along < args.along) { TILE_STORE }
    }
}
