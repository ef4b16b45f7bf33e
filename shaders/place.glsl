// Places of the outputs of a resized axis on its input: output j is at (a * j + b) / q, computed exactly. |a|, |b| and q are below
// 2**30 (vkep/kernels/images/resize_tables.py, which does the same on the host).
#ifndef VKEP_PLACE_GLSL
#define VKEP_PLACE_GLSL

// (high * 2**32 + low) / divisor for a divisor below 2**31, and the remainder; quotients stop at 2**31 - 1.
uint divide(uint high, uint low, uint divisor, out uint remainder) {
    remainder = low % divisor;
    if (high == 0u) return min(low / divisor, 0x7fffffffu);
    if (high >= divisor) return 0x7fffffffu;
    uint quotient = 0u;
    remainder = high;
    for (uint bit = 0u; bit < 32u; ++bit) {
        remainder = (remainder << 1) | (low >> 31);
        low <<= 1;
        quotient <<= 1;
        if (remainder >= divisor) {
            remainder -= divisor;
            quotient |= 1u;
        }
    }
    return min(quotient, 0x7fffffffu);
}

// a * j + b in two's complement: the upper half is negative where the sum is.
void place(int a, uint j, int b, out int high, out uint low) {
    imulExtended(a, int(j), high, low);
    uint carry;
    low = uaddCarry(low, uint(b), carry);
    high += (b < 0 ? -1 : 0) + int(carry);
}

// The floor of a place divided by q (at least -2**31 + 1), and its remainder.
int floor_of(int high, uint low, uint q, out uint remainder) {
    if (high >= 0) return int(divide(uint(high), low, q, remainder));
    low = ~low + 1u;
    high = ~high + (low == 0u ? 1 : 0);
    int down = -int(divide(uint(high), low, q, remainder));
    if (remainder == 0u) return down;
    remainder = q - remainder;
    return down - 1;
}
#endif
