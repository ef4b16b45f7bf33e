// TopK along the middle of x [outer, axis, inner] of few elements of a long axis: sorted values and int64 indices
// [outer, k, inner] as in topk.comp. A workgroup takes a column. It narrows down the least element of the result digit by digit,
// from histograms of the next digit of the elements that agree in the ones before; equal keys differ in the digits of their
// places. What is left, up to SURVIVORS elements, is sorted in shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN values; WRITTEN indices; \
    uint columns; uint axis; uint inner; uint inner_mul; uint inner_shift; uint k; }
#include "args.glsl"
#include "elements.glsl"
#include "fastdiv.glsl"
#include "workgroup.glsl"
#include "sortkey.glsl"

layout(constant_id = 4) const uint LARGEST = 1;

TENSOR(uvec2, Int64Tensor)

const uint DIGIT = 11u, BINS = 1u << DIGIT, SURVIVORS = BINS;
const uint KEY_BITS = (~KEY_T(0) >> 31) == KEY_T(1) ? 32u : 64u;
shared uint bins[BINS];  // the histogram; later the survivors' places
shared KEY_T keys[SURVIVORS];
shared uint sums[gl_WorkGroupSize.x];
shared uint bin, above, equal, survivors;

KEY_T key_of(IN_T stored) {
    return sort_key(load_element(stored), LARGEST != 0u, LARGEST != 0u ? ~KEY_T(0) : KEY_T(0));
}

// The greatest bin that `wanted` elements, at least 1, are in or above; how many are above it, and in it.
void find_bin(uint wanted) {
    uint lane = gl_LocalInvocationID.x, each = BINS / gl_WorkGroupSize.x, top = BINS - 1u - lane * each;
    uint own = 0u;
    for (uint i = 0u; i < each; ++i) own += bins[top - i];
    sums[lane] = own;
    barrier();
    [[dont_unroll]] for (uint step = 1u; step < gl_WorkGroupSize.x; step *= 2u) {
        uint other = lane >= step ? sums[lane - step] : 0u;
        barrier();
        sums[lane] += other;
        barrier();
    }
    uint before = sums[lane] - own;
    if (before < wanted && wanted <= before + own) {
        uint i = top;
        for (; before + bins[i] < wanted; --i) before += bins[i];
        bin = i;
        above = before;
        equal = bins[i];
    }
    barrier();
}

// Whether another histogram costs less than sorting this many elements, at least k.
bool too_many(uint count) { return count > SURVIVORS || (count - args.k) * 32u > args.axis; }

void main() {
    uint column = flat_group(), lane = gl_LocalInvocationID.x;
    if (column >= args.columns || args.k == 0u) return;
    InTensor x = InTensor(operand(args.x, 0));
    uint i, outer = fast_divmod(column, args.inner, args.inner_mul, args.inner_shift, i);
    uint base = outer * args.axis * args.inner + i;

    // an element survives if its digits under the masks are at least those of the thresholds; of places, the lowest goes first
    KEY_T key_mask = KEY_T(0), key_least = KEY_T(0);
    uint place_mask = 0u, place_least = 0u;
    uint key_low = KEY_BITS, place_low = uint(findMSB(args.axis)) + 1u;  // bits that are not narrowed down yet
    uint wanted = args.k, left = args.axis;  // elements of the result that agree with the thresholds, and all that agree
    while (too_many(args.k - wanted + left)) {
        bool of_key = key_low > 0u;
        uint width = min(DIGIT, of_key ? key_low : place_low), mask = (1u << width) - 1u;
        if (of_key) key_low -= width;
        else place_low -= width;
        for (uint b = lane; b < BINS; b += gl_WorkGroupSize.x) bins[b] = 0u;
        barrier();
        for (uint j = lane; j < args.axis; j += gl_WorkGroupSize.x) {
            KEY_T key = key_of(x.v[base + j * args.inner]);
            uint place = args.axis - 1u - j;
            if ((key & key_mask) == key_least && (place & place_mask) == place_least)
                atomicAdd(bins[(of_key ? uint(key >> key_low) : place >> place_low) & mask], 1u);
        }
        barrier();
        find_bin(wanted);
        wanted -= above;
        left = equal;
        if (of_key) {
            key_mask |= KEY_T(mask) << key_low;
            key_least |= KEY_T(bin) << key_low;
        } else {
            place_mask |= mask << place_low;
            place_least |= bin << place_low;
        }
    }

    if (lane == 0u) survivors = 0u;
    barrier();
    for (uint j = lane; j < args.axis; j += gl_WorkGroupSize.x) {
        KEY_T key = key_of(x.v[base + j * args.inner]), digits = key & key_mask;
        if (digits < key_least || (digits == key_least && ((args.axis - 1u - j) & place_mask) < place_least)) continue;
        uint slot = atomicAdd(survivors, 1u);
        keys[slot] = key;
        bins[slot] = j;
    }
    barrier();
    // a bitonic sort; what fills up the last survivors' place to a power of two goes last
    uint size = 1u;
    while (size < survivors) size *= 2u;
    for (uint s = survivors + lane; s < size; s += gl_WorkGroupSize.x) {
        keys[s] = KEY_T(0);
        bins[s] = 0xffffffffu;
    }
    barrier();
    [[dont_unroll]] for (uint span = 2u; span <= size; span *= 2u) {
        [[dont_unroll]] for (uint step = span / 2u; step > 0u; step /= 2u) {
            for (uint pair = lane; pair < size / 2u; pair += gl_WorkGroupSize.x) {
                uint a = 2u * pair - (pair & (step - 1u)), b = a + step;
                KEY_T a_key = keys[a], b_key = keys[b];
                uint a_place = bins[a], b_place = bins[b];
                bool swapped = b_key > a_key || (b_key == a_key && b_place < a_place);
                if (swapped != ((a & span) == 0u)) continue;
                keys[a] = b_key;
                keys[b] = a_key;
                bins[a] = b_place;
                bins[b] = a_place;
            }
            barrier();
        }
    }
    for (uint rank = lane; rank < args.k; rank += gl_WorkGroupSize.x) {
        uint place = bins[rank], to = (outer * args.k + rank) * args.inner + i;
        OutTensor(operand(args.values, 1)).v[to] = OUT_T(x.v[base + place * args.inner]);
        Int64Tensor(operand(args.indices, 2)).v[to] = uvec2(place, 0u);
    }
}
