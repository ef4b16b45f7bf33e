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
#include "math.glsl"
#include "fastdiv.glsl"
EPILOGUE_DECLS
float epilogue(float v, uint o, uint row, uint col) { EPILOGUE_BODY return v; }
#else
float epilogue(float v, uint o, uint row, uint col) { return v; }
#endif
