// y [m, n] = a [m, k] @ W for block-quantised W (com.microsoft MatMulNBits): a workgroup makes ROWS results of one column, its
// lanes walking the column's packed words, so that weights are read once, in order, and unpacked in registers.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; uvec2 scales; uvec2 zeros; uvec2 y; \
    uint m; uint n; uint k; uint blocks; uint block_words; uint zero_bytes; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint BITS = 4;
layout(constant_id = 5) const uint ROWS = 4;
layout(constant_id = 6) const uint BLOCK = 32;
layout(constant_id = 7) const uint HAS_ZEROS = 0;
const uint EACH = 32u / BITS, MASK = (1u << BITS) - 1u;

TENSOR(T, Elements)
TENSOR(uint, Words)
TENSOR(uint8_t, Bytes)

float add(float x, float y) { return x + y; }
COMBINE_SHARED(total_of, float, add)

void main() {
    uint column = flat_group();
    if (column >= args.n) return;  // the whole workgroup
    Elements a = Elements(operand(args.a, 0)), scales = Elements(operand(args.scales, 2));
    Words words = Words(operand(args.b, 1));
    Bytes zeros = Bytes(operand(args.zeros, 3));
    uint row0 = group_id().z * ROWS;
    float sums[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) sums[r] = 0.0;
    uint count = args.blocks * args.block_words;
    for (uint w = gl_LocalInvocationID.x; w < count; w += gl_WorkGroupSize.x) {
        uint word = words.v[column * count + w];
        uint block = w / args.block_words;
        float scale = float(scales.v[column * args.blocks + block]);
        float zero = float(1u << (BITS - 1u));
        if (HAS_ZEROS != 0u) {
            uint bit = block * BITS;
            zero = float((uint(zeros.v[column * args.zero_bytes + bit / 8u]) >> (bit % 8u)) & MASK);
        }
        uint k0 = w * EACH;
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            uint row = min(row0 + r, args.m - 1u);
            float sum = 0.0;
            [[unroll]] for (uint e = 0u; e < EACH; ++e) {
                float weight = float((word >> (e * BITS)) & MASK) - zero;
                if (k0 + e < args.k) sum += weight * float(a.v[row * args.k + k0 + e]);
            }
            sums[r] += sum * scale;
        }
    }
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        float total = total_of(sums[r], gl_LocalInvocationID.x, gl_WorkGroupSize.x);
        if (gl_LocalInvocationID.x == 0u && row0 + r < args.m)
            Elements(operand(args.y, 4)).v[(row0 + r) * args.n + column] = T(total);
    }
}
