// The block of queries that a workgroup computes, and the scores of its rows (attention.glsl, attention_subgroup.comp).
//
// Query i sees the keys from i + first to i + end (excluded); with ORIGIN, relative to a position of its batch. Workgroup
// (x, y, z) is a block of BLOCK_Q queries, a head, a batch; main() calls find_block() first.
#ifndef VKEP_ATTENTION_SCORES_GLSL
#define VKEP_ATTENTION_SCORES_GLSL
#include "workgroup.glsl"
#include "math.glsl"
#include "attention_bias.glsl"

TENSOR(BIAS_T, Bias)
TENSOR(int, Origins)

#define LOWEST uintBitsToFloat(0xff800000u)  // -infinity
#define LOWEST_FINITE uintBitsToFloat(0xff7fffffu)

uvec2 q, k, v;
uint query0, q0, k0, v0, bias0;
int last_query, first_key, end_key;  // the keys that query 0 sees
int begin, end;                      // the keys that any query of the block sees

// The exponent of two of a key's power: of the product of a query (a row of the block) and a key; -infinity where the query does
// not see the key. `whole`: each row sees all of the block's keys.
float exponent_of(float product, uint row, uint key, bool whole) {
    float score = args.scale * product;
    if (SOFTCAP == 1) score = args.softcap * limited_tanh(score);
    if (BIAS != 0) {
        uint line = min(query0 + row, args.queries - 1), column = BIAS == 1 ? min(key, args.keys - 1) : 0;
        Bias bias = Bias(operand(args.bias, 3));
        score = biased(score, float(bias.v[bias0 + line * args.bias_row + column]));
    }
    int place = int(key), query = int(query0 + row);
    bool seen = place >= query + first_key && place < min(int(args.keys), query + end_key);
    return whole || seen ? score : LOWEST;
}

// The factor of a row's results, by its sum of powers; 0 for a row that saw no key.
float factor_of(float sum) { return sum == 0.0 ? 0.0 : 1.0 / sum; }

// Whether all of the block's queries see the BLOCK_K keys from `key` on.
bool all_seen(int key) {
    int after = key + int(BLOCK_K);
    return after <= int(args.keys) && key >= last_query + first_key && after <= int(query0) + end_key;
}

void find_block() {
    query0 = (group_count().x - 1 - group_id().x) * BLOCK_Q;  // the last blocks go first: under a causal mask they take the longest
    uint head = group_id().y, batch = group_id().z, kv_head = head / GROUP;
    q0 = batch * args.q_batch + head * args.q_head;
    k0 = batch * args.k_batch + kv_head * args.k_head;
    v0 = batch * args.v_batch + kv_head * args.v_head;
    bias0 = batch * args.bias_batch + head * args.bias_head;
    q = operand(args.q, 0);
    k = operand(args.k, 1);
    v = operand(args.v, 2);
    last_query = int(min(query0 + BLOCK_Q, args.queries)) - 1;
    int origin = ORIGIN == 1 ? Origins(operand(args.origin, 4)).v[batch] : 0;
    first_key = origin + args.first;
    end_key = origin + args.end;
    begin = max(0, int(query0) + first_key);
    end = min(int(args.keys), last_query + end_key);
}
#endif
