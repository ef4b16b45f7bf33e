// Included before args.glsl by kernels on cooperative matrices: extensions and the tile's spec constants.
#ifndef VKEP_COOPERATIVE_GLSL
#define VKEP_COOPERATIVE_GLSL
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
layout(constant_id = 4) const uint TILE_M = 128;
layout(constant_id = 5) const uint TILE_N = 128;
layout(constant_id = 6) const uint TILE_K = 32;
layout(constant_id = 7) const uint SUB_M = 64;
layout(constant_id = 8) const uint SUB_N = 32;
layout(constant_id = 9) const uint MAT_M = 16;   // the cooperative matrices' shape: one that the device lists
layout(constant_id = 10) const uint MAT_N = 16;
layout(constant_id = 11) const uint MAT_K = 16;
layout(constant_id = 12) const uint STAGES = 1;  // 2: a stage is filled while the other is read
layout(constant_id = 13) const uint B_ALONG_K = 0;  // 1: b is staged with k running fastest
layout(constant_id = 14) const uint PARTIAL = 0;
layout(constant_id = 15) const uint SUBGROUP_LANES = 32;
layout(constant_id = 16) const uint STORE_VECTOR = 0;  // 1: results lie in aligned groups of eight along a row
layout(constant_id = 17) const uint WHOLE_K = 0;  // 1: k is whole stages, so that no load needs to look for its end

uint pack_halves(float a, float b) { return packFloat2x16(f16vec2(a, b)); }
uvec4 pack_eight(vec4 low, vec4 high) {
    return uvec4(pack_halves(low.x, low.y), pack_halves(low.z, low.w), pack_halves(high.x, high.y), pack_halves(high.z, high.w));
}
#endif
