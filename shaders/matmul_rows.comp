// y[batch] = alpha * a[batch] (m by k) * b[batch] (k by n) for few rows: what counts is reading b once, at full width.
//
// A workgroup computes ROWS rows by COLUMNS * WIDTH columns; SLICES lanes share a column's sum, each taking every SLICES-th
// step of k, and add their parts through shared memory. K_FASTEST: neighbouring lanes lie along k (b is dense along k), else
// along columns. B_WIDE reads four columns at a time (aligned, n a multiple of 4).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; uvec2 y; EXTRA_OPERANDS \
    uint m; uint n; uint k; uint batch1; uint a_row; uint a_col; uint b_row; uint b_col; \
    uint y_row; uint y_col; uint a_batch0; uint a_batch1; uint b_batch0; uint b_batch1; uint y_batch0; uint y_batch1; \
    float alpha; EXTRA_PARAMS }
#include "args.glsl"
#include "workgroup.glsl"
#include "epilogue.glsl"

layout(constant_id = 4) const uint ROWS = 1;
layout(constant_id = 5) const uint COLUMNS = 8;  // lanes
layout(constant_id = 6) const uint SLICES = 32;
layout(constant_id = 7) const uint K_FASTEST = 0;
layout(constant_id = 8) const uint B_WIDE = 0;

const uint WIDTH = B_WIDE == 1 ? 4 : 1;
const uint STEPS = 4;  // steps of k with loads in flight

TENSOR(T, Elements)
layout(buffer_reference, std430, buffer_reference_align = 8) buffer WideElements { WIDE_T v[]; };
shared float parts[SLICES * (COLUMNS * WIDTH + 1)];

void main() {
    uint id = gl_LocalInvocationIndex;
    uint lane = K_FASTEST == 1 ? id / SLICES : id % COLUMNS, slice = K_FASTEST == 1 ? id % SLICES : id / COLUMNS;
    uint batch0 = group_id().z / args.batch1, batch1 = group_id().z % args.batch1;
    uint column0 = group_id().x * COLUMNS * WIDTH, row0 = group_id().y * ROWS;
    Elements a = Elements(operand(args.a, 0)), b = Elements(operand(args.b, 1));
    WideElements b_wide = WideElements(operand(args.b, 1));
    uint a0 = batch0 * args.a_batch0 + batch1 * args.a_batch1;
    // Rows and columns past the edge repeat the last one: their results are not stored.
    uint column = min(column0 + lane * WIDTH, args.n - WIDTH);
    uint b0 = batch0 * args.b_batch0 + batch1 * args.b_batch1 + column * args.b_col;
    uint a_at[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) a_at[r] = a0 + min(row0 + r, args.m - 1) * args.a_row;

    vec4 acc[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) acc[r] = vec4(0.0);
    for (uint k = slice; k < args.k; k += SLICES * STEPS) {
        vec4 values[STEPS];
        [[unroll]] for (uint s = 0; s < STEPS; s++) {
            uint at = b0 + min(k + s * SLICES, args.k - 1) * args.b_row;
            if (B_WIDE == 1) values[s] = vec4(b_wide.v[at / 4]);
            else values[s] = vec4(float(b.v[at]));
        }
        [[unroll]] for (uint s = 0; s < STEPS; s++) {
            if (k + s * SLICES < args.k)
                [[unroll]] for (uint r = 0; r < ROWS; r++) acc[r] += float(a.v[a_at[r] + (k + s * SLICES) * args.a_col]) * values[s];
        }
    }
    uint y0 = batch0 * args.y_batch0 + batch1 * args.y_batch1, o0 = group_id().z * args.m * args.n;
    uint pitch = COLUMNS * WIDTH + 1;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        [[unroll]] for (uint c = 0; c < WIDTH; c++) parts[slice * pitch + lane * WIDTH + c] = acc[r][c];
        barrier();
        uint row = row0 + r;
        column = column0 + id;
        if (id < COLUMNS * WIDTH && row < args.m && column < args.n) {
            float sum = 0.0;
            [[unroll]] for (uint s = 0; s < SLICES; s++) sum += parts[s * pitch + id];
            Elements(operand(args.y, 2)).v[y0 + row * args.y_row + column * args.y_col] =
                T(epilogue(args.alpha * sum, o0 + row * args.n + column, row, column));
        }
        barrier();
    }
}
