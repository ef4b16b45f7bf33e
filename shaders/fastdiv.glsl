// Division of n < 2**31 by a divisor known on the host, as a multiplication: vkep/kernels/fastdiv.py makes the magic
// (multiplier, shift). Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (PLDI 1994).
#ifndef VKEP_FASTDIV_GLSL
#define VKEP_FASTDIV_GLSL

// n / divisor. Doubling n leaves the multiplier 32 bits wide for every divisor, 1 included.
uint fast_div(uint n, uint multiplier, uint shift) {
    uint high, low;
    umulExtended(n << 1, multiplier, high, low);
    return high >> shift;
}

// n / divisor, and the remainder.
uint fast_divmod(uint n, uint divisor, uint multiplier, uint shift, out uint remainder) {
    uint quotient = fast_div(n, multiplier, shift);
    remainder = n - quotient * divisor;
    return quotient;
}
#endif
