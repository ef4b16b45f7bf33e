// Sums of overlapping windows (torch's fold; ONNX Col2Im and ConvTranspose): y[n, c, pixel] is the sum of the elements of
// x[n, c, tap, window] that map to the pixel. Coordinates are (image, channel, three spatial axes); lower ranks have leading axes of
// size 1.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#include "dims.glsl"
#define AXES3(P) uint P##0; uint P##1; uint P##2;
#define ARGS_BODY { uvec2 x; WRITTEN y; EXTRA_OPERANDS uint total; FIELDS8(dim) FIELDS8(mul) FIELDS8(shift) \
    AXES3(count) AXES3(kernel) AXES3(stride) AXES3(dilation) int pad0; int pad1; int pad2; EXTRA_PARAMS }
#include "args.glsl"
#include "fastdiv.glsl"
#include "elements.glsl"
#include "workgroup.glsl"
#ifdef EPILOGUE_BODY
#include "epilogue.glsl"
#endif

// The window whose tap `t` maps to pixel `at`, or -1.
int window_of(uint at, uint t, uint stride, uint dilation, int pad, uint windows) {
    int begin = int(at) + pad - int(t * dilation);
    if (begin < 0 || begin % int(stride) != 0) return -1;
    return begin / int(stride) < int(windows) ? begin / int(stride) : -1;
}

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint dims[8] = READ8(dim), muls[8] = READ8(mul), shifts[8] = READ8(shift), at[5];
    COORDINATES(5, id, dims, muls, shifts, at)
    uint taps = args.kernel0 * args.kernel1 * args.kernel2;
    uint windows = args.count0 * args.count1 * args.count2;
    uint plane = at[0] * args.dim1 + at[1];
    InTensor x = InTensor(operand(args.x, 0));
    COMPUTE_T sum = COMPUTE_T(0);
    for (uint t0 = 0; t0 < args.kernel0; ++t0) {
        int w0 = window_of(at[2], t0, args.stride0, args.dilation0, args.pad0, args.count0);
        if (w0 < 0) continue;
        for (uint t1 = 0; t1 < args.kernel1; ++t1) {
            int w1 = window_of(at[3], t1, args.stride1, args.dilation1, args.pad1, args.count1);
            if (w1 < 0) continue;
            for (uint t2 = 0; t2 < args.kernel2; ++t2) {
                int w2 = window_of(at[4], t2, args.stride2, args.dilation2, args.pad2, args.count2);
                if (w2 < 0) continue;
                uint tap = (t0 * args.kernel1 + t1) * args.kernel2 + t2;
                uint window = (uint(w0) * args.count1 + uint(w1)) * args.count2 + uint(w2);
                sum += load_element(x.v[(plane * taps + tap) * windows + window]);
            }
        }
    }
#ifdef EPILOGUE_BODY
    sum = epilogue(sum, id, at[1], (at[2] * args.dim3 + at[3]) * args.dim4 + at[4]);
#endif
    OutTensor(operand(args.y, 1)).v[id] = store_element(sum);
}
