// The moments of a set: its size, its mean, and the sum of the squares around it. Those of two sets are joined around their common
// mean (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
#ifndef VKEP_MOMENTS_GLSL
#define VKEP_MOMENTS_GLSL
#include "lanes.glsl"

vec3 joined(vec3 a, vec3 b) {
    float count = a.x + b.x, apart = b.y - a.y;
    if (count == 0.0) return a;
    float share = b.x / count;
    return vec3(count, a.y + apart * share, a.z + b.z + apart * (a.x * share) * apart);
}
COMBINE_LANES(all_joined, vec3, joined)

TENSOR(float, Floats)
#endif
