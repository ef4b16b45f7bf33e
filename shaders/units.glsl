// Elements narrower than a word, 16 bytes at a time: UNIT_ELEMENTS of IN_T in a uvec4. With UNIT_FLOATS they are floats
// (float16, or bfloat16 with IN_BFLOAT16). Included after elements.glsl.
#ifndef VKEP_UNITS_GLSL
#define VKEP_UNITS_GLSL

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer InUnits { uvec4 v[]; };

COMPUTE_T unit_element(uvec4 unit, uint n) {
    uint word = unit[n * 4u / UNIT_ELEMENTS];
#if defined(IN_BFLOAT16)
    return uintBitsToFloat((n & 1u) != 0u ? word & 0xffff0000u : word << 16);
#elif defined(UNIT_FLOATS)
    return unpackHalf2x16(word)[n & 1u];
#else
    const uint bits = 128u / UNIT_ELEMENTS;
    return bitfieldExtract(COMPUTE_T(word), int(n * bits % 32u), int(bits));  // sign-extended for an int
#endif
}
#endif
