// All steps of an RNN, GRU or LSTM in one dispatch: a workgroup keeps the state of one sequence in shared memory; SPLIT lanes
// compute a hidden unit together. `gates` [steps, batch, GATES * HIDDEN] holds the product of the inputs of every step and
// their weights; `weights` [HIDDEN (from), GATES, HIDDEN (to)] are the recurrence's, so that neighbouring lanes read
// neighbours. ACTIVATIONS defines act_f, act_g, act_h; one of CELL_RNN, CELL_GRU, CELL_GRU_LINEAR, CELL_LSTM is defined.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 gates; uvec2 weights; uvec2 bias; uvec2 peepholes; uvec2 lengths; uvec2 h0; uvec2 c0; \
    WRITTEN y; WRITTEN h1; WRITTEN c1; uint steps; uint batches; uint backwards; uint y_step; uint y_batch; uint y_unit; float clip; }
#include "args.glsl"
#include "workgroup.glsl"
#include "math.glsl"

layout(constant_id = 4) const uint HIDDEN = 1;
layout(constant_id = 5) const uint SPLIT = 1;
layout(constant_id = 6) const uint HAS_BIAS = 0;
layout(constant_id = 7) const uint HAS_PEEPHOLES = 0;
layout(constant_id = 8) const uint HAS_LENGTHS = 0;
layout(constant_id = 9) const uint HAS_H0 = 0;
layout(constant_id = 10) const uint HAS_C0 = 0;
layout(constant_id = 11) const uint INPUT_FORGET = 0;
#if defined(CELL_LSTM)
#define GATES 4u
#elif defined(CELL_RNN)
#define GATES 1u
#else
#define GATES 3u
#endif

TENSOR(T, Elements)
TENSOR(int, Lengths)

shared float hidden[2u * HIDDEN];  // the state, and the next one
shared float extra[2u * HIDDEN];   // LSTM: the cells; GRU: the update gates, then the reset state
shared float partial[SPLIT > 1u ? SPLIT * GATES * HIDDEN : 1u];

ACTIVATIONS
// infinity: no clipping
float clipped(float x) { return limited(x, -args.clip, args.clip); }

// One lane's share of the recurrent sums of a unit's gates first .. first + count - 1. `from`: 0 or 1 for that half of
// `hidden`, 2 for the reset state.
void add_products(inout float sums[GATES], Elements weights, uint unit, uint part, uint from, uint first, uint count) {
    uint share = (HIDDEN + SPLIT - 1u) / SPLIT, end = min(HIDDEN, (part + 1u) * share);
    for (uint k = part * share; k < end; ++k) {
        float state = from < 2u ? hidden[from * HIDDEN + k] : extra[HIDDEN + k];
        [[unroll]] for (uint g = 0u; g < GATES; ++g)
            if (g >= first && g < first + count) sums[g] += state * float(weights.v[(k * GATES + g) * HIDDEN + unit]);
    }
}

// Writes all lanes' shares of the sums of every unit to `partial`. The whole workgroup must call it.
void share_products(Elements weights, uint lane, uint lanes, uint part, uint from, uint first, uint count) {
    for (uint unit = lane; unit < HIDDEN; unit += lanes) {
        float sums[GATES];
        [[unroll]] for (uint g = 0u; g < GATES; ++g) sums[g] = 0.0;
        add_products(sums, weights, unit, part, from, first, count);
        [[unroll]] for (uint g = 0u; g < GATES; ++g) partial[(part * GATES + g) * HIDDEN + unit] = sums[g];
    }
    barrier();
}

void sum_products(out float sums[GATES], Elements weights, uint unit, uint from, uint first, uint count) {
    [[unroll]] for (uint g = 0u; g < GATES; ++g) sums[g] = 0.0;
    if (SPLIT == 1u) {
        add_products(sums, weights, unit, 0u, from, first, count);
        return;
    }
    [[unroll]] for (uint p = 0u; p < SPLIT; ++p)
        [[unroll]] for (uint g = 0u; g < GATES; ++g) sums[g] += partial[(p * GATES + g) * HIDDEN + unit];
}

