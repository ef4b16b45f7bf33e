// Arithmetic of element types that a device lacks, in 32-bit words. vkep/shaders/words replaces instructions by calls of these.
// Values lie so: an integer of 8 or 16 bits in a word, extended by its own sign; float16 as its 16 bits in a word; a 64-bit
// integer and
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 a; uvec2 b; WRITTEN y; }
#include "args.glsl"

// ---- memory: elements at any address, read from and written to the words that contain them

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

// Other lanes may write the word's other elements at the same time: neither of the two steps changes their bits.
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

// rounds to nearest, ties to even
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

// Some drivers inline every call, and branches cost them more than arithmetic. So all(), any() and mix() are used in place of
// &&, || and ?:, which branch.
bool i64_eq(const uvec2 a, const uvec2 b) { return a == b; }
bool i64_ne(const uvec2 a, const uvec2 b) { return a != b; }
bool u64_lt(const uvec2 a, const uvec2 b) { return mix(a.y < b.y, a.x < b.x, a.y == b.y); }
bool u64_le(const uvec2 a, const uvec2 b) { return mix(a.y < b.y, a.x <= b.x, a.y == b.y); }
bool s64_lt(const uvec2 a, const uvec2 b) { return mix(int(a.y) < int(b.y), a.x < b.x, a.y == b.y); }
bool s64_le(const uvec2 a, const uvec2 b) { return mix(int(a.y) < int(b.y), a.x <= b.x, a.y == b.y); }
uvec2 chosen(const bool first, const uvec2 a, const uvec2 b) { return mix(b, a, bvec2(first)); }
uvec2 u64_min(const uvec2 a, const uvec2 b) { return chosen(u64_lt(b, a), b, a); }
uvec2 u64_max(const uvec2 a, const uvec2 b) { return chosen(u64_lt(a, b), b, a); }
uvec2 s64_min(const uvec2 a, const uvec2 b) { return chosen(s64_lt(b, a), b, a); }
uvec2 s64_max(const uvec2 a, const uvec2 b) { return chosen(s64_lt(a, b), b, a); }

uvec2 i64_add(const uvec2 a, const uvec2 b) {
    uint low = a.x + b.x;
    return uvec2(low, a.y + b.y + uint(low < a.x));
}
uvec2 i64_sub(const uvec2 a, const uvec2 b) { return uvec2(a.x - b.x, a.y - b.y - uint(a.x < b.x)); }
uvec2 i64_neg(const uvec2 a) { return i64_sub(uvec2(0u), a); }
uvec2 s64_abs(const uvec2 a) { return chosen(int(a.y) < 0, i64_neg(a), a); }
uvec2 s64_sign(const uvec2 a) { return int(a.y) < 0 ? uvec2(~0u) : uvec2(uint((a.x | a.y) != 0u), 0u); }
uvec2 i64_mul(const uvec2 a, const uvec2 b) {
    uint low, high;
    umulExtended(a.x, b.x, high, low);
    return uvec2(low, high + a.x * b.y + a.y * b.x);
}

// for shifts by less than 64
uvec2 i64_shl(const uvec2 a, const uint n) {
    uint by = n & 31u, low = a.x << by, high = (a.y << by) | ((a.x >> 1) >> (31u - by));
    return mix(uvec2(low, high), uvec2(0u, low), bvec2(n >= 32u));
}
uvec2 u64_shr(const uvec2 a, const uint n) {
    uint by = n & 31u, low = (a.x >> by) | ((a.y << 1) << (31u - by)), high = a.y >> by;
    return mix(uvec2(low, high), uvec2(high, 0u), bvec2(n >= 32u));
}
uvec2 s64_shr(const uvec2 a, const uint n) {
    uvec2 filled = u64_shr(a, n), kept = u64_shr(uvec2(~0u), n);
    return chosen(int(a.y) < 0, filled | ~kept, filled);
}

// The index of the highest set bit of a number other than 0.
uint u64_msb(const uvec2 a) { return mix(uint(findMSB(a.x)), uint(findMSB(a.y)) + 32u, a.y != 0u); }

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
// the remainder with the sign of the dividend, and with that of the divisor
uvec2 s64_rem(const uvec2 a, const uvec2 b) {
    uvec2 rest = u64_mod(s64_abs(a), s64_abs(b));
    return int(a.y) < 0 ? i64_neg(rest) : rest;
}
uvec2 s64_mod(const uvec2 a, const uvec2 b) {
    uvec2 rest = s64_rem(a, b);
    return rest != uvec2(0u) && int(rest.y ^ b.y) < 0 ? i64_add(rest, b) : rest;
}

