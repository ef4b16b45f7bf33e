// Float elements of contiguous rows, one at a time or, with VECTOR_IN_T and VECTOR_OUT_T defined, four: VALUE_T in
// registers; positions and lengths then count groups of four. Included after args.glsl and elements.glsl, with COMPUTE_T float.
#ifndef VKEP_ROWS_GLSL
#define VKEP_ROWS_GLSL
#include "epilogue.glsl"
#ifdef VECTOR_IN_T
#define VALUE_T vec4
const uint WIDTH = 4u;
TENSOR(VECTOR_IN_T, InRow)
TENSOR(VECTOR_OUT_T, OutRow)
VALUE_T load_value(VECTOR_IN_T v) { return vec4(v); }
VECTOR_OUT_T store_value(VALUE_T v) { return VECTOR_OUT_T(v); }
float sum_within(VALUE_T v) { return (v.x + v.y) + (v.z + v.w); }
float max_within(VALUE_T v) { return max(max(v.x, v.y), max(v.z, v.w)); }
// What is stored of a row's result at `at`, the k-th of the row.
VECTOR_OUT_T finished(VALUE_T v, uint at, uint row, uint k) {
    [[unroll]] for (uint i = 0u; i < WIDTH; ++i) v[i] = epilogue(v[i], at * WIDTH + i, row, k * WIDTH + i);
    return store_value(v);
}
#else
#define VALUE_T float
const uint WIDTH = 1u;
#define InRow InTensor
#define OutRow OutTensor
#define load_value load_element
#define store_value store_element
float sum_within(VALUE_T v) { return v; }
float max_within(VALUE_T v) { return v; }
OUT_T finished(VALUE_T v, uint at, uint row, uint k) { return store_value(epilogue(v, at, row, k)); }
#endif
#endif
