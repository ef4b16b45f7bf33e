// int32 or int64 indices, read as 32-bit words. With NEGATIVE (the default) a negative one counts from the end. One out of
// range is recorded as a fault of the run, and clamped, so that no index reads or writes out of bounds. INDEX_WORDS: 1 for
// int32, 2 for int64; FAULT: the number of the operand `fault`.
#ifndef VKEP_INDICES_GLSL
#define VKEP_INDICES_GLSL
#include "fault.glsl"
#if INDEX_WORDS == 2
TENSOR(ivec2, IndexWords)  // an element each: the index of its words would pass 2^31
#else
TENSOR(int, IndexWords)
#endif
#ifndef NEGATIVE
#define NEGATIVE true
#endif

uint read_index(IndexWords words, uint at, uint extent) {
#if INDEX_WORDS == 2
    ivec2 word = words.v[at];
    int low = word.x, high = word.y;
    if (high != low >> 31) low = high < 0 ? -0x7fffffff - 1 : 0x7fffffff;  // beyond 32 bits: out of range either way
#else
    int low = words.v[at];
#endif
    if (low < 0 && NEGATIVE) low += int(extent);
    if (uint(low) >= extent) note_fault(operand(args.fault, FAULT), args.fault_code);
    return uint(clamp(low, 0, int(extent) - 1));
}
#endif
