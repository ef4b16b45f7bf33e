// Determinants of a batch of n x n matrices: Gaussian elimination with partial pivoting, one lane per matrix, in place in
// `work` (COMPUTE_T, as large as x).
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
    Work m = Work(operand(args.work, 1));
    uint n = args.n, base = id * n * n;
    for (uint k = 0u; k < n * n; ++k) m.v[base + k] = load_element(x.v[base + k]);
    COMPUTE_T result = COMPUTE_T(1);
    for (uint col = 0u; col < n; ++col) {
        uint pivot = col;
        for (uint row = col + 1u; row < n; ++row)
            if (abs(m.v[base + row * n + col]) > abs(m.v[base + pivot * n + col])) pivot = row;
        COMPUTE_T head = m.v[base + pivot * n + col];
        if (head == COMPUTE_T(0)) {
            result = COMPUTE_T(0);
            break;
        }
        if (pivot != col) {
            result = -result;
            for (uint k = col; k < n; ++k) {
                COMPUTE_T held = m.v[base + col * n + k];
                m.v[base + col * n + k] = m.v[base + pivot * n + k];
                m.v[base + pivot * n + k] = held;
            }
        }
        result *= head;
        for (uint row = col + 1u; row < n; ++row) {
            COMPUTE_T factor = m.v[base + row * n + col] / head;
            for (uint k = col + 1u; k < n; ++k) m.v[base + row * n + k] -= factor * m.v[base + col * n + k];
        }
    }
    OutTensor(operand(args.y, 2)).v[id] = store_element(result);
}
