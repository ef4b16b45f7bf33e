// softmax or log-softmax of alpha * x over the middle of [outer, axis, inner] in one dispatch, as exp(alpha x - max), which is
// stable. SPLIT lanes share a column as in reduce.comp. A lane keeps its first KEPT elements in registers; the others (none
// without REST) are read from memory three times. With VECTOR_IN_T (inner is 1) axis counts groups of four.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN y; EXTRA_OPERANDS \
    uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; float alpha; EXTRA_PARAMS }
#include "args.glsl"
#include "elements.glsl"
#include "rows.glsl"
#include "fastdiv.glsl"
#include "lanes.glsl"

layout(constant_id = 4) const uint SPLIT = 1;
layout(constant_id = 5) const uint ACROSS = 0;
layout(constant_id = 6) const uint KEPT = 0;
layout(constant_id = 7) const uint REST = 1;  // else axis <= SPLIT * KEPT
layout(constant_id = 8) const uint LOG = 0;
layout(constant_id = 9) const uint KEEP_POWERS = 0;  // y holds the rest's powers between passes (float32): half the calls of exp()
layout(constant_id = 10) const uint ZEROS = 0;  // a column of -infinity alone gives zeros

float add(float a, float b) { return a + b; }
float larger(float a, float b) { return max(a, b); }
COMBINE_LANES(max_of, float, larger)
COMBINE_LANES(sum_of, float, add)

#define LOWEST uintBitsToFloat(0xff800000u)  // -infinity

void main() {
    InRow x = InRow(operand(args.x, 0));
    OutRow y = OutRow(operand(args.y, 1));
    uint width = gl_WorkGroupSize.x / SPLIT;
    uint lane = gl_LocalInvocationID.x;
    uint share = ACROSS != 0u ? lane % SPLIT : lane / width;
    uint local_column = ACROSS != 0u ? lane / SPLIT : lane % width;
    uint slot = local_column * SPLIT + share;
    uint column = flat_group() * width + local_column;
    bool live = column < args.columns;
    uint i, outer = fast_divmod(live ? column : 0u, args.inner, args.inner_mul, args.inner_shift, i);
    uint axis = live ? args.axis : 0u;
    uint first = (outer * args.axis + share) * args.inner + i;
    uint stride = SPLIT * args.inner;

    uint beyond = REST != 0u ? axis : 0u;
    uint rest = KEPT * SPLIT + share, begin = first + KEPT * stride;

    float top = LOWEST, total = 0.0;
    VALUE_T kept[KEPT > 0u ? KEPT : 1u];
    [[unroll]] for (uint j = 0u; j < KEPT; ++j) {
        bool inside = j * SPLIT + share < axis;
        kept[j] = inside ? args.alpha * load_value(x.v[first + j * stride]) : VALUE_T(LOWEST);
        top = max(top, max_within(kept[j]));
    }
    uint at = begin;
    for (uint k = rest; k < beyond; k += SPLIT, at += stride)
        top = max(top, max_within(args.alpha * load_value(x.v[at])));
    top = max_of(top, slot, SPLIT);
    if (ZEROS != 0u) top = top == LOWEST ? 0.0 : top;
    [[unroll]] for (uint j = 0u; j < KEPT; ++j) {
        VALUE_T power = exp(kept[j] - top);
        total += j * SPLIT + share < axis ? sum_within(power) : 0.0;
        kept[j] = LOG != 0u ? kept[j] - top : power;
    }
    at = begin;
    for (uint k = rest; k < beyond; k += SPLIT, at += stride) {
        VALUE_T power = exp(args.alpha * load_value(x.v[at]) - top);
        total += sum_within(power);
        if (KEEP_POWERS != 0u) y.v[at] = store_value(power);
    }
    total = sum_of(total, slot, SPLIT);
    float scale = ZEROS != 0u && total == 0.0 ? 0.0 : 1.0 / total, shift = log(total);
    [[unroll]] for (uint j = 0u; j < KEPT; ++j) {
        uint k = j * SPLIT + share, to = first + j * stride;
        if (k < axis) y.v[to] = finished(LOG != 0u ? kept[j] - shift : kept[j] * scale, to, column, k);
    }
    at = begin;
    for (uint k = rest; k < beyond; k += SPLIT, at += stride) {
        if (KEEP_POWERS != 0u) {
            y.v[at] = store_value(VALUE_T(y.v[at]) * scale);
        } else {
            VALUE_T centred = args.alpha * load_value(x.v[at]) - top;
            y.v[at] = finished(LOG != 0u ? centred - shift : exp(centred) * scale, at, column, k);
        }
    }
}