// From float, towards zero; values out of range are clamped, NaN becomes 0.
uvec2 f32_to_u64(const float value) {
    uint bits = floatBitsToUint(value), exponent = bits >> 23;  // sign and exponent
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

// rounds to nearest, ties to even
float u64_to_f32(const uvec2 a) {
    if (a.y == 0u && a.x < 0x1000000u) return float(a.x);
    uint top = u64_msb(a);
    uvec2 fraction = i64_shl(a, 63u - top);  // the leading bit moves to 63; 24 bits are kept
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

// integers in the order of the numbers; -0 becomes 0
uvec2 f64_key(const uvec2 a) {
    return chosen(int(a.y) < 0, i64_neg(f64_abs(a)), a);
}
bool f64_unordered(const uvec2 a, const uvec2 b) { return any(bvec2(f64_isnan(a), f64_isnan(b))); }
bool f64_eq(const uvec2 a, const uvec2 b) { return all(bvec2(!f64_unordered(a, b), f64_key(a) == f64_key(b))); }
bool f64_lt(const uvec2 a, const uvec2 b) { return all(bvec2(!f64_unordered(a, b), s64_lt(f64_key(a), f64_key(b)))); }
bool f64_le(const uvec2 a, const uvec2 b) { return all(bvec2(!f64_unordered(a, b), s64_le(f64_key(a), f64_key(b)))); }
uvec2 f64_min(const uvec2 a, const uvec2 b) { return chosen(f64_lt(b, a), b, a); }
uvec2 f64_max(const uvec2 a, const uvec2 b) { return chosen(f64_lt(a, b), b, a); }
uvec2 f64_clamp(const uvec2 x, const uvec2 low, const uvec2 high) { return f64_min(f64_max(x, low), high); }
uvec2 f64_sign(const uvec2 a) {
    return chosen(any(bvec2(f64_iszero(a), f64_isnan(a))), a, uvec2(0u, (a.y & 0x80000000u) | 0x3ff00000u));
}

// shifts right by less than 64; bits that are shifted out set the lowest one (sticky)
uvec2 sticky_shr(const uvec2 a, const uint n) {
    uvec2 kept = u64_shr(a, n);
    return uvec2(kept.x | uint(i64_shl(kept, n) != a), kept.y);
}

// A finite number not 0 as fraction / 2**62 * 2**exponent with 1 <= fraction / 2**62 < 2. The lowest 10 bits are 0.
uvec2 f64_fraction(const uvec2 a) {
    uvec2 fraction = uvec2(a.x, (a.y & 0xfffffu) | (uint((a.y & 0x7ff00000u) != 0u) << 20));
    return i64_shl(fraction, 62u - u64_msb(fraction));
}
int f64_exponent(const uvec2 a) {
    int biased = int((a.y >> 20) & 0x7ffu), below = int(u64_msb(uvec2(a.x, a.y & 0xfffffu)));
    return mix(biased, below - 51, biased == 0) - 1023;
}
// The inverse: rounds to nearest, ties to even, for a fraction below 2**63 with its leading bit anywhere, or 0. The lowest bit
// is sticky: it is set where smaller bits were lost.
uvec2 f64_closed(const uint sign, const int exponent, const uvec2 fraction) {
    uint up = 62u - u64_msb(fraction);
    int biased = exponent + 1023 - int(up);
    uvec2 found = sticky_shr(i64_shl(fraction, up), uint(clamp(1 - biased, 0, 63)));
    uint rest = found.x & 0x3ffu;
    found = uvec2((found.x >> 10) | (found.y << 22), found.y >> 10);
    found = i64_add(found, uvec2(uint(rest + (found.x & 1u) > 0x200u), 0u));
    found.y += uint(max(biased, 1) - 1) << 20;  // the leading bit adds the 1, and a carry into it one more
    found = chosen(biased >= 2047, uvec2(0u, 0x7ff00000u), found);
    found = chosen(fraction == uvec2(0u), fraction, found);
    return uvec2(found.x, found.y | sign);
}

uvec2 f64_add(const uvec2 a, const uvec2 b) {
    bool swapped = u64_lt(f64_abs(a), f64_abs(b));
    uvec2 x = chosen(swapped, b, a), y = chosen(swapped, a, b);
    int exponent = f64_exponent(x);
    uvec2 larger = u64_shr(f64_fraction(x), 1u), other = f64_fraction(y);
    other = sticky_shr(other, uint(clamp(exponent - f64_exponent(y) + 1, 0, 63)));
    bool apart = int(a.y ^ b.y) < 0;
    uvec2 sum = chosen(apart, i64_sub(larger, other), i64_add(larger, other));
    uint sign = mix(x.y & 0x80000000u, 0u, sum == uvec2(0u));
    uvec2 found = f64_closed(sign, exponent + 1, sum);
    found = chosen(f64_iszero(y), chosen(f64_iszero(x), uvec2(0u, x.y & y.y), x), found);
    bool infinite = f64_isinf(x);
    found = chosen(infinite, x, found);
    return chosen(any(bvec2(f64_unordered(a, b), all(bvec3(infinite, f64_isinf(y), apart)))), F64_NAN, found);
}
uvec2 f64_sub(const uvec2 a, const uvec2 b) { return f64_add(a, f64_neg(b)); }

uvec2 f64_mul(const uvec2 a, const uvec2 b) {
    uint sign = (a.y ^ b.y) & 0x80000000u;
    uvec2 x = i64_shl(f64_fraction(a), 1u), y = f64_fraction(b);  // 2**63 times 2**62: the high half of the product is wanted
    uint low, high, middle, over, top_low, top_high;
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
    uvec2 found = f64_closed(sign, f64_exponent(a) + f64_exponent(b) + 1, top);
    bool none = any(bvec2(f64_iszero(a), f64_iszero(b))), infinite = any(bvec2(f64_isinf(a), f64_isinf(b)));
    found = chosen(none, uvec2(0u, sign), chosen(infinite, uvec2(0u, sign | 0x7ff00000u), found));
    return chosen(any(bvec2(f64_unordered(a, b), all(bvec2(none, infinite)))), F64_NAN, found);
}

uvec2 f64_div(const uvec2 a, const uvec2 b) {
    uint sign = (a.y ^ b.y) & 0x80000000u;
    uvec2 rest = f64_fraction(a), divisor = f64_fraction(b), quotient = uvec2(0u);
    for (int bit = 0; bit < 63; ++bit) {
        bool fits = u64_le(divisor, rest);
        quotient = i64_shl(quotient, 1u);
        quotient.x |= uint(fits);
        rest = i64_shl(chosen(fits, i64_sub(rest, divisor), rest), 1u);
    }
    quotient.x |= uint(rest != uvec2(0u));
    uvec2 found = f64_closed(sign, f64_exponent(a) - f64_exponent(b), quotient), infinity = uvec2(0u, sign | 0x7ff00000u);
    found = chosen(any(bvec2(f64_iszero(a), f64_isinf(b))), uvec2(0u, sign), found);
    found = chosen(any(bvec2(f64_isinf(a), f64_iszero(b))), infinity, found);
    bool same = any(bvec2(all(bvec2(f64_iszero(a), f64_iszero(b))), all(bvec2(f64_isinf(a), f64_isinf(b)))));
    return chosen(any(bvec2(f64_unordered(a, b), same)), F64_NAN, found);
}

uvec2 f64_sqrt(const uvec2 a) {
    int exponent = f64_exponent(a);
    uvec2 fraction = f64_fraction(a), rest = uvec2(0u), root = uvec2(0u);
    fraction = u64_shr(fraction, uint(1 - (exponent & 1)));  // so that bits 62 and 61 are those before the binary point
    for (int bit = 0; bit < 56; ++bit) {
        rest = i64_shl(rest, 2u);
        rest.x |= fraction.y >> 29;
        fraction = i64_shl(fraction, 2u) & uvec2(~0u, 0x7fffffffu);
        uvec2 trial = i64_shl(root, 2u);
        trial.x |= 1u;
        bool fits = u64_le(trial, rest);
        rest = chosen(fits, i64_sub(rest, trial), rest);
        root = i64_shl(root, 1u);
        root.x |= uint(fits);
    }
    root = i64_shl(root, 7u);
    root.x |= uint(rest != uvec2(0u));
    uvec2 found = f64_closed(0u, exponent >> 1, root);
    found = chosen(int(a.y) < 0, F64_NAN, chosen(f64_isinf(a), a, found));
    return chosen(any(bvec2(f64_iszero(a), f64_isnan(a))), a, found);
}

uvec2 f64_trunc(const uvec2 a) {
    int exponent = int((a.y >> 20) & 0x7ffu) - 1023;
    uint below = uint(clamp(52 - exponent, 0, 52));
    return chosen(exponent < 0, uvec2(0u, a.y & 0x80000000u), i64_shl(u64_shr(a, below), below));
}
uvec2 f64_floor(const uvec2 a) {
    uvec2 whole = f64_trunc(a);
    bool between = all(bvec3(int(a.y) < 0, !f64_iszero(a), whole != a));
    return chosen(all(bvec2(between, !f64_isnan(a))), f64_add(whole, uvec2(0u, 0xbff00000u)), whole);
}
uvec2 f64_ceil(const uvec2 a) { return f64_neg(f64_floor(f64_neg(a))); }
uvec2 f64_round_even(const uvec2 a) {
    uvec2 whole = f64_trunc(a), tie = uvec2(0u, 0x3fe00000u), unit = uvec2(0u, (a.y & 0x80000000u) | 0x3ff00000u);
    int exponent = int((a.y >> 20) & 0x7ffu) - 1023;
    uvec2 rest = f64_abs(f64_sub(a, whole));
    uint digit = u64_shr(a, uint(clamp(52 - exponent, 0, 52))).x & 1u;
    bool odd = any(bvec2(exponent == 0, all(bvec3(exponent > 0, exponent < 53, digit == 1u))));
    bool up = any(bvec2(f64_lt(tie, rest), all(bvec2(f64_eq(rest, tie), odd))));
    return chosen(up, f64_add(whole, unit), whole);
}

uvec2 f32_to_f64(const float value) {
    uint bits = floatBitsToUint(value), sign = bits & 0x80000000u, size = bits & 0x7fffffffu;
    uvec2 found = uvec2(size << 29, (size >> 3) + mix(0x38000000u, 0x70000000u, size >= 0x7f800000u));
    found = chosen(size < 0x800000u, f64_closed(0u, -87, uvec2(size, 0u)), found);  // a multiple of 2**-149
    return uvec2(found.x, found.y | sign);
}
// A finite number to `kept` bits of fraction after the leading one, exponents from `least` on: as its bits in the order of the
// numbers, rounded to nearest, ties to even.
uint f64_narrowed(const uvec2 a, const uint kept, const int least, const uint infinity) {
    int exponent = f64_exponent(a);
    uvec2 fraction = sticky_shr(f64_fraction(a), uint(clamp(least - exponent, 0, 63)));
    uint down = 62u - kept, bits = u64_shr(fraction, down).x;
    uvec2 rest = fraction & i64_sub(i64_shl(uvec2(1u, 0u), down), uvec2(1u, 0u)), tie = i64_shl(uvec2(1u, 0u), down - 1u);
    bits += uint(u64_lt(tie, i64_add(rest, uvec2(bits & 1u, 0u))));
    bits += uint(max(exponent, least) - least) << kept;
    return mix(mix(bits, infinity, exponent > 1 - least), 0u, f64_iszero(a));
}
float f64_to_f32(const uvec2 a) {
    uint found = mix(f64_narrowed(a, 23u, -126, 0x7f800000u), 0x7fc00000u, f64_isnan(a));
    return uintBitsToFloat(found | (a.y & 0x80000000u));
}
uint f64_to_f16(const uvec2 a) {
    uint found = mix(f64_narrowed(a, 10u, -14, 0x7c00u), 0x7e00u, f64_isnan(a));
    return found | ((a.y >> 16) & 0x8000u);
}

uvec2 f64_to_u64(const uvec2 a) {
    int exponent = int((a.y >> 20) & 0x7ffu) - 1023;
    uvec2 fraction = uvec2(a.x, (a.y & 0xfffffu) | 0x100000u);
    uvec2 small = u64_shr(fraction, uint(clamp(52 - exponent, 0, 63)));
    uvec2 large = i64_shl(fraction, uint(clamp(exponent - 52, 0, 63)));
    uvec2 found = chosen(exponent > 63, uvec2(~0u), chosen(exponent >= 52, large, small));
    return chosen(any(bvec3(int(a.y) < 0, exponent < 0, f64_isnan(a))), uvec2(0u), found);
}
uvec2 f64_to_s64(const uvec2 a) { return limited_to_s64(f64_to_u64(f64_abs(a)), int(a.y) < 0); }
uint f64_to_u32(const uvec2 a) { return u64_min(f64_to_u64(a), uvec2(~0u, 0u)).x; }
int f64_to_s32(const uvec2 a) {
    return int(s64_max(s64_min(f64_to_s64(a), uvec2(0x7fffffffu, 0u)), uvec2(0x80000000u, ~0u)).x);
}
uvec2 whole_to_f64(const uint sign, const uvec2 size) {
    uint up = 63u - u64_msb(size);
    return f64_closed(sign, 63 - int(up), sticky_shr(i64_shl(size, up), 1u));
}
uvec2 u64_to_f64(const uvec2 a) { return whole_to_f64(0u, a); }
uvec2 s64_to_f64(const uvec2 a) { return whole_to_f64(a.y & 0x80000000u, s64_abs(a)); }
uvec2 u32_to_f64(const uint a) { return u64_to_f64(uvec2(a, 0u)); }
uvec2 s32_to_f64(const int a) { return s64_to_f64(uvec2(uint(a), uint(a >> 31))); }

// The compiler removes functions that are not called.
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
