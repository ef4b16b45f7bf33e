// Functions for fused expressions: where drivers differ, or are allowed more error than ONNX's users expect.
#ifndef VKEP_MATH_GLSL
#define VKEP_MATH_GLSL

// clamp() that keeps NaN. clamp(), max() and min() may return a number for NaN; so may comparisons and selections that a driver
// compiles to them.
float limited(float x, float low, float high) { return isnan(x) ? x : min(max(x, low), high); }
float relu(float x) { return isnan(x) || x > 0.0 ? x : 0.0; }

// The size of one number with the sign of another, which may be -0.
float with_sign(float size, float from) {
    return uintBitsToFloat((floatBitsToUint(size) & 0x7fffffffu) | (floatBitsToUint(from) & 0x80000000u));
}
double with_sign(double size, double from) {
    uvec2 bits = unpackDouble2x32(size);
    return packDouble2x32(uvec2(bits.x, (bits.y & 0x7fffffffu) | (unpackDouble2x32(from).y & 0x80000000u)));
}

// A number of at most 2**22 rounded to the nearest whole one, ties to even, and such an integer as a float: by sums with
// 1.5 * 2**23, of which a unit is the last bit. roundEven() and conversions run at an eighth of the rate of sums on some GPUs.
float near_whole(float x) {
    precise float sum = x + 12582912.0, whole = sum - 12582912.0;
    return whole;
}
float small_float(int x) {
    precise float less = intBitsToFloat(x + 0x4b400000) - 12582912.0;
    return less;
}

// Conversions to integers: truncated, NaN is 0, and numbers beyond the type are its nearest end, which GLSL leaves undefined.
// Negative numbers become unsigned ones as integers do.
#define TO_INTEGER(SIGNED, UNSIGNED, REAL, HALF, LOWEST) \
    SIGNED to_##SIGNED(REAL x) { return isnan(x) ? SIGNED(0) : x >= HALF ? ~LOWEST : x < -HALF ? LOWEST : SIGNED(x); } \
    UNSIGNED to_##UNSIGNED(REAL x) { \
        if (isnan(x) || x < REAL(0.0)) return UNSIGNED(to_##SIGNED(x)); \
        return x >= HALF + HALF ? ~UNSIGNED(0) : UNSIGNED(x); \
    }
TO_INTEGER(int, uint, float, 2147483648.0, int(0x80000000u))
TO_INTEGER(int, uint, double, 2147483648.0lf, int(0x80000000u))
TO_INTEGER(int64_t, uint64_t, float, 9223372036854775808.0, int64_t(0x8000000000000000UL))
TO_INTEGER(int64_t, uint64_t, double, 9223372036854775808.0lf, int64_t(0x8000000000000000UL))

// A number rounded to float16 (to nearest, ties to even), by its bits: Mesa's compiler takes float(float16_t(x)) for x.
float rounded_to_half(float x) {
    uint size = floatBitsToUint(x) & 0x7fffffffu;
    if (size >= 0x7f800000u) return x;
    if (size >= 0x477ff000u) return with_sign(uintBitsToFloat(0x7f800000u), x);
    if (size < 0x38800000u) return with_sign(roundEven(abs(x) * 16777216.0) * 5.9604644775390625e-8, x);  // multiples of 2**-24
    return with_sign(uintBitsToFloat((size + 0xfffu + ((size >> 13) & 1u)) & 0xffffe000u), x);
}

// Some drivers' tanh overflows for large arguments, and some clamp NaN away.
float limited_tanh(float x) { return isnan(x) ? x : tanh(clamp(x, -20.0, 20.0)); }

// Some drivers compute the logarithm of a subnormal number as that of 0 or of the smallest normal number: here its bits are
// converted as a multiple of 2**-149. GLSL's log() is undefined from 0 down.
float accurate_log(float x) {
    uint bits = floatBitsToUint(x);
    if ((bits << 1) == 0u) return uintBitsToFloat(0xff800000u);
    if (bits > 0x7f800000u) return uintBitsToFloat(0x7fc00000u);
    return bits < 0x00800000u ? log(float(bits)) - 103.27892990343185 : log(x);
}

