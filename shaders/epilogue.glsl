// Included after args.glsl by kernels whose result may pass through a fused expression before it is stored.
//
// The planner defines EPILOGUE_BODY (statements that change `v`) and EPILOGUE_DECLS (pointer types), and adds the
// operands that they read to the argument block as EXTRA_OPERANDS. A kernel calls
//     v = epilogue(v, o, row, col);
// with o the flat element index in the output, row the output channel (a convolution) or row (a matmul), col the
// pixel or column. A kernel of two products (PAIRED) sets w to the second one's element before.
#ifdef PAIRED
float w;
#endif
#ifdef EPILOGUE_BODY
#define VECTORS_OF_EIGHT(TYPE, BYTES, NAME) layout(buffer_reference, std430, buffer_reference_align = BYTES) readonly buffer NAME { TYPE v[]; };
#include "math.glsl"
#include "fastdiv.glsl"
EPILOGUE_DECLS
float epilogue(float v, uint o, uint row, uint col) { EPILOGUE_BODY return v; }
#else
float epilogue(float v, uint o, uint row, uint col) { return v; }
#endif

// Of eight results of a row, the first of which is at a multiple of eight. Operands that lie in vectors along the row are read so
// (EIGHT_READS) before EIGHT_BODY changes the i-th v.
#ifdef EIGHT_READS
void epilogue_eight(inout vec4 low, inout vec4 high, uint o0, uint row, uint col0) {
    uint o = o0, col = col0;
    EIGHT_READS
    [[unroll]] for (uint i = 0; i < 8; i++) {
        float v = i < 4 ? low[i & 3] : high[i & 3];
        o = o0 + i;
        col = col0 + i;
        EIGHT_BODY
        if (i < 4) low[i & 3] = v;
        else high[i & 3] = v;
    }
}
#else
void epilogue_eight(inout vec4 low, inout vec4 high, uint o, uint row, uint col) {
    [[unroll]] for (uint i = 0; i < 4; i++) {
        low[i] = epilogue(low[i], o + i, row, col + i);
        high[i] = epilogue(high[i], o + 4 + i, row, col + 4 + i);
    }
}
#endif
