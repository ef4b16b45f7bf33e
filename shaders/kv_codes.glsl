// Formats of quantized caches of keys and values. `CODE`, a spec constant of the shader that includes this, is the format. An
// element is a number divided by a scale, as an integer or an 8-bit float.
#ifndef KV_CODES_GLSL
#define KV_CODES_GLSL
const uint CODE_BFLOAT16 = 1;
const uint CODE_INT8 = 2;
const uint CODE_FLOAT8 = 3;  // e4m3fn
const uint CODE_INT4 = 4;    // stored plus 8, two per byte, the first in the low bits
const uint PACK = CODE == CODE_INT4 ? 2 : 1;  // numbers per element

// The code of x / scale, in the low bits of the result.
uint encode(float x, float scale) {
    if (CODE == CODE_BFLOAT16) {
        uint bits = floatBitsToUint(x);
        return isnan(x) ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    }
    float y = exact_quotient(x, scale);
    if (CODE == CODE_INT8) return uint(int(clamp(roundEven(y), -128.0, 127.0))) & 255u;
    if (CODE == CODE_INT4) return uint(int(clamp(roundEven(y), -8.0, 7.0)) + 8);
    float magnitude = min(abs(y), 448.0);
    int exponent = max(int(floatBitsToUint(magnitude) >> 23) - 127, -6);
    uint count = uint(roundEven(magnitude * uintBitsToFloat(uint(3 - exponent + 127) << 23)));
    uint code = min((uint(exponent + 6) << 3) + count, 126u);  // a carry of the fraction increments the exponent
    return (isnan(y) ? 127u : code) | floatBitsToUint(y) >> 31 << 7;
}

// The number of a code, without its scale. Integers are put into the low bits of the float 2^23, which is faster on GPUs than a
// conversion.
float decode(uint code) {
    if (CODE == CODE_BFLOAT16) return uintBitsToFloat(code << 16);
    if (CODE == CODE_INT8) return uintBitsToFloat((code & 255u) ^ 0x4b000080u) - 8388736.0;
    if (CODE == CODE_INT4) return uintBitsToFloat((code & 15u) | 0x4b000000u) - 8388616.0;
    uint size = code & 127u;
    float magnitude = size < 8u ? float(size) * 0.001953125 : uintBitsToFloat((size << 20) + 0x3c000000u);
    return (code & 128u) != 0u ? -magnitude : magnitude;
}
#endif