// exp(x) / 2 for x >= 80, where exp() overflows before its half does
float half_exp(float x) { return 0.5 * exp(0.5 * x) * exp(0.5 * x); }
float accurate_cosh(float x) { return abs(x) > 80.0 ? half_exp(abs(x)) : cosh(x); }
float accurate_sinh(float x) {
    float z = x * x;
    if (z < 0.01) return x * (1.0 + z * (1.0 / 6.0 + z * (1.0 / 120.0)));
    return abs(x) > 80.0 ? (x < 0.0 ? -half_exp(-x) : half_exp(x)) : sinh(x);
}

// Inverse angles by polynomials near 0 (S. Moshier, Cephes): Vulkan allows asin(), acos() and atan() errors of 2**-11 and more.
float asin_to_half(float x) {
    float z = x * x;
    return x + x * z * (0.16666752422 + z * (0.074953002686 + z * (0.045470025998 + z * (0.024181311049 + z * 0.042163199048))));
}
float accurate_asin(float x) {
    if (abs(x) <= 0.5) return asin_to_half(x);
    float y = 1.5707963267948966 - 2.0 * asin_to_half(sqrt(0.5 - 0.5 * abs(x)));
    return x < 0.0 ? -y : y;
}
float accurate_acos(float x) {
    if (abs(x) <= 0.5) return 1.5707963267948966 - asin_to_half(x);
    float y = 2.0 * asin_to_half(sqrt(0.5 - 0.5 * abs(x)));
    return x < 0.0 ? 3.141592653589793 - y : y;
}
float accurate_atan(float x) {
    float size = abs(x), base = 0.0, part = size;
    if (size > 2.414213562373095) base = 1.5707963267948966, part = -1.0 / size;
    else if (size > 0.4142135623730950) base = 0.7853981633974483, part = (size - 1.0) / (size + 1.0);
    float z = part * part;
    float y = base + (part + part * z * (-0.333329491539 + z * (0.199777106478 + z * (-0.138776856032 + z * 0.0805374449538))));
    return with_sign(y, x);
}

// A square root, NaN of negative numbers and -0 of -0: GLSL's sqrt() is undefined below 0.
float accurate_sqrt(float x) {
    uint bits = floatBitsToUint(x);
    if (bits << 1 == 0u || bits == 0x7f800000u) return x;
    return bits > 0x7f800000u ? uintBitsToFloat(0x7fc00000u) : sqrt(x);
}
double accurate_sqrt(double x) { return x < 0.0 ? packDouble2x32(uvec2(0u, 0x7ff80000u)) : x == 0.0 ? x : sqrt(x); }

// x raised to y, as in C (annex F.10.4.4), NaN where the power is not real: GLSL's pow() is undefined for x < 0, and for x = 0
// and y <= 0. Special values are compared by their bits: a compiler may ignore the sign of 0 and NaN, a device may take a
// subnormal number for 0.
float accurate_pow(float x, float y) {
    const uint ONE = 0x3f800000u, MOST = 0x7f800000u, NONE = 0x7fc00000u;
    uint size = floatBitsToUint(x) & 0x7fffffffu, power = floatBitsToUint(y) & 0x7fffffffu;
    bool negative = floatBitsToUint(x) > 0x7fffffffu, falls = floatBitsToUint(y) > 0x7fffffffu;
    if (power == 0u || floatBitsToUint(x) == ONE) return 1.0;
    if (size > MOST || power > MOST) return uintBitsToFloat(NONE);
    float exponent = uintBitsToFloat(power);
    bool whole = power >= 0x4b800000u || floor(exponent) == exponent;  // all numbers from 2**24 on are even
    bool odd = power < 0x4b800000u && whole && (uint(exponent) & 1u) != 0u;
    float result;
    if (size == 0u || size == MOST) result = uintBitsToFloat((size == 0u) == falls ? MOST : 0u);
    else if (size == ONE && (whole || !negative)) result = 1.0;
    else if (power == MOST) result = uintBitsToFloat((size < ONE) == falls ? MOST : 0u);
    else if (negative && !whole) return uintBitsToFloat(NONE);
    else {
        // a subnormal base is a multiple of 2**-149
        float base = size < 0x800000u ? float(size) : uintBitsToFloat(size);
        result = exp2(y * (log2(base) - (size < 0x800000u ? 149.0 : 0.0)));
        if (whole && exponent <= 64.0 && size >= 0x800000u) {  // by squaring, which is exact for small integers
            float product = 1.0;
            for (uint left = uint(exponent); left != 0u; left >>= 1u) {
                if ((left & 1u) != 0u) product *= base;
                base *= base;
            }
            if (!falls) result = product;
            else if (product > 1e-37 && product < 1e37) result = exact_quotient(1.0, product);
        } else if (power == 0x3f000000u && size >= 0x800000u) {
            float root = sqrt(base);
            result = falls ? exact_quotient(1.0, root) : root;
        }
    }
    return odd && negative ? with_sign(result, x) : result;
}

