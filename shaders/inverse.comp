// Inverses of a batch of n x n matrices: Gauss-Jordan elimination with partial pivoting, one lane per matrix, in place in
// `work` (COMPUTE_T [n, 2n] per matrix: the matrix, then the identity, which becomes the inverse). The result of a singular
// matrix is not finite.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; WRITTEN work; WRITTEN y; uint total; uint n; }
#include "args.glsl"
#include "elements.glsl"
#include "workgroup.glsl"

TENSOR(COMPUTE_T, Work)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    InTensor x = InTensor(operand(args.x, 0));
    OutTensor y = OutTensor(operand(args.y, 2));
    Work m = Work(operand(args.work, 1));
    uint n = args.n, wide = 2u * n, base = id * n * wide;
    for (uint row = 0u; row < n; ++row) {
        for (uint col = 0u; col < n; ++col) {
            m.v[base + row * wide + col] = load_element(x.v[(id * n + row) * n + col]);
            m.v[base + row * wide + n + col] = row == col ? COMPUTE_T(1) : COMPUTE_T(0);
        }
    }
    for (uint col = 0u; col < n; ++col) {
        uint pivot = col;
        for (uint row = col + 1u; row < n; ++row)
            if (abs(m.v[base + row * wide + col]) > abs(m.v[base + pivot * wide + col])) pivot = row;
        COMPUTE_T head = m.v[base + pivot * wide + col];
        for (uint k = col; k < wide; ++k) {
            COMPUTE_T held = m.v[base + pivot * wide + k];
            if (pivot != col) m.v[base + pivot * wide + k] = m.v[base + col * wide + k];
            m.v[base + col * wide + k] = held / head;
        }
        for (uint row = 0u; row < n; ++row) {
            if (row == col) continue;
            COMPUTE_T factor = m.v[base + row * wide + col];
            for (uint k = col; k < wide; ++k) m.v[base + row * wide + k] -= factor * m.v[base + col * wide + k];
        }
    }
    for (uint row = 0u; row < n; ++row)
        for (uint col = 0u; col < n; ++col) y.v[(id * n + row) * n + col] = store_element(m.v[base + row * wide + n + col]);
}
