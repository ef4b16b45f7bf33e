// Local response normalisation of x [n, channels, inner] across channels: y = x / (bias + alpha / size * sum of squares over
// channels [c - before, c + after])^beta. One lane per element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; \
    uint total; uint inner; uint inner_mul; uint inner_shift; uint channels; uint channels_mul; uint channels_shift; \
    uint before; uint after; float alpha_over_size; float beta; float bias; }
#include "args.glsl"
#include "math.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"

void main() {
    uint at = flat_lane();
    if (at >= args.total) return;
    InTensor x = InTensor(operand(args.x, 0));
    OutTensor y = OutTensor(operand(args.y, 1));
    uint c, plane = fast_div(at, args.inner_mul, args.inner_shift);
    fast_divmod(plane, args.channels, args.channels_mul, args.channels_shift, c);
    uint low = min(c, args.before), high = min(args.channels - 1u - c, args.after);
    uint from = at - low * args.inner;
    float squares = 0.0;
    for (uint k = 0u; k <= low + high; ++k, from += args.inner) {
        float v = load_element(x.v[from]);
        squares += v * v;
    }
    y.v[at] = store_element(load_element(x.v[at]) * accurate_pow(args.bias + args.alpha_over_size * squares, -args.beta));
}
