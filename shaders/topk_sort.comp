// TopK along the middle of x [outer, axis, inner] by a merge sort, in several dispatches of one lane per element: sorted values
// and int64 indices [outer, k, inner] as in topk.comp. Each column is divided into runs of `run` elements.
//
// FIRST sorts the runs: a lane counts the elements of its run that go before its own. Later dispatches merge pairs of runs: a
// lane finds by binary search how many elements of the other run go before its own. Of equal elements the left run's go first,
// so the order is stable. The sorted keys and the elements' places along the axis are in temporary memory [columns, axis];
// dispatches read one pair of buffers and write another. LAST writes the result. Of a run only the first k elements are kept.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 keys; uvec2 places; WRITTEN next_keys; WRITTEN next_places; WRITTEN values; WRITTEN indices; \
    uint columns; uint axis; uint axis_mul; uint axis_shift; uint inner; uint inner_mul; uint inner_shift; \
    uint run; uint run_mul; uint run_shift; uint k; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"
#include "sortkey.glsl"

layout(constant_id = 4) const uint LARGEST = 1;
layout(constant_id = 5) const uint FIRST = 1;
layout(constant_id = 6) const uint LAST = 1;

TENSOR(KEY_T, Keys)
TENSOR(uint, Places)
TENSOR(uvec2, Int64Tensor)

KEY_T key_of(IN_T stored) {
    return sort_key(load_element(stored), LARGEST != 0u, LARGEST != 0u ? ~KEY_T(0) : KEY_T(0));
}

void main() {
    uint id = flat_lane();
    if (id >= args.columns * args.axis) return;
    InTensor x = InTensor(operand(args.x, 0));
    uint outer, i, at, run, within;  // `at` counts along the axis, `within` along the run
    if (FIRST != 0u) {  // neighbouring lanes read neighbouring elements of x
        uint row = fast_divmod(id, args.inner, args.inner_mul, args.inner_shift, i);
        outer = fast_divmod(row, args.axis, args.axis_mul, args.axis_shift, at);
    } else {
        uint column = fast_divmod(id, args.axis, args.axis_mul, args.axis_shift, at);
        outer = fast_divmod(column, args.inner, args.inner_mul, args.inner_shift, i);
    }
    run = fast_divmod(at, args.run, args.run_mul, args.run_shift, within);
    uint start = run * args.run, column_start = (outer * args.inner + i) * args.axis;

    KEY_T key;
    uint place, rank;  // the element's place along the axis, and its rank in the sorted run
    if (FIRST != 0u) {
        key = key_of(x.v[id]);
        place = at;
        rank = 0u;
        uint end = min(start + args.run, args.axis), from = (outer * args.axis + start) * args.inner + i;
        for (uint j = start; j < end; ++j, from += args.inner) {
            KEY_T other = key_of(x.v[from]);
            rank += uint(other > key || (other == key && j < at));
        }
    } else {
        if (within >= args.k) return;
        Keys keys = Keys(operand(args.keys, 1));
        key = keys.v[id];
        place = Places(operand(args.places, 2)).v[id];
        uint other_start = min((run ^ 1u) * args.run, args.axis);
        uint low = other_start, high = min(other_start + min(args.run, args.k), args.axis);
        bool right = (run & 1u) != 0u;
        while (low < high) {
            uint middle = (low + high) / 2u;
            KEY_T other = keys.v[column_start + middle];
            if (other > key || (right && other == key)) low = middle + 1u;
            else high = middle;
        }
        rank = within + low - other_start;
        start = (run & ~1u) * args.run;
    }
    if (rank >= args.k) return;

    if (LAST != 0u) {
        uint to = (outer * args.k + rank) * args.inner + i;
        OutTensor(operand(args.values, 5)).v[to] = OUT_T(x.v[(outer * args.axis + place) * args.inner + i]);
        Int64Tensor(operand(args.indices, 6)).v[to] = uvec2(place, 0u);
    } else {
        uint to = column_start + start + rank;
        Keys(operand(args.next_keys, 3)).v[to] = key;
        Places(operand(args.next_places, 4)).v[to] = place;
    }
}
