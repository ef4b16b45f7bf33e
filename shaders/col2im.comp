// ONNX Col2Im (torch's fold): y[n, c, image] sums the elements of x[n, c, block, window] that lie on each pixel.
// Up to three spatial axes; lower ranks have leading axes of size 1.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 y; uint total; \
    int image0; int image1; int image2; int block0; int block1; int block2; int window0; int window1; int window2; \
    int stride0; int stride1; int stride2; int dilation0; int dilation1; int dilation2; int pad0; int pad1; int pad2; }
#include "args.glsl"
#include "elements.glsl"
#include "workgroup.glsl"

// The window in which block position `b` lies on pixel `at`, or -1.
int window_of(int at, int b, int stride, int dilation, int pad, int windows) {
    int begin = at + pad - b * dilation;
    return begin >= 0 && begin % stride == 0 && begin / stride < windows ? begin / stride : -1;
}

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    int pixel = int(id);
    int i2 = pixel % args.image2, i1 = pixel / args.image2 % args.image1;
    int i0 = pixel / (args.image2 * args.image1) % args.image0;
    int plane = pixel / (args.image2 * args.image1 * args.image0);
    int blocks = args.block0 * args.block1 * args.block2;
    int windows = args.window0 * args.window1 * args.window2;
    InTensor x = InTensor(operand(args.x, 0));
    COMPUTE_T sum = COMPUTE_T(0);
    for (int b0 = 0; b0 < args.block0; ++b0) {
        int w0 = window_of(i0, b0, args.stride0, args.dilation0, args.pad0, args.window0);
        if (w0 < 0) continue;
        for (int b1 = 0; b1 < args.block1; ++b1) {
            int w1 = window_of(i1, b1, args.stride1, args.dilation1, args.pad1, args.window1);
            if (w1 < 0) continue;
            for (int b2 = 0; b2 < args.block2; ++b2) {
                int w2 = window_of(i2, b2, args.stride2, args.dilation2, args.pad2, args.window2);
                if (w2 < 0) continue;
                int block = (b0 * args.block1 + b1) * args.block2 + b2;
                int window = (w0 * args.window1 + w1) * args.window2 + w2;
                sum += load_element(x.v[(plane * blocks + block) * windows + window]);
            }
        }
    }
    OutTensor(operand(args.y, 1)).v[id] = store_element(sum);
}
