// The sum of a score and a bias of type BIAS_T, both kernels of attention alike.
#ifndef VKEP_ATTENTION_BIAS_GLSL
#define VKEP_ATTENTION_BIAS_GLSL
// A bias up to this absorbs the score: a row whose biases are all the lowest finite number of their type weighs its keys alike.
#define ABSORBS_float16_t -32768.0
#define ABSORBS_float -2.3e38
#define ABSORBS_OF(TYPE) ABSORBS_##TYPE
#define ABSORBS(TYPE) ABSORBS_OF(TYPE)

// In base 2. A bias of -infinity hides a NaN score too.
float biased(float score, float bias) {
    float lowest = uintBitsToFloat(0xff800000u), lowest_finite = uintBitsToFloat(0xff7fffffu);
    return bias == lowest ? lowest : bias <= ABSORBS(BIAS_T) ? lowest_finite : score + 1.4426950408889634 * bias;
}
#endif
