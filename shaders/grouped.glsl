// Products of blocks by the matrices of their groups: the arguments and, with CODES, weights from codes of 2, 4 or 8 bits in rows of
// whole words; BLOCK neighbours along k share a scale. Include after vkep.glsl; T is the storage type.
#ifdef CODES
#define CODE_OPERANDS uvec2 scales; uvec2 zeros;
#define CODE_PARAMS uint zero_bytes;
#else
#define CODE_OPERANDS
#define CODE_PARAMS
#endif
#define ARGS_BODY { uvec2 a; uvec2 b; uvec2 owners; WRITTEN y; CODE_OPERANDS uint m; uint n; uint k; uint groups; CODE_PARAMS }
#include "args.glsl"

TENSOR(uint, Words)
uint owner;  // the group of this workgroup's block

#ifdef CODES
layout(constant_id = 14) const uint BITS = 4;
layout(constant_id = 15) const uint BLOCK = 32;
layout(constant_id = 16) const uint ZEROS = 0;  // 0: half of the codes' range; packed codes: 1 of each row's blocks, 2 of a group's rows
TENSOR(T, Scales)
TENSOR(uint8_t, Bytes)
Words codes;
Scales scales;
Bytes zeros;

void open_codes() {
    codes = Words(operand(args.b, 1));
    scales = Scales(operand(args.scales, 4));
    zeros = Bytes(operand(args.zeros, 5));
}

// Four weights of a row of the owner's matrix, from k on, a multiple of four.
vec4 four_weights(uint column, uint k) {
    uint row = owner * args.n + column, block = k / BLOCK, at = row * args.k + k;
    uint word = codes.v[at / (32 / BITS)] >> at % (32 / BITS) * BITS;
    float zero = float(1u << (BITS - 1));
    if (ZEROS != 0) {
        uint bit = (ZEROS == 1 ? block : column) * BITS, first = (ZEROS == 1 ? row : owner) * args.zero_bytes;
        zero = float(uint(zeros.v[first + bit / 8]) >> bit % 8 & (1u << BITS) - 1);
    }
    uvec4 four = uvec4(word, word >> BITS, word >> 2 * BITS, word >> 3 * BITS) & ((1u << BITS) - 1);
    return (vec4(four) - zero) * float(scales.v[row * (args.k / BLOCK) + block]);
}
#endif
