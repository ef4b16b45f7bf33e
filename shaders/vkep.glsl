// Included first by every kernel: extensions, the INDIRECT spec constant, storage types.
#ifndef VKEP_GLSL
#define VKEP_GLSL
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_control_flow_attributes : require


// Bit i set: operand i's address is a slot of the plan's argument table, which holds the tensor's address.
layout(constant_id = 0) const uint INDIRECT = 0;

layout(local_size_x_id = 1, local_size_y_id = 2, local_size_z_id = 3) in;

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer AddressSlot { uvec2 address; };

uvec2 operand(uvec2 address, uint index) {
    if (((INDIRECT >> index) & 1u) != 0u) return AddressSlot(address).address;
    return address;
}

// NaN and infinity by their bits: a compiler may assume that there are none (Vulkan spec, SignedZeroInfNanPreserve), so that GLSL's
// isnan() and isinf() are false.
bool is_not_a_number(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
bool is_infinite(float x) { return (floatBitsToUint(x) & 0x7fffffffu) == 0x7f800000u; }
bool is_not_a_number(double x) {
    uvec2 bits = unpackDouble2x32(x);
    return ((bits.y & 0x7fffffffu) | (bits.x != 0u ? 1u : 0u)) > 0x7ff00000u;
}
bool is_infinite(double x) { return (unpackDouble2x32(x) & uvec2(~0u, 0x7fffffffu)) == uvec2(0u, 0x7ff00000u); }
#define isnan(x) is_not_a_number(x)
#define isinf(x) is_infinite(x)

// a / b from a quotient with an error of a few ULP and 1 / b: correctly rounded. The product of quotient and divisor is computed
// from halves of 12 bits, whose products are exact; fma() may round twice (Vulkan spec, "Precision and Operation of SPIR-V
// Instructions"). Without "precise" a compiler may simplify a - (a / b) * b to 0.
float refined_quotient(float a, float b, float q, float inverse) {
    float q_high = uintBitsToFloat(floatBitsToUint(q) & 0xfffff000u), b_high = uintBitsToFloat(floatBitsToUint(b) & 0xfffff000u);
    precise float q_low = q - q_high, b_low = b - b_high;
    precise float rest = ((a - q_high * b_high) - q_high * b_low) - q_low * b_high;
    rest = rest - q_low * b_low;
    precise float refined = q + rest * inverse;
    bool plain = abs(q) < 1e30 && abs(q) > 1e-30 && abs(a) > 1e-30 && abs(b) < 1e30;  // no product overflows or loses digits
    return plain ? refined : q;
}

// a / b, correctly rounded where neither a nor the quotient is tiny or huge, for a b whose size is that of most numbers (2**-60 to
// 2**60). It has no branch, and one division for all a: drivers on the CPU compile an epilogue for each of a lane's results.
float quotient_by_usual(float a, float b) {
    precise float inverse = 1.0 / b;
    precise float q = a * inverse;
    return refined_quotient(a, b, q, inverse);
}

// a / b, correctly rounded: a GPU's division may have an error of 2.5 ULP, which becomes visible where ties are rounded. Division is
// undefined for divisors of a size above 2**126 or below 2**-126 (ibid.): these are scaled, and of 0 and infinity the result is
// known.
float exact_quotient(float a, float b) {
    uint a_size = floatBitsToUint(a) & 0x7fffffffu, b_size = floatBitsToUint(b) & 0x7fffffffu;
    uint sign = (floatBitsToUint(a) ^ floatBitsToUint(b)) & 0x80000000u;
    if (a_size > 0x7f800000u || b_size > 0x7f800000u) return uintBitsToFloat(0x7fc00000u);
    if (a_size == 0x7f800000u || b_size == 0u)
        return uintBitsToFloat(b_size == 0x7f800000u || a_size == 0u ? 0x7fc00000u : sign | 0x7f800000u);
    if (b_size == 0x7f800000u || a_size == 0u) return uintBitsToFloat(sign);
    if (b_size < 0x00800000u) {  // its bits are a multiple of 2**-149
        precise float part = a * 1.8446744073709552e19 / float(b_size) * 3.8685626227668134e25;  // 2**64, 2**85
        return uintBitsToFloat(floatBitsToUint(part) & 0x7fffffffu | sign);
    }
    if (b_size > 0x7e800000u) return a * 5.9604644775390625e-08 / (b * 5.9604644775390625e-08);
    precise float q = a / b, inverse = 1.0 / b;
    return refined_quotient(a, b, q, inverse);
}

double exact_quotient(double a, double b) {
    uint sign = (unpackDouble2x32(a).y ^ unpackDouble2x32(b).y) & 0x80000000u;
    if (isnan(a) || isnan(b)) return packDouble2x32(uvec2(0u, 0x7ff80000u));
    if (isinf(a) || b == 0.0) return packDouble2x32(uvec2(0u, isinf(b) || a == 0.0 ? 0x7ff80000u : sign | 0x7ff00000u));
    return isinf(b) || a == 0.0 ? packDouble2x32(uvec2(0u, sign)) : a / b;
}

// The type of an operand of ARGS_BODY that the kernel writes; uvec2 is one that it only reads.
#define WRITTEN uvec2

// The operands that a generated epilogue or expression adds to a kernel's argument block.
#ifndef EXTRA_OPERANDS
#define EXTRA_OPERANDS
#endif
#ifndef EXTRA_PARAMS
#define EXTRA_PARAMS
#endif

// TENSOR(float, TensorF) declares a pointer type to an array of float.
#define TENSOR(TYPE, NAME) layout(buffer_reference, scalar) buffer NAME { TYPE v[]; };
#endif
