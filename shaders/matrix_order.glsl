// Which lane holds which element of a cooperative matrix: the specification leaves it open, so a kernel that fills or reads
// matrices by lanes asks expected_order().
//
// A kernel defines MATRIX_MEMORY before it includes this, the name of an array of 96 or more uvec4 in shared memory, and has
// spec constants MAT_M, MAT_N, MAT_K and SUBGROUP_LANES.
#ifndef VKEP_MATRIX_ORDER_GLSL
#define VKEP_MATRIX_ORDER_GLSL

// The row (of a right matrix: column) and the other coordinate of a lane's element e, in the order of elements that drivers are
// known to use for matrices of 16 by 16 and 32 lanes.
uint line_of_element(uint e) { return gl_SubgroupInvocationID / 4 + 8 * (e / 4); }
uint place_of_element(uint e) { return gl_SubgroupInvocationID % 4 * 2 + e % 2 + 8 * (e / 2 % 2); }

shared uint unexpected;

// Whether the lanes hold the elements of left and right matrices of float16 and of sums in float32 in that order: tries matrices of
// indices. All lanes of the workgroup call it.
bool expected_order() {
    if (MAT_M != 16 || MAT_N != 16 || MAT_K != 16 || SUBGROUP_LANES != 32) return false;
    for (uint id = gl_LocalInvocationIndex; id < 96; id += gl_WorkGroupSize.x) {  // 256 halves, then 256 floats
        [[unroll]] for (uint i = 0; i < 4; i++)
            MATRIX_MEMORY[id][i] = id < 32 ? packFloat2x16(f16vec2(id * 8 + i * 2, id * 8 + i * 2 + 1)) : floatBitsToUint(float((id - 32) * 4 + i));
    }
    if (gl_LocalInvocationIndex == 0) unexpected = 0;
    barrier();
    coopmat<float16_t, gl_ScopeSubgroup, MAT_M, MAT_K, gl_MatrixUseA> left;
    coopmat<float16_t, gl_ScopeSubgroup, MAT_K, MAT_N, gl_MatrixUseB> right;
    coopmat<float, gl_ScopeSubgroup, MAT_M, MAT_N, gl_MatrixUseAccumulator> sums;
    coopMatLoad(left, MATRIX_MEMORY, 0, 2, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(right, MATRIX_MEMORY, 0, 2, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(sums, MATRIX_MEMORY, 32, 4, gl_CooperativeMatrixLayoutRowMajor);
    bool same = true;
    [[unroll]] for (uint e = 0; e < 8; e++) {
        uint line = line_of_element(e), place = place_of_element(e), by_rows = line * 16 + place;
        if (uint(left[e]) != by_rows || uint(right[e]) != place * 16 + line || uint(sums[e]) != by_rows) same = false;
    }
    if (!same) unexpected = 1;
    barrier();
    return unexpected == 0;
}
#endif
