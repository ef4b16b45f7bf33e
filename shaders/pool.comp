// Max, average and lp pooling of x [images * channels, depth, height, width] (2-D: depth 1; 1-D: height 1 too). One lane per
// output element.
//
// Defines: IN_T, COMPUTE_T (double: p is 1 or 2), and MAX_POOL (with LOWEST, and PROPAGATE_NAN for floats), AVERAGE_POOL or LP_POOL. WITH_INDICES
// adds int64 indices of the maxima in the flat input, width fastest, or with COLUMN_MAJOR depth fastest.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; WRITTEN indices; \
    uint total; uint depth; uint height; uint width; \
    uint out_depth; uint out_depth_mul; uint out_depth_shift; \
    uint out_height; uint out_height_mul; uint out_height_shift; \
    uint out_width; uint out_width_mul; uint out_width_shift; \
    uint stride_d; uint stride_h; uint stride_w; uint dilation_d; uint dilation_h; uint dilation_w; \
    int pad_d; int pad_h; int pad_w; uint pad_end_d; uint pad_end_h; uint pad_end_w; float p; }
#include "args.glsl"
#include "math.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "pool.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint KERNEL_D = 1;
layout(constant_id = 5) const uint KERNEL_H = 1;
layout(constant_id = 6) const uint KERNEL_W = 1;
layout(constant_id = 7) const uint COUNT_INCLUDE_PAD = 0;
layout(constant_id = 8) const uint COLUMN_MAJOR = 0;

TENSOR(uvec2, Int64Tensor)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    InTensor x = InTensor(operand(args.x, 0));
    OutTensor y = OutTensor(operand(args.y, 1));
    uint ow, oh, od;
    uint rest = fast_divmod(id, args.out_width, args.out_width_mul, args.out_width_shift, ow);
    rest = fast_divmod(rest, args.out_height, args.out_height_mul, args.out_height_shift, oh);
    uint plane = fast_divmod(rest, args.out_depth, args.out_depth_mul, args.out_depth_shift, od);
    int d0 = int(od * args.stride_d) - args.pad_d;
    int h0 = int(oh * args.stride_h) - args.pad_h;
    int w0 = int(ow * args.stride_w) - args.pad_w;
    uint base = plane * args.depth * args.height * args.width;

#ifdef MAX_POOL
    COMPUTE_T best = LOWEST;  // a window without elements
    uvec3 where = uvec3(0u);
    bool none = true;
#else
    COMPUTE_T total = COMPUTE_T(0.0);
#endif
    uvec2 taps_d = taps_of(d0, KERNEL_D, args.dilation_d, args.depth);
    uvec2 taps_h = taps_of(h0, KERNEL_H, args.dilation_h, args.height);
    uvec2 taps_w = taps_of(w0, KERNEL_W, args.dilation_w, args.width);
    for (uint kd = taps_d.x; kd < taps_d.y; ++kd) {
        uint d = uint(d0 + int(kd * args.dilation_d));  // a negative position wraps to a huge one
        if (d >= args.depth) continue;
        for (uint kh = taps_h.x; kh < taps_h.y; ++kh) {
            uint h = uint(h0 + int(kh * args.dilation_h));
            if (h >= args.height) continue;
            uint line = base + (d * args.height + h) * args.width;
            for (uint kw = taps_w.x; kw < taps_w.y; ++kw) {
                uint w = uint(w0 + int(kw * args.dilation_w));
                if (w >= args.width) continue;
                COMPUTE_T v = load_element(x.v[line + w]);
#if defined(MAX_POOL)
                if (none || exceeds(v, best)) {
                    none = false;
                    best = v;
                    where = uvec3(d, h, w);
                }
#elif defined(AVERAGE_POOL)
                total += v;
#else
                total += args.p == 2.0 ? v * v : args.p == 1.0 ? abs(v) : COMPUTE_T(accurate_pow(float(abs(v)), args.p));
#endif
            }
        }
    }
#if defined(AVERAGE_POOL)
    // Positions in the end padding count; those of a ceil-mode window beyond it do not.
    bool all = COUNT_INCLUDE_PAD != 0u;
    float count = float(count_inside(d0, KERNEL_D, args.dilation_d, all ? d0 : 0, int(args.depth + (all ? args.pad_end_d : 0u))))
        * float(count_inside(h0, KERNEL_H, args.dilation_h, all ? h0 : 0, int(args.height + (all ? args.pad_end_h : 0u))))
        * float(count_inside(w0, KERNEL_W, args.dilation_w, all ? w0 : 0, int(args.width + (all ? args.pad_end_w : 0u))));
    COMPUTE_T result = total / max(count, 1.0);  // 0 for a window without elements
#elif defined(LP_POOL)
    COMPUTE_T result = args.p == 2.0 ? sqrt(total) : args.p == 1.0 ? total : COMPUTE_T(accurate_pow(float(total), 1.0 / args.p));
#else
    COMPUTE_T result = best;
#endif
    y.v[id] = store_element(result);
#ifdef WITH_INDICES
    uint position = COLUMN_MAJOR != 0u ? where.x + args.depth * (where.y + args.height * where.z)
                                       : (where.x * args.height + where.y) * args.width + where.z;
    Int64Tensor(operand(args.indices, 2)).v[id] = none ? uvec2(~0u) : uvec2(base + position, 0u);
#endif
}
