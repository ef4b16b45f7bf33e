// The transforms of Winograd's F(4x4, 3x3) at the points 0, +-sqrt(1/2), +-sqrt(2) and infinity, in one dimension.
// These points keep the rounding error three to four times below that of the usual 0, +-1, +-2 (measured).
#ifndef VKEP_WINOGRAD_GLSL
#define VKEP_WINOGRAD_GLSL
const float WINOGRAD_A = 0.70710678118654752;
const float WINOGRAD_B = 1.41421356237309505;

// Six neighbouring inputs to six points, in place.
#define WINOGRAD_INPUT(d0, d1, d2, d3, d4, d5) { \
    float inner_even = d4 - 2.0 * d2, inner_odd = WINOGRAD_A * (d3 - 2.0 * d1); \
    float outer_even = d4 - 0.5 * d2, outer_odd = WINOGRAD_B * (d3 - 0.5 * d1); \
    d0 = d0 - 2.5 * d2 + d4; \
    d5 = d1 - 2.5 * d3 + d5; \
    d1 = inner_even + inner_odd; \
    d2 = inner_even - inner_odd; \
    d3 = outer_even + outer_odd; \
    d4 = outer_even - outer_odd; \
}

// Six points to four neighbouring outputs, in the first four.
#define WINOGRAD_OUTPUT(m0, m1, m2, m3, m4, m5) { \
    float inner_sum = m1 + m2, inner_difference = WINOGRAD_A * (m1 - m2); \
    float outer_sum = m3 + m4, outer_difference = WINOGRAD_B * (m3 - m4); \
    m0 = m0 + inner_sum + outer_sum; \
    m1 = inner_difference + outer_difference; \
    m2 = 0.5 * inner_sum + 2.0 * outer_sum; \
    m3 = 0.5 * inner_difference + 2.0 * outer_difference + m5; \
}
#endif
