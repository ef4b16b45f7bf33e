// Element types that a device lacks, in words of 32 bits: the functions that vkep/shaders/words replaces instructions by. Values
// lie so: an integer of 8 or 16 bits in a word, extended by its own sign; float16 as its 16 bits in a word; a 64-bit integer and
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; uvec2 y; }
#include "args.glsl"

// ---- memory: elements at any address, read from and written to the words that they lie in

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Word { uint v; };

uvec2 at_offset(const uvec2 base, const uint index, const uint stride) {
    uint low, high;
    umulExtended(index, stride, high, low);
    uint sum = base.x + low;
    return uvec2(sum, base.y + high + uint(sum < low));
}

uint load_32(const uvec2 at) { return Word(at).v; }
void store_32(const uvec2 at, const uint value) { Word(at).v = value; }

uint load_8(const uvec2 at) { return bitfieldExtract(load_32(uvec2(at.x & ~3u, at.y)), int(at.x & 3u) * 8, 8); }
uint load_16(const uvec2 at) { return bitfieldExtract(load_32(uvec2(at.x & ~3u, at.y)), int(at.x & 2u) * 8, 16); }

// Other lanes may write the word's other elements meanwhile: none of the two steps changes their bits.
void store_bits(const uvec2 at, const uint mask, const uint value) {
    Word word = Word(uvec2(at.x & ~3u, at.y));
    uint shift = (at.x & 3u) * 8u;
    atomicAnd(word.v, ~(mask << shift));
    atomicOr(word.v, (value & mask) << shift);
}
void store_8(const uvec2 at, const uint value) { store_bits(at, 0xffu, value); }
void store_16(const uvec2 at, const uint value) { store_bits(at, 0xffffu, value); }

uvec2 load_64(const uvec2 at) { return uvec2(load_32(at), load_32(at_offset(at, 1u, 4u))); }
void store_64(const uvec2 at, const uvec2 value) {
    store_32(at, value.x);
    store_32(at_offset(at, 1u, 4u), value.y);
}

// ---- float16

float f16_to_f32(const uint half_bits) {
    uint sign = (half_bits & 0x8000u) << 16, exponent = (half_bits >> 10) & 31u, fraction = half_bits & 0x3ffu;
    if (exponent == 0u) {  // 0 or subnormal: the fraction is a multiple of 2**-24
        return uintBitsToFloat(sign | floatBitsToUint(float(fraction) * 5.9604644775390625e-8));
    }
    return uintBitsToFloat(sign | (exponent == 31u ? 0x7f800000u : (exponent + 112u) << 23) | (fraction << 13));
}

// to nearest, ties to even
uint f32_to_f16(const float value) {
    uint bits = floatBitsToUint(value), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7e00u | ((size >> 13) & 0x3ffu);
    if (size >= 0x477ff000u) return sign | 0x7c00u;
    if (size >= 0x38800000u) {
        size -= 0x38000000u;
        return sign | ((size + 0xfffu + ((size >> 13) & 1u)) >> 13);
    }
    uint shift = 126u - (size >> 23), fraction = (size & 0x7fffffu) | 0x800000u;
    if (shift > 24u) return sign;
    uint rest = fraction & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
    fraction >>= shift;
    return sign | (fraction + uint(rest > tie || (rest == tie && (fraction & 1u) != 0u)));
}

// ---- 64-bit integers

bool i64_eq(const uvec2 a, const uvec2 b) { return a.x == b.x && a.y == b.y; }
bool i64_ne(const uvec2 a, const uvec2 b) { return a.x != b.x || a.y != b.y; }
bool u64_lt(const uvec2 a, const uvec2 b) { return a.y < b.y || (a.y == b.y && a.x < b.x); }
bool u64_le(const uvec2 a, const uvec2 b) { return a.y < b.y || (a.y == b.y && a.x <= b.x); }
bool s64_lt(const uvec2 a, const uvec2 b) { return int(a.y) < int(b.y) || (a.y == b.y && a.x < b.x); }
bool s64_le(const uvec2 a, const uvec2 b) { return int(a.y) < int(b.y) || (a.y == b.y && a.x <= b.x); }
uvec2 u64_min(const uvec2 a, const uvec2 b) { return u64_lt(b, a) ? b : a; }
uvec2 u64_max(const uvec2 a, const uvec2 b) { return u64_lt(a, b) ? b : a; }
uvec2 s64_min(const uvec2 a, const uvec2 b) { return s64_lt(b, a) ? b : a; }
uvec2 s64_max(const uvec2 a, const uvec2 b) { return s64_lt(a, b) ? b : a; }

