// The type of positions, weights and sums: double with DOUBLES, else float.
#ifndef VKEP_REAL_GLSL
#define VKEP_REAL_GLSL
#ifdef DOUBLES
#define REAL double
#define REAL2 dvec2
#define REAL4 dvec4
#else
#define REAL float
#define REAL2 vec2
#define REAL4 vec4
#endif
#endif
