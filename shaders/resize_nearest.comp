// Nearest-neighbour resize at any rank: y (shape `dims`) copies the unit of x at the sum of offsets[first_d + c_d] over its
// dimensions d. The host computes the table of source offsets. A negative offset stands for the extrapolation value. `last` is
// x's last unit.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define ARGS_BODY { uvec2 x; uvec2 offsets; WRITTEN y; uint total; uint last; uint value_low; uint value_high; \
    FIELDS8(dim) FIELDS8(mul) FIELDS8(shift) FIELDS8(first) }
#include "args.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint RANK = 1;

TENSOR(UNIT_T, Units)
TENSOR(int, OffsetTensor)

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
    uint dims[8] = READ8(dim), muls[8] = READ8(mul), shifts[8] = READ8(shift), firsts[8] = READ8(first), at[8];
    COORDINATES(RANK, id, dims, muls, shifts, at)
    OffsetTensor offsets = OffsetTensor(operand(args.offsets, 1));
    int from = 0;
    bool inside = true;
    [[unroll]] for (uint d = 0u; d < RANK; ++d) {
        int offset = offsets.v[firsts[d] + at[d]];
        inside = inside && offset >= 0;
        from += offset;
    }
    Units y = Units(operand(args.y, 2));
    if (inside) y.v[id] = Units(operand(args.x, 0)).v[min(uint(from), args.last)];
    else y.v[id] = fill();
}
