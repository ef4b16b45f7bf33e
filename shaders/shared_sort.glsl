// Sorting candidates in shared memory, the best first. Included after sortkey.glsl and workgroup.glsl; SIZE, a power of two and at
// least 4, is the most elements.
//
// A merge sort: of the elements that a lane merges from two sorted runs, it finds the first ones by binary search (merge path:
// Odeh, Green, Mwassi, Shmueli and Birk, "Merge Path - Parallel Merging Made Simple", IPDPSW 2012).
#ifndef VKEP_SHARED_SORT_GLSL
#define VKEP_SHARED_SORT_GLSL

shared KEY_T keys[2u * SIZE];
shared uint places[2u * SIZE];

Candidate at(uint slot) { return Candidate(keys[slot], places[slot]); }
void put(uint slot, Candidate c) {
    keys[slot] = c.key;
    places[slot] = c.index;
}

void order(inout Candidate a, inout Candidate b) {
    bool turned = before(b, a);
    Candidate first = Candidate(turned ? b.key : a.key, turned ? b.index : a.index);
    b = Candidate(turned ? a.key : b.key, turned ? a.index : b.index);
    a = first;
}

// Sorts the first n elements in shared memory; returns where the result begins.
uint sort(uint n) {
    uint lane = gl_LocalInvocationID.x, from = 0u, each = 4u;
    while (each * gl_WorkGroupSize.x < n) each *= 2u;
    barrier();
    [[dont_unroll]] for (uint s = 4u * lane; s < n; s += 4u * gl_WorkGroupSize.x) {
        Candidate a = at(s), b = at(s + 1u), c = at(s + 2u), d = at(s + 3u);
        if (s + 1u >= n) b = NONE;
        if (s + 2u >= n) c = NONE;
        if (s + 3u >= n) d = NONE;
        order(a, b);
        order(c, d);
        order(a, c);
        order(b, d);
        order(b, c);
        put(s, a);
        put(s + 1u, b);
        put(s + 2u, c);
        put(s + 3u, d);
    }
    barrier();
    [[dont_unroll]] for (uint width = 4u; width < n; width *= 2u) {
        uint chunk = min(each, 2u * width), to = SIZE - from;
        [[dont_unroll]] for (uint begin = lane * chunk; begin < n; begin += gl_WorkGroupSize.x * chunk) {
            uint left = begin & ~(2u * width - 1u), right = min(left + width, n), end = min(right + width, n);
            // of the `before_it` elements before this lane's, the first `low` ones are of the left run
            uint before_it = begin - left, low = before_it - min(before_it, end - right), high = min(before_it, right - left);
            while (low < high) {
                uint middle = (low + high) / 2u;
                if (before(at(from + right + before_it - 1u - middle), at(from + left + middle))) high = middle;
                else low = middle + 1u;
            }
            uint a = left + low, b = right + before_it - low;
            Candidate a_head = a < right ? at(from + a) : NONE, b_head = b < end ? at(from + b) : NONE;
            end = min(end, begin + chunk);
            uint b_end = min(right + width, n);
            [[dont_unroll]] for (uint s = begin; s < end; ++s) {
                bool of_b = before(b_head, a_head);
                keys[to + s] = of_b ? b_head.key : a_head.key;
                places[to + s] = of_b ? b_head.index : a_head.index;
                b += uint(of_b);
                a += uint(!of_b);
                uint next = of_b ? b : a;
                bool more = next < (of_b ? b_end : right);
                uint slot = from + min(next, SIZE - 1u);
                KEY_T key = more ? keys[slot] : KEY_T(0);
                uint place = more ? places[slot] : 0xffffffffu;
                a_head.key = of_b ? a_head.key : key;
                a_head.index = of_b ? a_head.index : place;
                b_head.key = of_b ? key : b_head.key;
                b_head.index = of_b ? place : b_head.index;
            }
        }
        barrier();
        from = to;
    }
    return from;
}
#endif
