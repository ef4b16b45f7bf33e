// Writes each element some places further on, as no kernel may (one lane an element).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; uint count; int beyond; }
#include "args.glsl"

TENSOR(float, Floats)

void main() {
    uint k = gl_GlobalInvocationID.x;
    if (k >= args.count) return;
    Floats x = Floats(operand(args.x, 0)), y = Floats(operand(args.y, 1));
    y.v[int(k) + args.beyond] = x.v[k];
}
