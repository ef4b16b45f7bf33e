// The table of offsets of resize_nearest.comp: for each dimension d of the result, from entry `first_d` on, stride_d times the
// nearest position to place (a_d * j + b_d) / q_d, rounded as floor((2 * place + shift_d / q_d) / 2), and within the axis of
// `length_d`. -1 where CROPS is 1 and the place is outside of the axis.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define ARGS_BODY { WRITTEN offsets; uint total; FIELDS8(first) FIELDS8_INT(a) FIELDS8_INT(b) FIELDS8(q) FIELDS8(shift) \
    FIELDS8(length) FIELDS8(stride) }
#include "args.glsl"
#include "place.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint RANK = 1;
layout(constant_id = 5) const uint CROPS = 0;

TENSOR(int, OffsetTensor)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint firsts[8] = READ8(first), qs[8] = READ8(q), shifts[8] = READ8(shift), lengths[8] = READ8(length);
    uint strides[8] = READ8(stride);
    int as[8] = READ8_INT(a), bs[8] = READ8_INT(b);
    uint d = 0u;
    [[unroll]] for (uint k = 1u; k < RANK; ++k) d = id >= firsts[k] ? k : d;
    int high;
    uint low, remainder, carry;
    place(as[d], id - firsts[d], bs[d], high, low);
    int down = floor_of(high, low, qs[d], remainder);
    int last = int(lengths[d]) - 1;
    bool outside = down < 0 || down > last || (down == last && remainder != 0u);
    high = (high << 1) | int(low >> 31);
    low = uaddCarry(low << 1, shifts[d], carry);
    high += int(carry);
    int at = clamp(floor_of(high, low, 2u * qs[d], remainder), 0, last);
    OffsetTensor(operand(args.offsets, 0)).v[id] = CROPS != 0u && outside ? -1 : at * int(strides[d]);
}
