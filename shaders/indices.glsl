// int32 or int64 indices, read as 32-bit words: a negative one counts from the end, one out of range is clamped, so that
// no index reads or writes out of bounds. INDEX_WORDS: 1 for int32, 2 for int64.
#ifndef VKEP_INDICES_GLSL
#define VKEP_INDICES_GLSL
TENSOR(int, IndexWords)

uint read_index(IndexWords words, uint at, uint extent) {
    int low = words.v[at * INDEX_WORDS];
#if INDEX_WORDS == 2
    int high = words.v[at * 2u + 1u];
    if (high != low >> 31) low = high < 0 ? -0x7fffffff : 0x7fffffff;  // beyond 32 bits: out of range either way
#endif
    if (low < 0) low += int(extent);
    return uint(clamp(low, 0, int(extent) - 1));
}
#endif
