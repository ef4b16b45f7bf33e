// The type of a kernel's results, which are computed in float and stored eight of a row at a time where they lie in aligned groups:
// float16_t, or R of R_BYTES: float, or (codes, whole numbers) int8_t or uint8_t.
#ifndef VKEP_RESULTS_GLSL
#define VKEP_RESULTS_GLSL
#ifndef R
#define R float16_t
#define R_BYTES 2
#endif
TENSOR(R, Results)

#if R_BYTES == 4
layout(buffer_reference, std430, buffer_reference_align = 16) buffer EightResults { vec4 v[]; };
#elif R_BYTES == 2
layout(buffer_reference, std430, buffer_reference_align = 16) buffer EightResults { uvec4 v[]; };
uint pack_two(float a, float b) { return packFloat2x16(f16vec2(a, b)); }
#else
layout(buffer_reference, std430, buffer_reference_align = 8) buffer EightResults { uvec2 v[]; };
// Whole numbers of at most 2**22 by their bits: conversions to integers are slower than sums.
uint pack_four(vec4 x) {
    uvec4 bits = floatBitsToUint(x + 12582912.0) & 255u;
    return bits.x | bits.y << 8 | bits.z << 16 | bits.w << 24;
}
#endif

void store_results(uvec2 y, uint at, vec4 low, vec4 high) {
    EightResults eights = EightResults(y);
#if R_BYTES == 4
    eights.v[at / 4] = low;
    eights.v[at / 4 + 1] = high;
#elif R_BYTES == 2
    eights.v[at / 8] = uvec4(pack_two(low.x, low.y), pack_two(low.z, low.w), pack_two(high.x, high.y), pack_two(high.z, high.w));
#else
    eights.v[at / 8] = uvec2(pack_four(low), pack_four(high));
#endif
}
#endif
