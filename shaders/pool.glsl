// Shared by the pooling kernels. Included after elements.glsl; With PROPAGATE_NAN a NaN in a window is its maximum.
#ifndef VKEP_POOL_GLSL
#define VKEP_POOL_GLSL

// A loop over up to this many taps is unrolled. A longer one visits only the taps inside the image.
const uint FEW_TAPS = 16u;

// The range [first, end) of the `taps` positions start, start + step ... that lie within [low, high).
uvec2 taps_inside(int start, uint taps, uint step, int low, int high) {
    uint first = start >= low ? 0u : (uint(low) - uint(start) - 1u) / step + 1u;
    uint end = start >= high ? 0u : min((uint(high) - uint(start) - 1u) / step + 1u, taps);
    return uvec2(min(first, end), end);
}

// The taps to visit on an axis of `size`: those inside it.
uvec2 taps_of(int start, uint taps, uint step, uint size) {
    return taps > FEW_TAPS ? taps_inside(start, taps, step, 0, int(size)) : uvec2(0u, taps);
}

// How many of `taps` positions start, start + step ... lie within [low, high).
uint count_inside(int start, uint taps, uint step, int low, int high) {
    if (taps > FEW_TAPS) {
        uvec2 inside = taps_inside(start, taps, step, low, high);
        return inside.y - inside.x;
    }
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
