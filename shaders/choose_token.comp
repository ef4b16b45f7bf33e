// The next token of a sequence by its settings: a workgroup a sequence. Settings are temperature, top_k, top_p, min_p, repetition
// penalty and a random number of [0, 1) (`vkep.generation.sampling.Sampling`); temperature 0 takes the greatest logit.
//
// Nothing is sorted. A logit's place below the greatest one, in steps of 2^-15 of the logits over the temperature, is its key:
// 2^20 keys cover the 32 below which nothing is chosen. Two counts of keys, by their upper and lower 10 bits, find the key where
// top-k ends, and the same with sums of probabilities that where top-p ends.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 settings; uvec2 seen; uvec2 never; uvec2 tokens; uvec2 chosen; uvec2 logits; \
    uint vocabulary; uint x_row; uint seen_count; uint never_count; float parts; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint CHANGED = 0;  // 1: seen or never change logits, which a buffer of their own then holds
const uint BINS = 1024;
const uint KEYS = BINS * BINS;
const float RANGE = 32.0;
const uint NONE = 0xffffffffu;

TENSOR(T, Elements)
TENSOR(float, Floats)
TENSOR(int, Ints)
TENSOR(int64_t, Longs)

shared uint counts[BINS];   // of keys by their upper bits
shared uint offsets[BINS];  // sums of their lower bits
shared uint fine[BINS];     // counts of keys by their lower bits, of one value of the upper ones
shared float sums[gl_WorkGroupSize.x];
shared uint places[gl_WorkGroupSize.x];
shared uint found;
shared float before;

uint id, row;
float top, heat;

float logit(uint i) {
    if (CHANGED == 1) return Floats(operand(args.logits, 6)).v[row * args.vocabulary + i];
    return float(Elements(operand(args.x, 0)).v[row * args.x_row + i]);
}
float setting(uint i) { return Floats(operand(args.settings, 1)).v[row * 6 + i]; }
float z_of(uint i) { return (logit(i) - top) / heat; }
// NONE where it is out of range, or NaN.
uint key_of(float z) { return z >= -RANGE ? min(uint(-z * (float(KEYS) / RANGE)), KEYS - 1) : NONE; }

// The probability, relative to the greatest one's, of keys by their upper bits: by the mean and the spread of their lower bits.
float coarse_share(uint bin) {
    float count = float(counts[bin]), sum = float(offsets[bin]) * args.parts * (RANGE / float(BINS));
    return count == 0.0 ? 0.0 : exp(-float(bin) * (RANGE / float(BINS))) * (count - sum + 0.5 * sum * sum / count);
}
float fine_share(uint bin, uint low) {
    return float(fine[low]) * exp(-(float(bin * BINS + low) + 0.5) * (RANGE / float(KEYS)));
}

// What a bin adds: its count, or the probability of its keys. `upper` NONE: bins of upper bits, else those below it.
float added(uint bin, uint upper, bool by_share) {
    if (upper == NONE) return by_share ? coarse_share(bin) : float(counts[bin]);
    return by_share ? fine_share(upper, bin) : float(fine[bin]);
}

// The first of `count` bins up to which they add up to `wanted` or more, beginning with `start`; `count` where they do not.
// `before` becomes what those before it add up to. All lanes call it.
uint bin_of(float wanted, float start, uint upper, uint count, bool by_share) {
    const uint GROUPS = 32, EACH = BINS / GROUPS;
    barrier();
    for (uint g = id; g < GROUPS; g += gl_WorkGroupSize.x) {
        float total = 0.0;
        [[dont_unroll]] for (uint i = 0; i < EACH; i++) total += g * EACH + i < count ? added(g * EACH + i, upper, by_share) : 0.0;
        sums[g] = total;
    }
    barrier();
    if (id == 0) {
        float total = start;
        uint g = 0;
        while (g < GROUPS && total + sums[g] < wanted) total += sums[g++];
        uint bin = min(g * EACH, count);
        while (bin < count) {
            float more = added(bin, upper, by_share);
            if (total + more >= wanted) break;
            total += more;
            bin++;
        }
        found = bin;
        before = total;
    }
    barrier();
    return found;
}

// Counts the keys with these upper bits by their lower ones.
void count_fine(uint upper) {
    barrier();
    for (uint b = id; b < BINS; b += gl_WorkGroupSize.x) fine[b] = 0;
    barrier();
    for (uint i = id; i < args.vocabulary; i += gl_WorkGroupSize.x) {
        uint key = key_of(z_of(i));
        if (key != NONE && key / BINS == upper) atomicAdd(fine[key % BINS], 1);
    }
    barrier();
}

