// Combining and scanning values over lanes, by shuffles where SUBGROUP_SHUFFLE is defined, else through shared memory.
#ifndef VKEP_LANES_GLSL
#define VKEP_LANES_GLSL
#include "workgroup.glsl"

layout(constant_id = 15) const uint SUBGROUP_LANES = 32;  // the subgroup size of the pipeline

// COMBINE_LANES(name, T, combine): as COMBINE_SHARED; with SUBGROUP_SHUFFLE the slot must be the lane, and subgroups must be
// full with their lanes in order. Shuffles combine within a subgroup, shared memory across subgroups.
// SCAN_LANES(name, T, combine, identity) declares `T name(T v, uint slot, uint run, out T total)`: the combination of v over the
// slots of a run before its own, and in `total` over all of them. The conditions are those of COMBINE_LANES.
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
#define SCAN_LANES(NAME, TYPE, COMBINE, IDENTITY) \
    shared TYPE NAME##_parts[gl_WorkGroupSize.x / SUBGROUP_LANES]; \
    TYPE NAME(TYPE v, uint slot, uint run, out TYPE total) { \
        total = v; \
        if (run == 1u) return IDENTITY; \
        uint within = min(run, SUBGROUP_LANES), own = slot % SUBGROUP_LANES, at = slot % within; \
        for (uint width = 1u; width < within; width *= 2u) { \
            TYPE lower = subgroupShuffle(total, own - min(at, width)); \
            if (at >= width) total = COMBINE(lower, total); \
        } \
        TYPE before = subgroupShuffle(total, own - min(at, 1u)); \
        if (at == 0u) before = IDENTITY; \
        total = subgroupShuffle(total, own | (within - 1u)); \
        if (run > SUBGROUP_LANES) { \
            barrier(); \
            if (at == 0u) NAME##_parts[slot / SUBGROUP_LANES] = total; \
            barrier(); \
            uint first = (slot & ~(run - 1u)) / SUBGROUP_LANES; \
            TYPE sum = IDENTITY, lower = IDENTITY; \
            for (uint i = first; i < first + run / SUBGROUP_LANES; ++i) { \
                if (i == slot / SUBGROUP_LANES) lower = sum; \
                sum = COMBINE(sum, NAME##_parts[i]); \
            } \
            before = COMBINE(lower, before); \
            total = sum; \
        } \
        return before; \
    }
#else
#define COMBINE_LANES(NAME, TYPE, COMBINE) COMBINE_SHARED(NAME, TYPE, COMBINE)
#define SCAN_LANES(NAME, TYPE, COMBINE, IDENTITY) \
    shared TYPE NAME##_slots[gl_WorkGroupSize.x]; \
    TYPE NAME(TYPE v, uint slot, uint run, out TYPE total) { \
        total = v; \
        if (run == 1u) return IDENTITY; \
        uint at = slot & (run - 1u); \
        barrier(); \
        NAME##_slots[slot] = v; \
        barrier(); \
        [[dont_unroll]] for (uint width = 1u; width < run; width *= 2u) { \
            if (at >= width) v = COMBINE(NAME##_slots[slot - width], v); \
            barrier(); \
            NAME##_slots[slot] = v; \
            barrier(); \
        } \
        total = NAME##_slots[slot | (run - 1u)]; \
        return at == 0u ? IDENTITY : NAME##_slots[slot - 1u]; \
    }
#endif
#endif
