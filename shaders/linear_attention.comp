// LinearAttention of com.microsoft: each sequence and head has a matrix [key_size, value_size]. Keys and values update it one
// after the other, and each query is multiplied by it. A lane has one column of one matrix, in `state` (float). Its first value
// is `first`.
//
// DECAY (logarithms): 0 none, 1 one per head, 2 one per row of the matrix. BETA: 0 none, 1 one per head, 2 one for all heads.
// With BETA the update is beta times the difference between the value and the product of key and matrix.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 q; uvec2 k; uvec2 v; uvec2 first; uvec2 decay; uvec2 beta; WRITTEN y; WRITTEN state; \
    uint total; uint steps; uint q_heads; uint k_heads; uint heads; uint key_size; uint value_size; float scale; }
#include "args.glsl"
#include "elements.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint DECAY = 0;
layout(constant_id = 5) const uint BETA = 0;

TENSOR(float, State)

void main() {
    uint id = flat_lane();
    if (id >= args.total) return;
    uint column = id % args.value_size, head = id / args.value_size % args.heads, batch = id / (args.value_size * args.heads);
    InTensor q = InTensor(operand(args.q, 0)), k = InTensor(operand(args.k, 1)), v = InTensor(operand(args.v, 2));
    State first = State(operand(args.first, 3)), state = State(operand(args.state, 7));
    InTensor decay = InTensor(operand(args.decay, 4)), beta = InTensor(operand(args.beta, 5));
    OutTensor y = OutTensor(operand(args.y, 6));
    uint rows = args.key_size, step = args.value_size;
    uint at = (batch * args.heads + head) * rows * step + column;  // index of the column's first element
    for (uint i = 0u; i < rows; ++i) state.v[at + i * step] = first.v[at + i * step];
    uint key_head = head * args.k_heads / args.heads;
    // the query heads that read this matrix: several, or one that several matrices share
    uint queries = max(args.q_heads / args.heads, 1u);
    uint query = args.q_heads >= args.heads ? head * queries : head * args.q_heads / args.heads;
    uint results = max(args.q_heads, args.heads), result = args.q_heads >= args.heads ? query : head;
    for (uint t = 0u; t < args.steps; ++t) {
        uint token = batch * args.steps + t;
        uint key = (token * args.k_heads + key_head) * rows;
        float taken = float(load_element(v.v[(token * args.heads + head) * step + column]));
        if (DECAY != 0u || BETA != 0u) {
            float kept = DECAY == 1u ? exp(float(load_element(decay.v[token * args.heads + head]))) : 1.0;
            float given = 0.0;
            for (uint i = 0u; i < rows; ++i) {
                if (DECAY == 2u) kept = exp(float(load_element(decay.v[(token * args.heads + head) * rows + i])));
                float s = state.v[at + i * step] * kept;
                if (DECAY != 0u) state.v[at + i * step] = s;
                if (BETA != 0u) given += s * float(load_element(k.v[key + i]));
            }
            if (BETA != 0u)
                taken = float(load_element(beta.v[BETA == 1u ? token * args.heads + head : token])) * (taken - given);
        }
        for (uint i = 0u; i < rows; ++i) state.v[at + i * step] += float(load_element(k.v[key + i])) * taken;
        for (uint g = 0u; g < queries; ++g) {
            uint row = (token * args.q_heads + query + g) * rows;
            float sum = 0.0;
            for (uint i = 0u; i < rows; ++i) sum += float(load_element(q.v[row + i])) * state.v[at + i * step];
            y.v[(token * results + result + g) * step + column] = store_element(COMPUTE_T(sum * args.scale));
        }
    }
}