// The remainder of abs(a) by abs(d), both finite and d not 0, exactly: mantissas as integers, eight bits of quotient at a time.
float exact_remainder(float a, float d) {
    uint a_bits = floatBitsToUint(a) & 0x7fffffffu, d_bits = floatBitsToUint(d) & 0x7fffffffu;
    if (a_bits < d_bits) return abs(a);
    uint a_exponent = max(a_bits >> 23, 1u), d_exponent = max(d_bits >> 23, 1u);
    uint divisor = (d_bits & 0x7fffffu) | (d_bits >= 0x800000u ? 0x800000u : 0u);
    uint rest = ((a_bits & 0x7fffffu) | (a_bits >= 0x800000u ? 0x800000u : 0u)) % divisor;
    for (uint left = a_exponent - d_exponent; left != 0u && rest != 0u;) {
        uint step = min(left, 8u);
        rest = (rest << step) % divisor;
        left -= step;
    }
    if (rest == 0u) return 0.0;
    uint shift = min(23u - uint(findMSB(rest)), d_exponent - 1u);
    rest <<= shift;
    return uintBitsToFloat(rest >= 0x800000u ? ((d_exponent - shift) << 23) | (rest & 0x7fffffu) : rest);
}

// of doubles by subtracting the divisor's multiples by powers of two, which is exact
double exact_remainder(double a, double d) {
    double rest = abs(a), divisor = abs(d), part = divisor;
    for (uint n = 0u; n < 2200u && rest - part >= part; ++n) part += part;
    for (uint n = 0u; n < 2200u; ++n) {
        if (rest >= part) rest -= part;
        if (part <= divisor) break;
        part *= 0.5;
    }
    return rest;
}

// 1 - erf(a) for a >= 0. Its binary logarithm is close to a polynomial. This one (a minimax fit) has an error of 1e-7 in
// float32 and decreases beyond the fitted range, as the logarithm does.
float erfc_from_0(float a) {
    return exp2(a * (-1.6279110908508301 + a * (-0.9183811545372009 + a * (-0.14864672720432281 + a * (0.02861369587481022
        + a * (-0.0011846348643302917 + a * (-0.0012392877833917737 + a * (0.00036844340502284467
        - a * 0.000035989585740026087))))))));
}

// near 0 by its series, which keeps the relative error small
float accurate_erf(float x) {
    float z = x * x, y = 1.0 - erfc_from_0(abs(x));
    float series = x * (1.1283791670955126 - z * (0.37612638903183754 - z * (0.11283791670955126 - z * 0.026866170645131252)));
    y = with_sign(y, x);
    return z < 0.04 ? series : y;
}

