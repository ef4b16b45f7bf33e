// The workgroup's position in its grid, and combining a value over runs of lanes.
#ifndef VKEP_WORKGROUP_GLSL
#define VKEP_WORKGROUP_GLSL

// The grid that a kernel was called with, where it exceeds the device's limit along an axis and is folded
// (`KernelCall.folded`); otherwise 0.
layout(constant_id = 32) const uint FOLD_X = 0;
layout(constant_id = 33) const uint FOLD_Y = 0;
layout(constant_id = 34) const uint FOLD_Z = 0;

// gl_NumWorkGroups and gl_WorkGroupID of that grid. Surplus workgroups repeat the last one, unless they stop.
uvec3 group_count() { return FOLD_X == 0u ? gl_NumWorkGroups : uvec3(FOLD_X, FOLD_Y, FOLD_Z); }
uvec3 group_id() {
    if (FOLD_X == 0u) return gl_WorkGroupID;
    uint at = min(gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x, FOLD_X * FOLD_Y * FOLD_Z - 1u);
    return uvec3(at % FOLD_X, at / FOLD_X % FOLD_Y, at / (FOLD_X * FOLD_Y));
}
bool surplus_group() {
    return FOLD_X != 0u && gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x >= FOLD_X * FOLD_Y * FOLD_Z;
}

// Kernels of one long axis fold it into x and y themselves, so that their pipelines do not depend on its length.
uint flat_group() { return group_id().x + group_id().y * group_count().x; }
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
        [[dont_unroll]] for (uint half_run = run / 2u; half_run > 0u; half_run /= 2u) { \
            if ((slot & (run - 1u)) < half_run) \
                NAME##_slots[slot] = COMBINE(NAME##_slots[slot], NAME##_slots[slot + half_run]); \
            barrier(); \
        } \
        return NAME##_slots[slot & ~(run - 1u)]; \
    }

#endif
