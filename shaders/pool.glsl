// What pooling kernels share. Included after elements.glsl; PROPAGATE_NAN says that a NaN in a window is its maximum.
#ifndef VKEP_POOL_GLSL
#define VKEP_POOL_GLSL

// How many of `taps` positions start, start + step ... lie within [low, high).
uint count_inside(int start, uint taps, uint step, int low, int high) {
    uint n = 0u;
    for (uint t = 0u; t < taps; ++t) {
        int at = start + int(t * step);
        n += uint(at >= low && at < high);
    }
    return n;
}

#ifdef PROPAGATE_NAN
bool exceeds(COMPUTE_T v, COMPUTE_T best) { return v > best || isnan(v); }
#else
bool exceeds(COMPUTE_T v, COMPUTE_T best) { return v > best; }
#endif
#endif
