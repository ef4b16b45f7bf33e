// y = alpha * sum over splits of partials[split, batch, m, n] (SUM: float, or int): the second half of a product split along k.
// y is [batch0, batch1, m, n] with strides in elements.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 partials; WRITTEN y; EXTRA_OPERANDS \
    uint m; uint n; uint splits; uint total; uint batch1; uint y_row; uint y_col; uint y_batch0; uint y_batch1; float alpha; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

TENSOR(T, Elements)
#ifndef SUM
#define SUM float
#endif
TENSOR(SUM, Partial)

// total = batch0 * batch1 * m * n
void main() {
    uint o = flat_lane();
    if (o >= args.total) return;
    Partial partials = Partial(operand(args.partials, 0));
    SUM sum = SUM(0);
    for (uint s = 0; s < args.splits; s++) sum += partials.v[s * args.total + o];
    uint column = o % args.n, row = o / args.n % args.m, batch = o / args.n / args.m;
    uint at = batch / args.batch1 * args.y_batch0 + batch % args.batch1 * args.y_batch1 + row * args.y_row + column * args.y_col;
    Elements(operand(args.y, 1)).v[at] = T(epilogue(args.alpha * float(sum), o, row, column));
}
