// Elements of a word and narrower ones, 16 bytes at a time: UNIT_ELEMENTS of IN_T in a uvec4. UNIT_FLOATS is the bits of
// one where they are floats (of 16: bfloat16 with IN_BFLOAT16). With UNIT_PAIRS a unit is loaded as two 64-bit words:
// CPU drivers gather each lane's word by itself, a long one in the time of a short one. Included after elements.glsl.
#ifndef VKEP_UNITS_GLSL
#define VKEP_UNITS_GLSL

#ifdef UNIT_PAIRS
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer InUnits { u64vec2 v[]; };
uvec4 load_unit(InUnits x, uint at) {
    u64vec2 pairs = x.v[at];
    return uvec4(unpackUint2x32(pairs.x), unpackUint2x32(pairs.y));
}
#else
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer InUnits { uvec4 v[]; };
uvec4 load_unit(InUnits x, uint at) { return x.v[at]; }
#endif

COMPUTE_T unit_element(uvec4 unit, uint n) {
    uint word = unit[n * 4u / UNIT_ELEMENTS];
#if defined(IN_BFLOAT16)
    return uintBitsToFloat((n & 1u) != 0u ? word & 0xffff0000u : word << 16);
#elif UNIT_FLOATS == 32
    return uintBitsToFloat(word);
#elif defined(UNIT_FLOATS)
    return unpackHalf2x16(word)[n & 1u];
#else
    const uint bits = 128u / UNIT_ELEMENTS;
    return bitfieldExtract(COMPUTE_T(word), int(n * bits % 32u), int(bits));  // sign-extended for an int
#endif
}
#endif
