// Element types of a kernel, from the dtypes table: IN_T and OUT_T in buffers, COMPUTE_T in registers.
// Included after vkep.glsl. IN_BFLOAT16 and OUT_BFLOAT16 say that a uint16_t holds a bfloat16.
#ifndef VKEP_ELEMENTS_GLSL
#define VKEP_ELEMENTS_GLSL

#ifndef OUT_T
#define OUT_T IN_T
#endif
TENSOR(IN_T, InTensor)
TENSOR(OUT_T, OutTensor)

#ifdef IN_BFLOAT16
COMPUTE_T load_element(IN_T v) { return uintBitsToFloat(uint(v) << 16); }
#else
COMPUTE_T load_element(IN_T v) { return COMPUTE_T(v); }
#endif

#ifdef OUT_BFLOAT16
OUT_T store_element(COMPUTE_T v) {
    uint bits = floatBitsToUint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return OUT_T(0x7fc0u);  // rounding could carry a NaN into infinity
    return OUT_T((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);     // to nearest, ties to even
}
#else
OUT_T store_element(COMPUTE_T v) { return OUT_T(v); }
#endif
#endif
