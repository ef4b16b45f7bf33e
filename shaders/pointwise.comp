// A fused elementwise expression over strided operands. vkep/kernels/pointwise.py generates its body:
//   POINTWISE_DECLS     pointer types of the operands and of the output
//   POINTWISE_FUNCTION  value of one output element from one element of each operand
//   POINTWISE_UNIT      computes and stores unit `i` (one element, or a vector of four), and where POINTWISE_UNITS is 2
//                       also the unit a workgroup's width further on
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "fastdiv.glsl"
#include "fault.glsl"
#include "math.glsl"

#define ARGS_BODY { WRITTEN y; EXTRA_OPERANDS uint n; uint iterations; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"

uint16_t bfloat16_bits(float v) {
    uint bits = floatBitsToUint(v);
    if (isnan(v)) return uint16_t((bits >> 16) | 0x40u);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);  // to nearest, ties to even
}

POINTWISE_DECLS
POINTWISE_FUNCTION

#ifndef POINTWISE_UNITS
#define POINTWISE_UNITS 1
#endif

void main() {
    // A workgroup owns a contiguous block, so that a CPU driver's threads walk memory in order.
    uint first = group_id().x * gl_WorkGroupSize.x * POINTWISE_UNITS * args.iterations + gl_LocalInvocationID.x;
    for (uint step = 0; step < args.iterations; ++step) {
        uint i = first + step * gl_WorkGroupSize.x * POINTWISE_UNITS;
        if (i >= args.n) return;
        POINTWISE_UNIT
    }
}
