// Float elements of contiguous rows, one at a time or, with VECTOR_IN_T and VECTOR_OUT_T defined, four: VALUE_T in
// registers; positions and lengths then count groups of four. Included after elements.glsl, with COMPUTE_T float.
#ifndef VKEP_ROWS_GLSL
#define VKEP_ROWS_GLSL
#ifdef VECTOR_IN_T
#define VALUE_T vec4
const uint WIDTH = 4u;
TENSOR(VECTOR_IN_T, InRow)
TENSOR(VECTOR_OUT_T, OutRow)
VALUE_T load_value(VECTOR_IN_T v) { return vec4(v); }
VECTOR_OUT_T store_value(VALUE_T v) { return VECTOR_OUT_T(v); }
float sum_within(VALUE_T v) { return (v.x + v.y) + (v.z + v.w); }
float max_within(VALUE_T v) { return max(max(v.x, v.y), max(v.z, v.w)); }
#else
#define VALUE_T float
const uint WIDTH = 1u;
#define InRow InTensor
#define OutRow OutTensor
#define load_value load_element
#define store_value store_element
float sum_within(VALUE_T v) { return v; }
float max_within(VALUE_T v) { return v; }
#endif
#endif