uvec2 i64_add(const uvec2 a, const uvec2 b) {
    uint low = a.x + b.x;
    return uvec2(low, a.y + b.y + uint(low < a.x));
}
uvec2 i64_sub(const uvec2 a, const uvec2 b) { return uvec2(a.x - b.x, a.y - b.y - uint(a.x < b.x)); }
uvec2 i64_neg(const uvec2 a) { return i64_sub(uvec2(0u), a); }
uvec2 s64_abs(const uvec2 a) { return int(a.y) < 0 ? i64_neg(a) : a; }
uvec2 s64_sign(const uvec2 a) { return int(a.y) < 0 ? uvec2(~0u) : uvec2(uint((a.x | a.y) != 0u), 0u); }
uvec2 i64_mul(const uvec2 a, const uvec2 b) {
    uint low, high;
    umulExtended(a.x, b.x, high, low);
    return uvec2(low, high + a.x * b.y + a.y * b.x);
}

// by fewer than 64 bits
uvec2 i64_shl(const uvec2 a, const uint n) {
    if (n == 0u) return a;
    return n >= 32u ? uvec2(0u, a.x << (n - 32u)) : uvec2(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}
uvec2 u64_shr(const uvec2 a, const uint n) {
    if (n == 0u) return a;
    return n >= 32u ? uvec2(a.y >> (n - 32u), 0u) : uvec2((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}
uvec2 s64_shr(const uvec2 a, const uint n) {
    uvec2 filled = u64_shr(a, n);
    if (int(a.y) >= 0 || n == 0u) return filled;
    uvec2 kept = u64_shr(uvec2(~0u), n);
    return uvec2(filled.x | ~kept.x, filled.y | ~kept.y);
}

// Of a number that is not 0, the place of its highest bit.
uint u64_msb(const uvec2 a) { return a.y != 0u ? uint(findMSB(a.y)) + 32u : uint(findMSB(a.x)); }

uvec2 u64_divmod(const uvec2 a, const uvec2 b, out uvec2 rest) {
    if ((a.y | b.y) == 0u && b.x != 0u) {
        rest = uvec2(a.x % b.x, 0u);
        return uvec2(a.x / b.x, 0u);
    }
    uvec2 quotient = uvec2(0u);
    rest = uvec2(0u);
    if (a == uvec2(0u)) return quotient;
    for (int bit = int(u64_msb(a)); bit >= 0; --bit) {
        bool carry = (rest.y & 0x80000000u) != 0u;
        rest = i64_shl(rest, 1u);
        rest.x |= u64_shr(a, uint(bit)).x & 1u;
        if (carry || u64_le(b, rest)) {
            rest = i64_sub(rest, b);
            quotient = i64_add(quotient, i64_shl(uvec2(1u, 0u), uint(bit)));
        }
    }
    return quotient;
}
uvec2 u64_div(const uvec2 a, const uvec2 b) {
    uvec2 rest;
    return u64_divmod(a, b, rest);
}
uvec2 u64_mod(const uvec2 a, const uvec2 b) {
    uvec2 rest;
    u64_divmod(a, b, rest);
    return rest;
}
uvec2 s64_div(const uvec2 a, const uvec2 b) {
    uvec2 quotient = u64_div(s64_abs(a), s64_abs(b));
    return int(a.y ^ b.y) < 0 ? i64_neg(quotient) : quotient;
}
// the remainder with the dividend's sign, and with the divisor's
uvec2 s64_rem(const uvec2 a, const uvec2 b) {
    uvec2 rest = u64_mod(s64_abs(a), s64_abs(b));
    return int(a.y) < 0 ? i64_neg(rest) : rest;
}
uvec2 s64_mod(const uvec2 a, const uvec2 b) {
    uvec2 rest = s64_rem(a, b);
    return rest != uvec2(0u) && int(rest.y ^ b.y) < 0 ? i64_add(rest, b) : rest;
}

// From float, towards zero; what is beyond the type becomes its end, NaN becomes 0.
uvec2 f32_to_u64(const float value) {
    uint bits = floatBitsToUint(value), exponent = bits >> 23;  // with the sign
    if (exponent < 127u || exponent > 255u || bits > 0x7f800000u) return uvec2(0u);
    if (exponent >= 191u) return uvec2(~0u);
    uvec2 fraction = uvec2((bits & 0x7fffffu) | 0x800000u, 0u);
    return exponent >= 150u ? i64_shl(fraction, exponent - 150u) : u64_shr(fraction, 150u - exponent);
}
uvec2 limited_to_s64(uvec2 size, bool negative) {
    if (size.y >= 0x80000000u) size = negative ? uvec2(0u, 0x80000000u) : uvec2(~0u, 0x7fffffffu);
    return negative ? i64_neg(size) : size;
}
uvec2 f32_to_s64(const float value) {
    uint bits = floatBitsToUint(value);
    return limited_to_s64(f32_to_u64(uintBitsToFloat(bits & 0x7fffffffu)), bits >= 0x80000000u);
}

// to nearest, ties to even
float u64_to_f32(const uvec2 a) {
    if (a.y == 0u && a.x < 0x1000000u) return float(a.x);
    uint top = u64_msb(a);
    uvec2 fraction = i64_shl(a, 63u - top);  // the leading bit at 63; 24 bits stay
    uint kept = fraction.y >> 8, rest = fraction.y & 0xffu;
    bool up = rest > 0x80u || (rest == 0x80u && (fraction.x != 0u || (kept & 1u) != 0u));
    return uintBitsToFloat(((top + 126u) << 23) + kept + uint(up));
}
float s64_to_f32(const uvec2 a) {
    float size = u64_to_f32(s64_abs(a));
    return int(a.y) < 0 ? -size : size;
}

// ---- float64

const uvec2 F64_NAN = uvec2(0u, 0x7ff80000u);

bool f64_isnan(const uvec2 a) { return u64_lt(uvec2(0u, 0x7ff00000u), uvec2(a.x, a.y & 0x7fffffffu)); }
bool f64_isinf(const uvec2 a) { return a.x == 0u && (a.y & 0x7fffffffu) == 0x7ff00000u; }
bool f64_iszero(const uvec2 a) { return (a.x | (a.y & 0x7fffffffu)) == 0u; }
uvec2 f64_abs(const uvec2 a) { return uvec2(a.x, a.y & 0x7fffffffu); }
uvec2 f64_neg(const uvec2 a) { return uvec2(a.x, a.y ^ 0x80000000u); }

// bits in the order of the numbers
uvec2 f64_key(const uvec2 a) { return int(a.y) < 0 ? ~a : uvec2(a.x, a.y | 0x80000000u); }
bool f64_eq(const uvec2 a, const uvec2 b) {
    return !f64_isnan(a) && !f64_isnan(b) && (i64_eq(a, b) || (f64_iszero(a) && f64_iszero(b)));
}
bool f64_lt(const uvec2 a, const uvec2 b) {
    return !f64_isnan(a) && !f64_isnan(b) && !(f64_iszero(a) && f64_iszero(b)) && u64_lt(f64_key(a), f64_key(b));
}
bool f64_le(const uvec2 a, const uvec2 b) { return f64_lt(a, b) || f64_eq(a, b); }
uvec2 f64_min(const uvec2 a, const uvec2 b) { return f64_lt(b, a) ? b : a; }
uvec2 f64_max(const uvec2 a, const uvec2 b) { return f64_lt(a, b) ? b : a; }
uvec2 f64_clamp(const uvec2 x, const uvec2 low, const uvec2 high) { return f64_min(f64_max(x, low), high); }
uvec2 f64_sign(const uvec2 a) { return f64_iszero(a) || f64_isnan(a) ? a : uvec2(0u, (a.y & 0x80000000u) | 0x3ff00000u); }

// shifted right; a bit that falls out stays as the lowest one
uvec2 sticky_shr(const uvec2 a, const uint n) {
    if (n >= 64u) return uvec2(uint((a.x | a.y) != 0u), 0u);
    uvec2 kept = u64_shr(a, n);
    kept.x |= uint(i64_ne(i64_shl(kept, n), a));
    return kept;
}

// A number not 0 as fraction / 2**62 * 2**exponent with 1 <= fraction / 2**62 < 2. The lowest 10 bits are 0.
void f64_open(const uvec2 a, out int exponent, out uvec2 fraction) {
    exponent = int((a.y >> 20) & 0x7ffu);
    fraction = uvec2(a.x, a.y & 0xfffffu);
    if (exponent == 0) exponent = 1;
    else fraction.y |= 0x100000u;
    uint up = 62u - u64_msb(fraction);
    exponent -= 1023 + int(up) - 10;
    fraction = i64_shl(fraction, up);
}
// The other way, rounded to nearest, ties to even; a sticky lowest bit of the fraction stands for what is smaller.
uvec2 f64_closed(uint sign, int exponent, uvec2 fraction) {
    exponent += 1023;
    if (exponent >= 2047) return uvec2(0u, sign | 0x7ff00000u);
    if (exponent < 1) {
        fraction = sticky_shr(fraction, uint(1 - exponent));
        exponent = 1;
    }
    uint rest = fraction.x & 0x3ffu;
    fraction = u64_shr(fraction, 10u);
    if (rest > 0x200u || (rest == 0x200u && (fraction.x & 1u) != 0u)) fraction = i64_add(fraction, uvec2(1u, 0u));
    fraction.y += uint(exponent - 1) << 20;  // the leading bit adds the 1, and a carry into it one more
    return uvec2(fraction.x, fraction.y | sign);
}
uvec2 f64_normal(uint sign, int exponent, uvec2 fraction) {  // with the leading bit anywhere
    if (fraction == uvec2(0u)) return uvec2(0u, sign);
    uint top = u64_msb(fraction);
    fraction = top > 62u ? sticky_shr(fraction, 1u) : i64_shl(fraction, 62u - top);
    return f64_closed(sign, exponent + int(top) - 62, fraction);
}

uvec2 f64_add(const uvec2 a, const uvec2 b) {
    if (f64_isnan(a) || f64_isnan(b)) return F64_NAN;
    if (f64_isinf(a)) return f64_isinf(b) && a.y != b.y ? F64_NAN : a;
    if (f64_isinf(b)) return b;
    if (f64_iszero(b)) return f64_iszero(a) ? uvec2(0u, a.y & b.y) : a;
    if (f64_iszero(a)) return b;
    bool swapped = u64_lt(f64_abs(a), f64_abs(b));
    int exponent, lower;
    uvec2 larger, other;
    f64_open(swapped ? b : a, exponent, larger);
    f64_open(swapped ? a : b, lower, other);
    other = sticky_shr(other, uint(exponent - lower));
    uint sign = (swapped ? b.y : a.y) & 0x80000000u;
    if (((a.y ^ b.y) & 0x80000000u) == 0u) return f64_normal(sign, exponent, i64_add(larger, other));
    uvec2 rest = i64_sub(larger, other);
    return rest == uvec2(0u) ? rest : f64_normal(sign, exponent, rest);
}
uvec2 f64_sub(const uvec2 a, const uvec2 b) { return f64_add(a, f64_neg(b)); }

uvec2 f64_mul(const uvec2 a, const uvec2 b) {
    uint sign = (a.y ^ b.y) & 0x80000000u;
    if (f64_isnan(a) || f64_isnan(b)) return F64_NAN;
    if (f64_isinf(a) || f64_isinf(b)) return f64_iszero(a) || f64_iszero(b) ? F64_NAN : uvec2(0u, sign | 0x7ff00000u);
    if (f64_iszero(a) || f64_iszero(b)) return uvec2(0u, sign);
    int a_exponent, b_exponent;
    uvec2 x, y;
    f64_open(a, a_exponent, x);
    f64_open(b, b_exponent, y);
    x = i64_shl(x, 1u);  // the product of two with 63 below the leading bit is 64 bits and more
    uint low, high, middle, over, unused, top_low, top_high;
    umulExtended(x.x, y.x, high, low);
    umulExtended(x.y, y.y, top_high, top_low);
    uvec2 top = uvec2(top_low, top_high), rest = uvec2(high, 0u);
    umulExtended(x.x, y.y, over, middle);
    rest = i64_add(rest, uvec2(middle, 0u));
    top = i64_add(top, uvec2(over, 0u));
    umulExtended(x.y, y.x, over, middle);
    rest = i64_add(rest, uvec2(middle, 0u));
    top = i64_add(i64_add(top, uvec2(over, 0u)), uvec2(rest.y, 0u));
    top.x |= uint((low | rest.x) != 0u);
    return f64_normal(sign, a_exponent + b_exponent + 1, top);
}

uvec2 f64_div(const uvec2 a, const uvec2 b) {
    uint sign = (a.y ^ b.y) & 0x80000000u;
    if (f64_isnan(a) || f64_isnan(b)) return F64_NAN;
    if (f64_isinf(a)) return f64_isinf(b) ? F64_NAN : uvec2(0u, sign | 0x7ff00000u);
    if (f64_iszero(b)) return f64_iszero(a) ? F64_NAN : uvec2(0u, sign | 0x7ff00000u);
    if (f64_iszero(a) || f64_isinf(b)) return uvec2(0u, sign);
    int a_exponent, b_exponent;
    uvec2 rest, divisor, quotient = uvec2(0u);
    f64_open(a, a_exponent, rest);
    f64_open(b, b_exponent, divisor);
    for (int bit = 0; bit < 63; ++bit) {
        quotient = i64_shl(quotient, 1u);
        if (u64_le(divisor, rest)) {
            rest = i64_sub(rest, divisor);
            quotient.x |= 1u;
        }
        rest = i64_shl(rest, 1u);
    }
    quotient.x |= uint(rest != uvec2(0u));
    return f64_normal(sign, a_exponent - b_exponent, quotient);
}

uvec2 f64_sqrt(const uvec2 a) {
    if (f64_isnan(a) || f64_iszero(a)) return a;
    if (int(a.y) < 0) return F64_NAN;
    if (f64_isinf(a)) return a;
    int exponent;
    uvec2 fraction, rest = uvec2(0u), root = uvec2(0u);
    f64_open(a, exponent, fraction);
    if ((exponent & 1) == 0) fraction = u64_shr(fraction, 1u);  // so that bits 62 and 61 hold the two before the point
    for (int bit = 0; bit < 56; ++bit) {
        rest = i64_shl(rest, 2u);
        if (bit < 32) rest.x |= (bit == 31 ? fraction.x << 1 : u64_shr(fraction, uint(61 - 2 * bit)).x) & 3u;
        root = i64_shl(root, 1u);
        uvec2 trial = i64_shl(root, 1u);
        trial.x |= 1u;
        if (u64_le(trial, rest)) {
            rest = i64_sub(rest, trial);
            root.x |= 1u;
        }
    }
    root = i64_shl(root, 7u);
    root.x |= uint(rest != uvec2(0u));
    return f64_closed(0u, exponent >> 1, root);
}

uvec2 f64_trunc(const uvec2 a) {
    int exponent = int((a.y >> 20) & 0x7ffu) - 1023;
    if (exponent < 0) return uvec2(0u, a.y & 0x80000000u);
    if (exponent >= 52) return a;
    uint below = uint(52 - exponent);
    return i64_shl(u64_shr(a, below), below);
}
uvec2 f64_floor(const uvec2 a) {
    uvec2 whole = f64_trunc(a);
    return int(a.y) < 0 && !f64_eq(whole, a) && !f64_isnan(a) ? f64_add(whole, uvec2(0u, 0xbff00000u)) : whole;
}
uvec2 f64_ceil(const uvec2 a) { return f64_neg(f64_floor(f64_neg(a))); }
uvec2 f64_round_even(const uvec2 a) {
    if (f64_isnan(a)) return a;
    uvec2 whole = f64_trunc(a), rest = f64_abs(f64_sub(a, whole)), tie = uvec2(0u, 0x3fe00000u);
    uvec2 unit = uvec2(0u, (a.y & 0x80000000u) | 0x3ff00000u), pair = f64_mul(whole, tie);
    bool odd = !f64_eq(f64_trunc(pair), pair);
    return f64_lt(tie, rest) || (f64_eq(rest, tie) && odd) ? f64_add(whole, unit) : whole;
}

uvec2 f32_to_f64(const float value) {
    uint bits = floatBitsToUint(value), sign = bits & 0x80000000u, size = bits & 0x7fffffffu;
    if (size == 0u) return uvec2(0u, sign);
    if (size >= 0x7f800000u) return uvec2(size << 29, sign | 0x7ff00000u | ((size & 0x7fffffu) >> 3));
    if (size < 0x800000u) return f64_normal(sign, -87, uvec2(size, 0u));  // a multiple of 2**-149
    return uvec2(size << 29, sign | ((size >> 3) + 0x38000000u));
}
// A finite number that is not 0, to `kept` bits of fraction after the leading one, exponents from `least` on: as its bits in the
// order of the numbers, rounded to nearest, ties to even.
uint f64_narrowed(const uvec2 a, const uint kept, const int least, const uint infinity) {
    int exponent;
    uvec2 fraction;
    f64_open(a, exponent, fraction);
    if (exponent > 1 - least) return infinity;
    uint down = 62u - kept + (exponent < least ? uint(min(least - exponent, 64)) : 0u);
    if (down > 63u) return 0u;
    uvec2 tie = i64_shl(uvec2(1u, 0u), down - 1u), rest = i64_sub(fraction, i64_shl(u64_shr(fraction, down), down));
    uint bits = u64_shr(fraction, down).x;
    bits += uint(u64_lt(tie, rest) || (i64_eq(tie, rest) && (bits & 1u) != 0u));
    return bits + (uint(max(exponent, least) - least) << kept);
}
float f64_to_f32(const uvec2 a) {
    uint sign = a.y & 0x80000000u;
    if (f64_isnan(a)) return uintBitsToFloat(sign | 0x7fc00000u);
    if (f64_isinf(a)) return uintBitsToFloat(sign | 0x7f800000u);
    return uintBitsToFloat(f64_iszero(a) ? sign : sign | f64_narrowed(a, 23u, -126, 0x7f800000u));
}
uint f64_to_f16(const uvec2 a) {
    uint sign = (a.y >> 16) & 0x8000u;
    if (f64_isnan(a)) return sign | 0x7e00u;
    if (f64_isinf(a)) return sign | 0x7c00u;
    return f64_iszero(a) ? sign : sign | f64_narrowed(a, 10u, -14, 0x7c00u);
}

uvec2 f64_to_u64(const uvec2 a) {
    int exponent = int((a.y >> 20) & 0x7ffu) - 1023;
    if (int(a.y) < 0 || exponent < 0 || f64_isnan(a)) return uvec2(0u);
    if (exponent > 63) return uvec2(~0u);
    uvec2 fraction = uvec2(a.x, (a.y & 0xfffffu) | 0x100000u);
    return exponent >= 52 ? i64_shl(fraction, uint(exponent - 52)) : u64_shr(fraction, uint(52 - exponent));
}
uvec2 f64_to_s64(const uvec2 a) { return limited_to_s64(f64_to_u64(f64_abs(a)), int(a.y) < 0); }
uint f64_to_u32(const uvec2 a) { return u64_min(f64_to_u64(a), uvec2(~0u, 0u)).x; }
int f64_to_s32(const uvec2 a) {
    return int(s64_max(s64_min(f64_to_s64(a), uvec2(0x7fffffffu, 0u)), uvec2(0x80000000u, ~0u)).x);
}
uvec2 u64_to_f64(const uvec2 a) { return f64_normal(0u, 62, a); }
uvec2 s64_to_f64(const uvec2 a) { return f64_normal(a.y & 0x80000000u, 62, s64_abs(a)); }
uvec2 u32_to_f64(const uint a) { return u64_to_f64(uvec2(a, 0u)); }
uvec2 s32_to_f64(const int a) { return s64_to_f64(uvec2(uint(a), uint(a >> 31))); }

// The compiler leaves out what is not called.
void main() {
    uvec2 a = args.a, b = args.b, y = load_64(args.y);
    float f = uintBitsToFloat(a.x);
    store_8(args.y, load_8(args.y) + f32_to_f16(f16_to_f32(a.x)));
    store_16(at_offset(args.y, 1u, 2u), load_16(args.y));
    if (i64_eq(a, b) || i64_ne(a, b) || u64_lt(a, b) || u64_le(a, b) || s64_lt(a, b) || s64_le(a, b)) y.x += a.x;
    if (f64_eq(a, b) || f64_lt(a, b) || f64_le(a, b) || f64_isnan(a) || f64_isinf(a)) y.x += b.x;
    y += u64_min(a, b) + u64_max(a, b) + s64_min(a, b) + s64_max(a, b) + s64_abs(a) + s64_sign(a);
    y += i64_add(a, b) + i64_sub(a, b) + i64_neg(a) + i64_mul(a, b) + i64_shl(a, 1u) + u64_shr(a, 1u) + s64_shr(a, 1u);
    y += u64_div(a, b) + u64_mod(a, b) + s64_div(a, b) + s64_rem(a, b) + s64_mod(a, b);
    y += f32_to_u64(f) + f32_to_s64(f) + f32_to_f64(f + u64_to_f32(a) + s64_to_f32(a) + f64_to_f32(a));
    y += f64_min(a, b) + f64_max(a, b) + f64_clamp(a, b, b) + f64_abs(a) + f64_neg(a) + f64_sign(a);
    y += f64_add(a, b) + f64_sub(a, b) + f64_mul(a, b) + f64_div(a, b) + f64_sqrt(a);
    y += f64_trunc(a) + f64_floor(a) + f64_ceil(a) + f64_round_even(a) + uvec2(f64_to_f16(a), f64_to_u32(a));
    y += f64_to_u64(a) + f64_to_s64(a) + u64_to_f64(a) + s64_to_f64(a) + u32_to_f64(a.x) + s32_to_f64(f64_to_s32(b));
    store_64(args.y, y);
}
