// The index of each element among sorted keys: y[i] = k with keys[k] == x[i], or the number of keys. NaN counts as a
// key, the last one.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 keys; WRITTEN y; uint total; uint count; }
#include "args.glsl"
#include "elements.glsl"
#include "workgroup.glsl"

TENSOR(int, Places)

#ifdef FLOATING
bool is_nan(COMPUTE_T v) { return isnan(v); }
#else
bool is_nan(COMPUTE_T v) { return false; }
#endif

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    InTensor x = InTensor(operand(args.x, 0)), keys = InTensor(operand(args.keys, 1));
    COMPUTE_T wanted = load_element(x.v[id]);
    uint low = 0u, high = args.count;
    while (low < high) {
        uint at = (low + high) >> 1;
        COMPUTE_T key = load_element(keys.v[at]);
        bool less = is_nan(wanted) ? !is_nan(key) : key < wanted;
        if (less) low = at + 1u; else high = at;
    }
    bool there = false;
    if (low < args.count) {
        COMPUTE_T key = load_element(keys.v[low]);
        there = key == wanted || (is_nan(key) && is_nan(wanted));
    }
    Places(operand(args.y, 2)).v[id] = int(there ? low : args.count);
}
