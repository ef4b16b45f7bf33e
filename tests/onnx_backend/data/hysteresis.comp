// A user's shader: y[i] is 1 after x rose above `high`, 0 after it fell below `low`, and stays between (one lane a row).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; uint rows; uint steps; float low; float high; }
#include "args.glsl"

TENSOR(float, Floats)

void main() {
    uint row = gl_GlobalInvocationID.x;
    if (row >= args.rows) return;
    Floats x = Floats(operand(args.x, 0)), y = Floats(operand(args.y, 1));
    float state = 0.0;
    for (uint k = row * args.steps; k < (row + 1u) * args.steps; ++k) {
        state = x.v[k] > args.high ? 1.0 : x.v[k] < args.low ? 0.0 : state;
        y.v[k] = state;
    }
}
