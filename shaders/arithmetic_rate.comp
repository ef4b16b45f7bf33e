// Measures the device's arithmetic rate: `steps` multiply-adds in registers, in CHAINS independent chains: of float, or of
// cooperative matrices of T with sums of SUM.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#ifdef SUM
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#endif
#define ARGS_BODY { WRITTEN y; uint steps; float slope; float intercept; }
#include "args.glsl"

TENSOR(float, Results)

#ifdef SUM
layout(constant_id = 4) const uint CHAINS = 4;
layout(constant_id = 5) const uint MAT_M = 16;  // the cooperative matrices' shape: one that the device lists
layout(constant_id = 6) const uint MAT_N = 16;
layout(constant_id = 7) const uint MAT_K = 16;

void main() {
    coopmat<T, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> a[CHAINS];
    coopmat<T, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> b[CHAINS];
    coopmat<SUM, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> sums[CHAINS * CHAINS];
    [[unroll]] for (uint i = 0; i < CHAINS; ++i) {
        a[i] = coopmat<T, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA>(T(args.slope * float(i + 1)));
        b[i] = coopmat<T, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB>(T(args.intercept * float(i + 1)));
    }
    [[unroll]] for (uint i = 0; i < CHAINS * CHAINS; ++i)
        sums[i] = coopmat<SUM, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator>(SUM(args.intercept));
    for (uint step = 0; step < args.steps; ++step) {
        [[unroll]] for (uint i = 0; i < CHAINS; ++i)
            [[unroll]] for (uint j = 0; j < CHAINS; ++j)
                sums[i * CHAINS + j] = coopMatMulAdd(a[i], b[j], sums[i * CHAINS + j]);
    }
    [[unroll]] for (uint i = 1; i < CHAINS * CHAINS; ++i) sums[0] += sums[i];
    if (sums[0][0] == SUM(-123456)) Results(operand(args.y, 0)).v[0] = float(sums[0][0]);  // never true, but the compiler must keep the sums
}
#else
layout(constant_id = 4) const uint CHAINS = 24;  // more than an operation's latency in cycles
layout(constant_id = 5) const uint MAT_M = 0;
layout(constant_id = 6) const uint MAT_N = 0;
layout(constant_id = 7) const uint MAT_K = 0;

void main() {
    float sums[CHAINS];
    float slope = args.slope + float(gl_LocalInvocationID.x) * 1e-7;
    [[unroll]] for (uint i = 0; i < CHAINS; ++i) sums[i] = float(i);
    for (uint step = 0; step < args.steps; ++step) {
        [[unroll]] for (uint i = 0; i < CHAINS; ++i) sums[i] = sums[i] * slope + args.intercept;
    }
    float all = 0.0;
    [[unroll]] for (uint i = 0; i < CHAINS; ++i) all += sums[i];
    if (all == 0.123456) Results(operand(args.y, 0)).v[0] = all;  // never true, but the compiler must keep the sums
}
#endif