float gelu(float x) {
    float scaled = x * 0.7071067811865476, tail = 0.5 * erfc_from_0(abs(scaled)), below = scaled < 0.0 ? tail : 1.0 - tail;
    return x * below;
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), where (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
float gelu_tanh(float x) { return x / (1.0 + exp(x * (-1.5957691216057308 - 0.07135481627260025 * x * x))); }

// the binary digits of 2 / pi, preceded by 32 zeros
const uint TWO_OVER_PI[9] = uint[9](0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u,
                                    0xfe5163abu, 0xdebbc561u);

// 32 bits of 2 / pi from bit `shift` (below 32) of word `k` on
uint two_over_pi(uint k, uint shift) { return (TWO_OVER_PI[k] << shift) | ((TWO_OVER_PI[k + 1u] >> 1u) >> (31u - shift)); }

// A large finite x (2**13 and more) modulo pi / 2, by an integer product with the relevant bits of 2 / pi (M. Payne, R. Hanek,
// "Radian Reduction for Trigonometric Functions", SIGNUM 1983).
float reduced_exactly(float x, out uint quadrant) {
    uint bits = floatBitsToUint(abs(x)), mantissa = (bits & 0x7fffffu) | 0x800000u;
    uint first = min((bits >> 23) - 120u, 134u);  // earlier bits contribute whole turns only
    uint word = first >> 5, shift = first & 31u, carry, high, middle, low, unused;
    umulExtended(mantissa, two_over_pi(word + 2u, shift), low, unused);
    umulExtended(mantissa, two_over_pi(word + 1u, shift), high, middle);
    middle = uaddCarry(middle, low, carry);
    high += mantissa * two_over_pi(word, shift) + carry;
    quadrant = high >> 30;
    high = (high << 2) | (middle >> 30);  // the fraction of a quadrant, 64 bits
    middle <<= 2;
    bool above = high >= 0x80000000u;  // nearer to the next quadrant
    if (above) {
        ++quadrant;
        middle = ~middle + 1u;
        high = ~high + (middle == 0u ? 1u : 0u);
    }
    float rest = (float(high) + float(middle) * 2.3283064365386963e-10) * 3.657295198167899e-10;  // 2**-32, pi / 2 * 2**-32
    bool negative = x < 0.0;
    if (negative) quadrant = 0u - quadrant;
    return above != negative ? -rest : rest;
}

// x minus the nearest multiple of pi / 2, and the multiple modulo 4. pi / 2 is split into parts of few bits, so that their
// products with the multiple are exact without a fused multiply-add (W. Cody, W. Waite, 1980).
float reduced(float x, out uint quadrant) {
    if (!(abs(x) < 8192.0)) {
        quadrant = 0u;
        return abs(x) <= 3.4028235e38 ? reduced_exactly(x, quadrant) : uintBitsToFloat(0x7fc00000u);
    }
    float turns = roundEven(x * 0.6366197723675814);
    precise float rest = x - turns * 1.5703125;
    rest = rest - turns * 0.0004837512969970703125;
    rest = rest - turns * 7.549533620476723e-8;
    rest = rest - turns * 2.5633440682570896e-12;
    quadrant = uint(int(turns));
    return rest;
}

// sine and cosine of |x| <= pi / 4 by polynomials: Vulkan allows sin() and cos() an error of 2**-11
float sine_near_0(float x) {
    float z = x * x;
    return x + x * z * (-0.16666655242443085 + z * (0.008332161232829094 - z * 0.00019515307212714106));
}

float cosine_near_0(float x) {
    float z = x * x;
    return 1.0 - 0.5 * z + z * z * (0.04166664555668831 + z * (-0.001388733508065343 + z * 2.4435124942101538e-05));
}

float accurate_sin(float x) {
    uint quadrant;
    float rest = reduced(x, quadrant);
    float y = (quadrant & 1u) != 0u ? cosine_near_0(rest) : sine_near_0(rest);
    if (abs(x) < 0.000244140625) return x;  // keeps -0
    return (quadrant & 2u) != 0u ? -y : y;
}

float accurate_cos(float x) {
    uint quadrant;
    float rest = reduced(x, quadrant);
    float y = (quadrant & 1u) != 0u ? sine_near_0(rest) : cosine_near_0(rest);
    return ((quadrant + 1u) & 2u) != 0u ? -y : y;
}

float accurate_tan(float x) {
    uint quadrant;
    float rest = reduced(x, quadrant), s = sine_near_0(rest), c = cosine_near_0(rest);
    if (abs(x) < 0.000244140625) return x;
    return (quadrant & 1u) != 0u ? -c / s : s / c;
}
#endif