void main() {
    uint batch = flat_group();
    if (batch >= args.batches) return;  // the whole workgroup
    uint lanes = gl_WorkGroupSize.x / SPLIT;
    uint lane = gl_LocalInvocationID.x % lanes, part = gl_LocalInvocationID.x / lanes;
    Elements gates = Elements(operand(args.gates, 0)), weights = Elements(operand(args.weights, 1));
    Elements bias = Elements(operand(args.bias, 2)), peep = Elements(operand(args.peepholes, 3));
    Elements y = Elements(operand(args.y, 7));
    uint alive = args.steps;
    if (HAS_LENGTHS != 0u) alive = uint(max(Lengths(operand(args.lengths, 4)).v[batch], 0));
    for (uint unit = gl_LocalInvocationID.x; unit < HIDDEN; unit += gl_WorkGroupSize.x) {
        uint at = batch * HIDDEN + unit;
        hidden[unit] = HAS_H0 != 0u ? float(Elements(operand(args.h0, 5)).v[at]) : 0.0;
        extra[unit] = HAS_C0 != 0u ? float(Elements(operand(args.c0, 6)).v[at]) : 0.0;
    }
    barrier();
    uint now = 0u;
    for (uint s = 0u; s < args.steps; ++s) {
        uint t = args.backwards != 0u ? args.steps - 1u - s : s;
        uint y0 = t * args.y_step + batch * args.y_batch, x0 = (t * args.batches + batch) * GATES * HIDDEN;
        if (t >= alive) {  // the same for the whole workgroup: the state does not change any more
            for (uint unit = gl_LocalInvocationID.x; unit < HIDDEN; unit += gl_WorkGroupSize.x)
                y.v[y0 + unit * args.y_unit] = T(0);
            continue;
        }
#ifdef CELL_GRU
        const uint first_gates = 2u;  // the candidate's product needs the reset gates first
#else
        const uint first_gates = GATES;
#endif
        if (SPLIT > 1u) share_products(weights, lane, lanes, part, now, 0u, first_gates);
        if (part == 0u) for (uint unit = lane; unit < HIDDEN; unit += lanes) {
            float sums[GATES], x[GATES];
            sum_products(sums, weights, unit, now, 0u, first_gates);
            [[unroll]] for (uint g = 0u; g < GATES; ++g) x[g] = float(gates.v[x0 + g * HIDDEN + unit]);
            float old = hidden[now * HIDDEN + unit];
#ifdef CELL_GRU
            extra[unit] = act_f(clipped(x[0] + sums[0]));
            extra[HIDDEN + unit] = act_f(clipped(x[1] + sums[1])) * old;
#else
            float next;
#if defined(CELL_RNN)
            next = act_f(clipped(x[0] + sums[0]));
#elif defined(CELL_GRU_LINEAR)
            float update = act_f(clipped(x[0] + sums[0])), reset = act_f(clipped(x[1] + sums[1]));
            if (HAS_BIAS != 0u) sums[2] += float(bias.v[unit]);
            next = (1.0 - update) * act_g(clipped(x[2] + reset * sums[2])) + update * old;
#else
            // gates in ONNX's order: input, output, forget, cell; peepholes: input, output, forget
            float cell = extra[unit];
            float p[3] = float[3](0.0, 0.0, 0.0);
            if (HAS_PEEPHOLES != 0u)
                [[unroll]] for (uint g = 0u; g < 3u; ++g) p[g] = float(peep.v[g * HIDDEN + unit]);
            float take = act_f(clipped(x[0] + sums[0] + p[0] * cell));
            float keep = INPUT_FORGET != 0u ? 1.0 - take : act_f(clipped(x[2] + sums[2] + p[2] * cell));
            cell = keep * cell + take * act_g(clipped(x[3] + sums[3]));
            extra[unit] = cell;
            next = act_f(clipped(x[1] + sums[1] + p[1] * cell)) * act_h(cell);
#endif
            hidden[(1u - now) * HIDDEN + unit] = next;
            y.v[y0 + unit * args.y_unit] = T(next);
#endif
        }
        barrier();
#ifdef CELL_GRU
        if (SPLIT > 1u) share_products(weights, lane, lanes, part, 2u, 2u, 1u);
        if (part == 0u) for (uint unit = lane; unit < HIDDEN; unit += lanes) {
            float sums[GATES];
            sum_products(sums, weights, unit, 2u, 2u, 1u);
            float x = float(gates.v[x0 + 2u * HIDDEN + unit]), update = extra[unit];
            float next = (1.0 - update) * act_g(clipped(x + sums[2])) + update * hidden[now * HIDDEN + unit];
            hidden[(1u - now) * HIDDEN + unit] = next;
            y.v[y0 + unit * args.y_unit] = T(next);
        }
        barrier();
#endif
        now = 1u - now;
    }
    for (uint unit = gl_LocalInvocationID.x; unit < HIDDEN; unit += gl_WorkGroupSize.x) {
        Elements(operand(args.h1, 8)).v[batch * HIDDEN + unit] = T(hidden[now * HIDDEN + unit]);
#ifdef CELL_LSTM
        Elements(operand(args.c1, 9)).v[batch * HIDDEN + unit] = T(extra[unit]);
#endif
    }
}
