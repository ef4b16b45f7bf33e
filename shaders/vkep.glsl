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

// a / b, correctly rounded. A GPU's division may have an error of 2.5 ULP, which becomes visible where ties are rounded. The
// product of quotient and divisor is computed from halves of 12 bits, whose products are exact; fma() may round twice (Vulkan
// spec, "Precision and Operation of SPIR-V Instructions"). Without "precise" a compiler may simplify a - (a / b) * b to 0.
float exact_quotient(float a, float b) {
    precise float q = a / b;
    float q_high = uintBitsToFloat(floatBitsToUint(q) & 0xfffff000u), b_high = uintBitsToFloat(floatBitsToUint(b) & 0xfffff000u);
    precise float q_low = q - q_high, b_low = b - b_high;
    precise float rest = ((a - q_high * b_high) - q_high * b_low) - q_low * b_high;
    rest = rest - q_low * b_low;
    precise float refined = q + rest / b;
    return abs(q) < 1e30 && abs(b) < 1e30 ? refined : q;
}

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