void main() {
    id = gl_LocalInvocationIndex;
    row = flat_group();
    if (CHANGED == 1) {
        Elements x = Elements(operand(args.x, 0));
        Floats logits = Floats(operand(args.logits, 6));
        uint at = row * args.vocabulary;
        for (uint i = id; i < args.vocabulary; i += gl_WorkGroupSize.x) logits.v[at + i] = float(x.v[row * args.x_row + i]);
        memoryBarrierBuffer();
        barrier();
        float penalty = setting(4);
        for (uint s = id; s < args.seen_count; s += gl_WorkGroupSize.x) {  // the same token again gives the same
            int64_t token = Longs(operand(args.seen, 2)).v[row * args.seen_count + s];
            if (token < 0 || token >= int64_t(args.vocabulary)) continue;
            float old = float(x.v[row * args.x_row + uint(token)]);
            logits.v[at + uint(token)] = old < 0.0 ? old * penalty : old / penalty;
        }
        memoryBarrierBuffer();
        barrier();
        for (uint s = id; s < args.never_count; s += gl_WorkGroupSize.x) {
            int64_t token = Longs(operand(args.never, 3)).v[s];
            if (token >= 0 && token < int64_t(args.vocabulary)) logits.v[at + uint(token)] = uintBitsToFloat(0xff800000u);
        }
        memoryBarrierBuffer();
        barrier();
    }

    // The greatest logit, the first of equals.
    float best = uintBitsToFloat(0xff800000u);
    uint place = 0;
    for (uint i = id; i < args.vocabulary; i += gl_WorkGroupSize.x) {
        float v = logit(i);
        if (v > best) {
            best = v;
            place = i;
        }
    }
    sums[id] = best;
    places[id] = place;
    barrier();
    [[dont_unroll]] for (uint half_run = gl_WorkGroupSize.x / 2; half_run > 0; half_run /= 2) {
        if (id < half_run) {
            float other = sums[id + half_run];
            if (other > sums[id] || (other == sums[id] && places[id + half_run] < places[id])) {
                sums[id] = other;
                places[id] = places[id + half_run];
            }
        }
        barrier();
    }
    top = sums[0];
    uint token = places[0];
    heat = setting(0);
    bool sampled = heat > 0.0 && !isinf(top);
    if (sampled) {
        uint last = KEYS - 1;  // the last key that may be chosen
        uint top_k = uint(clamp(setting(1), 0.0, 4e9));
        float top_p = setting(2), lowest = max(log(setting(3)), -RANGE);
        if (top_k > 0 || top_p < 1.0) {
            barrier();
            for (uint b = id; b < BINS; b += gl_WorkGroupSize.x) counts[b] = offsets[b] = 0;
            barrier();
            for (uint i = id; i < args.vocabulary; i += gl_WorkGroupSize.x) {
                uint key = key_of(z_of(i));
                if (key == NONE) continue;
                atomicAdd(counts[key / BINS], 1);
                atomicAdd(offsets[key / BINS], uint((float(key % BINS) + 0.5) / (float(BINS) * args.parts)));
            }
            // Bins that top-k leaves: `end` whole ones by upper bits, then `low` of those of `upper`. One loop, so that compilers
            // have one copy of the search.
            uint end = BINS, upper = NONE, low = BINS, counted = NONE;
            float less = 0.0, total = 0.0;
            [[dont_unroll]] for (uint phase = 0; phase < 6; phase++) {
                bool by_share = phase >= 2, lower = phase % 2 == 1;
                if ((by_share ? top_p >= 1.0 : top_k == 0) || (lower && upper == NONE)) continue;
                if (lower && upper != counted) {
                    count_fine(upper);
                    counted = upper;
                }
                float wanted = !by_share ? float(top_k) : phase < 4 ? uintBitsToFloat(0x7f800000u) : top_p * total;
                uint bin = bin_of(wanted, lower ? less : 0.0, lower ? upper : NONE, lower ? low : end, by_share);
                if (phase == 0 && bin < BINS) upper = bin;
                if (phase == 1) {
                    low = min(bin, BINS - 1) + 1;
                    end = upper;
                    last = upper * BINS + low - 1;
                }
                if (phase == 2 || phase == 3) total = before;
                if (phase == 4 && bin < end) {
                    upper = bin;
                    low = BINS;
                }
                if (phase == 5) last = min(last, upper * BINS + min(bin, low - 1));
                less = before;
            }
        }

        // Each lane adds up the probabilities of a run of tokens, then the lane whose run passes the random number finds the token.
        uint each = (args.vocabulary + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x, first = min(id * each, args.vocabulary);
        uint stop = min(first + each, args.vocabulary);
        float own = 0.0;
        for (uint i = first; i < stop; i++) {
            float z = z_of(i);
            uint key = key_of(z);
            if (key <= last && (z >= lowest || z == 0.0)) own += exp(z);
        }
        barrier();
        sums[id] = own;
        barrier();
        if (id == 0) {
            float total = 0.0;
            [[dont_unroll]] for (uint i = 0; i < gl_WorkGroupSize.x; i++) total += sums[i];
            float wanted = setting(5) * total, passed = 0.0;
            found = NONE;
            [[dont_unroll]] for (uint i = 0; i < gl_WorkGroupSize.x && found == NONE; i++) {
                if (passed + sums[i] > wanted) found = i;
                else passed += sums[i];
            }
            before = wanted - passed;  // what the found lane's own sum must pass
        }
        barrier();
        if (id == found) {
            float passed = 0.0;
            for (uint i = first; i < stop && passed <= before; i++) {
                float z = z_of(i);
                uint key = key_of(z);
                if (key <= last && (z >= lowest || z == 0.0)) {
                    passed += exp(z);
                    token = i;
                }
            }
        }
    }
    if (sampled && found != NONE ? id == found : id == 0) {
        Longs(operand(args.tokens, 4)).v[row] = int64_t(token);
        Ints(operand(args.chosen, 5)).v[row] = int(token);
    }
}
