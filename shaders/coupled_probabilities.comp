// Probabilities of classes from those of their pairs (Wu, Lin and Weng, "Probability Estimates for Multi-class Classification
// by Pairwise Coupling", 2004, the second method, as libsvm iterates it). Each lane computes one row: `pairs` [rows, classes *
// (classes - 1) / 2] is the probability of a pair's first class; y is [rows, classes]. `q` and `qp` are the lane's matrix and
// vector.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 pairs; WRITTEN q; WRITTEN qp; WRITTEN y; uint rows; uint classes; }
#include "args.glsl"
#include "workgroup.glsl"

TENSOR(float, Floats)
const uint MOST_ROUNDS = 100u;

void main() {
    uint row = flat_lane(), n = args.classes;
    if (row >= args.rows) return;
    Floats pairs = Floats(operand(args.pairs, 0)), q = Floats(operand(args.q, 1)), qp = Floats(operand(args.qp, 2));
    Floats y = Floats(operand(args.y, 3));
    uint q0 = row * n * n, v0 = row * n, pair = row * (n * (n - 1u) / 2u);
    for (uint i = 0u; i < n; ++i) {
        y.v[v0 + i] = 1.0 / float(n);
        q.v[q0 + i * n + i] = 0.0;
    }
    for (uint i = 0u; i < n; ++i)
        for (uint j = i + 1u; j < n; ++j, ++pair) {
            float first = pairs.v[pair], second = 1.0 - first;
            q.v[q0 + i * n + i] += second * second;
            q.v[q0 + j * n + j] += first * first;
            q.v[q0 + i * n + j] = -first * second;
            q.v[q0 + j * n + i] = -first * second;
        }
    for (uint round = 0u; round < MOST_ROUNDS; ++round) {
        float total = 0.0, worst = 0.0;
        for (uint i = 0u; i < n; ++i) {
            float sum = 0.0;
            for (uint j = 0u; j < n; ++j) sum += q.v[q0 + i * n + j] * y.v[v0 + j];
            qp.v[v0 + i] = sum;
            total += y.v[v0 + i] * sum;
        }
        for (uint i = 0u; i < n; ++i) worst = max(worst, abs(qp.v[v0 + i] - total));
        if (worst < 0.005 / float(n)) break;
        for (uint i = 0u; i < n; ++i) {
            float own = q.v[q0 + i * n + i], step = (total - qp.v[v0 + i]) / own, scale = 1.0 / (1.0 + step);
            y.v[v0 + i] += step;
            total = (total + step * (step * own + 2.0 * qp.v[v0 + i])) * scale * scale;
            for (uint j = 0u; j < n; ++j) {
                qp.v[v0 + j] = (qp.v[v0 + j] + step * q.v[q0 + i * n + j]) * scale;
                y.v[v0 + j] *= scale;
            }
        }
    }
}
