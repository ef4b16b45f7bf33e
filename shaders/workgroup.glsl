// Workgroup helpers: a flat workgroup index, and combining a value over runs of lanes.
#ifndef VKEP_WORKGROUP_GLSL
#define VKEP_WORKGROUP_GLSL

// One axis of a grid may have no more than 65535 workgroups: a long grid is folded into x and y.
uint flat_group() { return gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x; }
uint flat_lane() { return flat_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x; }

// COMBINE_SHARED(name, T, combine) declares `T name(T v, uint slot, uint run)`: every lane gets the combination of v over
// its run of `run` (a power of two) consecutive slots; slots are a permutation of the workgroup's lanes. All lanes must
// call it. The order of combination is fixed, so results repeat.
#define COMBINE_SHARED(NAME, TYPE, COMBINE) \
    shared TYPE NAME##_slots[gl_WorkGroupSize.x]; \
    TYPE NAME(TYPE v, uint slot, uint run) { \
        if (run == 1u) return v; \
        barrier(); \
        NAME##_slots[slot] = v; \
        barrier(); \
        for (uint half_run = run / 2u; half_run > 0u; half_run /= 2u) { \
            if ((slot & (run - 1u)) < half_run) \
                NAME##_slots[slot] = COMBINE(NAME##_slots[slot], NAME##_slots[slot + half_run]); \
            barrier(); \
        } \
        return NAME##_slots[slot & ~(run - 1u)]; \
    }

#endif
