// Common to ScatterElements and ScatterND. With REPLACE a lane stores one update, in units of UNIT_T. Else an update is combined
// with the element at its place: REDUCE(a, b), of the old value a and the update b, of the types of elements.glsl.
//
// In a reduction duplicate indices are valid and results repeat, without atomics: each place of a column belongs to one lane, which
// applies its updates in their order. SPLIT lanes of a workgroup share a column, and the workgroups along z do; SPLIT is 1 where
// columns suffice. The lanes read indices together, EACH of them, and each then searches them for its own places.
//
// The including kernel defines place_of(n), which reads the indices of update n, and put(place, n).
#ifndef VKEP_SCATTER_GLSL
#define VKEP_SCATTER_GLSL
#ifdef REPLACE
TENSOR(UNIT_T, InTensor)
#define OutTensor InTensor
#else
#include "elements.glsl"
#endif
#include "workgroup.glsl"

#ifndef REPLACE
layout(constant_id = 8) const uint SPLIT = 1;  // a power of two
layout(constant_id = 9) const uint EACH = 1;
shared uint places[gl_WorkGroupSize.x * EACH];
const uint WIDTH = gl_WorkGroupSize.x / SPLIT;

COMPUTE_T combined(COMPUTE_T a, COMPUTE_T b) { return REDUCE; }

uint place_of(uint n);
void put(uint place, uint n);

uint column_of_lane() { return flat_group() * WIDTH + gl_LocalInvocationID.x % WIDTH; }

// All lanes of a workgroup must call it; those that are not `live` have no column.
void apply_updates(uint count, bool live) {
    if (SPLIT == 1u) {
        for (uint n = 0u; live && n < count; ++n) put(place_of(n), n);
        return;
    }
    uint column = gl_LocalInvocationID.x % WIDTH, share = gl_LocalInvocationID.x / WIDTH;
    uint own = group_id().z * SPLIT + share, shift = 32u - uint(findMSB(group_count().z * SPLIT));
    for (uint start = 0u; start < count; start += SPLIT * EACH) {
        uint found = live ? min(SPLIT * EACH, count - start) : 0u;
        barrier();
        for (uint n = share; n < found; n += SPLIT) places[n * WIDTH + column] = place_of(start + n);
        barrier();
        for (uint part = 0u; part < found; part += 32u) {
            uint mine = 0u;
            // the upper bits of the product are spread for any distance between places
            [[unroll]] for (uint n = 0u; n < min(SPLIT * EACH, 32u); ++n)
                mine |= uint(places[(part + n) * WIDTH + column] * 0x9e3779b1u >> shift == own) << n;
            if (found - part < 32u) mine &= (1u << found - part) - 1u;
            for (; mine != 0u; mine &= mine - 1u) {
                uint n = part + uint(findLSB(mine));
                put(places[n * WIDTH + column], start + n);
            }
        }
    }
}
#endif
#endif
