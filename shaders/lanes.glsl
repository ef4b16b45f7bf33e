// Combining a value over lanes by shuffles where SUBGROUP_SHUFFLE is defined, else through shared memory.
#ifndef VKEP_LANES_GLSL
#define VKEP_LANES_GLSL
#include "workgroup.glsl"

layout(constant_id = 15) const uint SUBGROUP_LANES = 32;  // the subgroup size of the pipeline

// COMBINE_LANES(name, T, combine): as COMBINE_SHARED; with SUBGROUP_SHUFFLE the slot must be the lane, and subgroups must be
// full with their lanes in order. Shuffles combine within a subgroup, shared memory across subgroups.
#ifdef SUBGROUP_SHUFFLE
#extension GL_KHR_shader_subgroup_shuffle : require
#define COMBINE_LANES(NAME, TYPE, COMBINE) \
    shared TYPE NAME##_parts[gl_WorkGroupSize.x / SUBGROUP_LANES]; \
    TYPE NAME(TYPE v, uint slot, uint run) { \
        uint within = min(run, SUBGROUP_LANES); \
        for (uint mask = within / 2u; mask > 0u; mask /= 2u) v = COMBINE(v, subgroupShuffleXor(v, mask)); \
        if (run > SUBGROUP_LANES) { \
            barrier(); \
            if (slot % SUBGROUP_LANES == 0u) NAME##_parts[slot / SUBGROUP_LANES] = v; \
            barrier(); \
            uint first = (slot & ~(run - 1u)) / SUBGROUP_LANES; \
            v = NAME##_parts[first]; \
            for (uint i = 1u; i < run / SUBGROUP_LANES; ++i) v = COMBINE(v, NAME##_parts[first + i]); \
        } \
        return v; \
    }
#else
#define COMBINE_LANES(NAME, TYPE, COMBINE) COMBINE_SHARED(NAME, TYPE, COMBINE)
#endif
#endif
