// Chooses the next token of each sequence by its settings: temperature, top_k, top_p, min_p, repetition penalty and a random
// number of [0, 1) (`vkep.generation.sampling.Sampling`); temperature 0 takes the greatest logit. Six dispatches (PASS). All
// but the last have several workgroups per sequence, each for a block of tokens. Results are passed on in `state`.
//
// Nothing is sorted. The key of a logit is its distance below the greatest one, after division by the temperature, in steps of
// 2^-15. 2^20 keys cover a distance of 32, beyond which no token is chosen. Counting keys by their upper and then by their
// lower 10 bits gives the key where top-k ends. Sums of probabilities instead of counts give the key where top-p ends.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 x; uvec2 settings; uvec2 seen; uvec2 never; WRITTEN tokens; WRITTEN chosen; WRITTEN logits; WRITTEN state; \
    WRITTEN shares; \
    uint rows; uint vocabulary; uint x_row; uint seen_count; uint never_count; uint blocks; uint each; float parts; }
#include "args.glsl"
#include "workgroup.glsl"

layout(constant_id = 4) const uint CHANGED = 0;  // 1: the lists `seen` or `never` change logits, which are then copied to a buffer
layout(constant_id = 5) const uint PASS = 0;
layout(constant_id = 6) const uint SHARES = 0;  // 1: `shares` has the probability of each token relative to the greatest one's
const uint GREATEST = 0, COARSE = 1, TOP_K = 2, TOP_P = 3, SUM = 4, PICK = 5;  // passes
const uint BINS = 1024;
const uint KEYS = BINS * BINS;
const float RANGE = 32.0;
const uint NONE = 0xffffffffu;

// The state of a sequence: counts of keys by their upper bits; sums of their lower bits; counts by their lower bits of the keys
// in the bin where top-k ends, and in the bin where top-p ends; single numbers; the greatest logit, its index and the sum of
// each block.
const uint COUNTS = 0, OFFSETS = BINS, FINE_K = 2 * BINS, FINE_P = 3 * BINS, NUMBERS = 4 * BINS;
const uint TOP = NUMBERS, PLACE = NUMBERS + 1;
const uint LAST = NUMBERS + 2, CHOSEN_LAST = NUMBERS + 9;            // the last key that top-k keeps, and that top-p keeps
const uint UPPER_K = NUMBERS + 3, LESS_K = NUMBERS + 4;              // the bin where top-k ends, and the sum of the bins before it
const uint UPPER_P = NUMBERS + 5, LESS_P = NUMBERS + 6, LOW_P = NUMBERS + 7, WANTED_P = NUMBERS + 8;
const uint BLOCKS = NUMBERS + 16;

TENSOR(T, Elements)
TENSOR(float, Floats)
TENSOR(uint, Uints)
TENSOR(int, Ints)
TENSOR(int64_t, Longs)

shared uint counts[BINS];
shared uint offsets[BINS];
shared float sums[gl_WorkGroupSize.x];
shared uint places[gl_WorkGroupSize.x];
shared uint found;
shared float before;

uint id, row, block, first, stop;  // the block's tokens are first to stop - 1
float top, heat, lowest;

uint at(uint place) { return row * (BLOCKS + 3 * args.blocks) + place; }
uint state(uint place) { return Uints(operand(args.state, 7)).v[at(place)]; }
float state_float(uint place) { return uintBitsToFloat(state(place)); }
void keep(uint place, uint value) { Uints(operand(args.state, 7)).v[at(place)] = value; }
void keep(uint place, float value) { keep(place, floatBitsToUint(value)); }
float setting(uint i) { return Floats(operand(args.settings, 1)).v[row * 6 + i]; }
float logit(uint i) {
    if (CHANGED == 1) return Floats(operand(args.logits, 6)).v[row * args.vocabulary + i];
    return float(Elements(operand(args.x, 0)).v[row * args.x_row + i]);
}
float z_of(uint i) { return (logit(i) - top) / heat; }
// The key of a logit; NONE beyond the last key and for NaN.
uint key_of(float z) { return z >= -RANGE ? min(uint(-z * (float(KEYS) / RANGE)), KEYS - 1) : NONE; }
// The probability of a token relative to the greatest one's; 0 where it is not chosen.
float share(uint i, uint last) {
    float z = z_of(i);
    uint key = key_of(z);
    return key <= last && (z >= lowest || z == 0.0) ? exp(z) : 0.0;
}

// The contribution of a bin: its count, or the probability of its keys relative to the greatest one's. That of a bin of upper
// bits (`fine` NONE) is computed from the mean and the spread of the lower bits.
float added(uint bin, uint upper, uint fine, bool by_share) {
    float count = float(state((fine == NONE ? COUNTS : fine) + bin));
    if (!by_share || count == 0.0) return count;
    if (fine != NONE) return count * exp(-(float(upper * BINS + bin) + 0.5) * (RANGE / float(KEYS)));
    float sum = float(state(OFFSETS + bin)) * args.parts * (RANGE / float(BINS));
    return exp(-float(bin) * (RANGE / float(BINS))) * (count - sum + 0.5 * sum * sum / count);
}

// Sets `sums` to the running sums of the lanes' values, always added in the same order. All lanes must call it.
void sum_up(float value) {
    barrier();
    sums[id] = value;
    barrier();
    [[dont_unroll]] for (uint apart = 1; apart < gl_WorkGroupSize.x; apart *= 2) {
        float other = id >= apart ? sums[id - apart] : 0.0;
        barrier();
        sums[id] += other;
        barrier();
    }
}

// The lowest of the lanes' values of `number`. All lanes must call it.
uint lowest_of(uint number) {
    barrier();
    if (id == 0) found = NONE;
    barrier();
    atomicMin(found, number);
    barrier();
    uint least = found;
    barrier();
    return least;
}

// The first of `count` bins whose running sum, which begins with `start`, is `wanted` or more; `count` if there is none. Sets
// `before` to the running sum before that bin. All lanes must call it.
uint bin_of(float wanted, float start, uint upper, uint fine, uint count, bool by_share) {
    uint each = max(BINS / gl_WorkGroupSize.x, 1), bin = min(id * each, count), end = min(bin + each, count);
    float own = 0.0;
    [[dont_unroll]] for (uint b = bin; b < end; b++) own += added(b, upper, fine, by_share);
    sum_up(own);
    uint lane = lowest_of(start + sums[id] >= wanted ? id : NONE);
    if (lane == NONE ? id == gl_WorkGroupSize.x - 1 : id == lane) {
        float total = start + (lane == NONE ? sums[id] : id > 0 ? sums[id - 1] : 0.0);
        if (lane == NONE) bin = count;
        while (bin + 1 < end) {
            float more = added(bin, upper, fine, by_share);
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

// Counts the block's keys that have these upper bits by their lower bits.
void count_fine(uint upper, uint fine) {
    barrier();
    for (uint b = id; b < BINS; b += gl_WorkGroupSize.x) counts[b] = 0;
    barrier();
    for (uint i = first + id; i < stop; i += gl_WorkGroupSize.x) {
        uint key = key_of(z_of(i));
        if (key != NONE && key / BINS == upper) atomicAdd(counts[key % BINS], 1);
    }
    barrier();
    for (uint b = id; b < BINS; b += gl_WorkGroupSize.x)
        if (counts[b] > 0) atomicAdd(Uints(operand(args.state, 7)).v[at(fine + b)], counts[b]);
}

// Sets `sums` and `places` of lane 0 to the greatest value and its first index.
void greatest(float best, uint place) {
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
}

// Writes the block's logits with the penalty, and minus infinity for tokens that are never chosen.
void change() {
    Elements x = Elements(operand(args.x, 0));
    Floats logits = Floats(operand(args.logits, 6));
    uint start = row * args.vocabulary;
    for (uint i = first + id; i < stop; i += gl_WorkGroupSize.x) logits.v[start + i] = float(x.v[row * args.x_row + i]);
    memoryBarrierBuffer();
    barrier();
    float penalty = setting(4);
    for (uint s = id; s < args.seen_count; s += gl_WorkGroupSize.x) {  // a repeated token gets the same value again
        int64_t token = Longs(operand(args.seen, 2)).v[row * args.seen_count + s];
        if (token < int64_t(first) || token >= int64_t(stop)) continue;
        float old = float(x.v[row * args.x_row + uint(token)]);
        logits.v[start + uint(token)] = old < 0.0 ? old * penalty : old / penalty;
    }
    memoryBarrierBuffer();
    barrier();
    for (uint s = id; s < args.never_count; s += gl_WorkGroupSize.x) {
        int64_t token = Longs(operand(args.never, 3)).v[s];
        if (token >= int64_t(first) && token < int64_t(stop)) logits.v[start + uint(token)] = uintBitsToFloat(0xff800000u);
    }
    memoryBarrierBuffer();
    barrier();
}

// Finds the greatest logit of the block, and sets the counts to 0.
void find_greatest() {
    for (uint b = block * gl_WorkGroupSize.x + id; b < NUMBERS; b += args.blocks * gl_WorkGroupSize.x) keep(b, 0u);
    if (CHANGED == 1) change();
    float best = uintBitsToFloat(0xff800000u);
    uint place = first;
    for (uint i = first + id; i < stop; i += gl_WorkGroupSize.x) {
        float v = logit(i);
        if (v > best) {
            best = v;
            place = i;
        }
    }
    greatest(best, place);
    if (id == 0) {
        keep(BLOCKS + block, sums[0]);
        keep(BLOCKS + args.blocks + block, places[0]);
    }
}

// The greatest logit of all blocks.
void join_greatest() {
    float best = uintBitsToFloat(0xff800000u);
    uint place = 0;
    for (uint b = id; b < args.blocks; b += gl_WorkGroupSize.x) {
        float other = state_float(BLOCKS + b);
        if (other > best || b == id) {
            best = other;
            place = state(BLOCKS + args.blocks + b);
        }
    }
    greatest(best, id < args.blocks ? place : NONE);
    top = sums[0];
    if (block == 0 && id == 0) {
        keep(TOP, top);
        keep(PLACE, places[0]);
        keep(LAST, KEYS - 1);
        keep(UPPER_K, NONE);
        keep(UPPER_P, NONE);
    }
}

void count_coarse() {
    barrier();
    for (uint b = id; b < BINS; b += gl_WorkGroupSize.x) counts[b] = offsets[b] = 0;
    barrier();
    for (uint i = first + id; i < stop; i += gl_WorkGroupSize.x) {
        uint key = key_of(z_of(i));
        if (key == NONE) continue;
        atomicAdd(counts[key / BINS], 1);
        atomicAdd(offsets[key / BINS], uint((float(key % BINS) + 0.5) / (float(BINS) * args.parts)));
    }
    barrier();
    Uints out_state = Uints(operand(args.state, 7));
    for (uint b = id; b < BINS; b += gl_WorkGroupSize.x) {
        if (counts[b] == 0) continue;
        atomicAdd(out_state.v[at(COUNTS + b)], counts[b]);
        atomicAdd(out_state.v[at(OFFSETS + b)], offsets[b]);
    }
}

void end_top_k(float top_k) {
    uint upper = bin_of(top_k, 0.0, NONE, NONE, BINS, false);
    if (upper == BINS) return;
    count_fine(upper, FINE_K);
    if (block == 0 && id == 0) {
        keep(UPPER_K, upper);
        keep(LESS_K, before);
    }
}

void end_top_p(float top_k, float top_p) {
    // Bins that top-k keeps: the first `end` bins of upper bits, then `low` bins of lower bits of `upper_k`.
    uint end = BINS, low = BINS, upper_k = state(UPPER_K), last = KEYS - 1, upper = NONE;
    float wanted = 0.0;
    if (upper_k != NONE) {
        low = min(bin_of(top_k, state_float(LESS_K), upper_k, FINE_K, BINS, false), BINS - 1) + 1;
        end = upper_k;
        last = upper_k * BINS + low - 1;
    }
    if (top_p < 1.0) {
        const float ALL = uintBitsToFloat(0x7f800000u);
        bin_of(ALL, 0.0, NONE, NONE, end, true);
        if (upper_k != NONE) bin_of(ALL, before, upper_k, FINE_K, low, true);
        wanted = top_p * before;
        upper = bin_of(wanted, 0.0, NONE, NONE, end, true);
        if (upper < end) {
            low = BINS;
            if (upper != upper_k) count_fine(upper, FINE_P);
        } else {
            upper = upper_k;
        }
    }
    if (block == 0 && id == 0) {
        keep(LAST, last);
        keep(UPPER_P, upper);
        keep(LESS_P, before);
        keep(LOW_P, low);
        keep(WANTED_P, wanted);
    }
}

// The sum of the probabilities of the block's tokens that may be chosen.
void sum_block() {
    uint upper = state(UPPER_P), last = state(LAST);
    if (upper != NONE) {
        uint low = state(LOW_P), fine = upper == state(UPPER_K) ? FINE_K : FINE_P;
        uint bin = bin_of(state_float(WANTED_P), state_float(LESS_P), upper, fine, low, true);
        last = min(last, upper * BINS + min(bin, low - 1));
    }
    float own = 0.0;
    for (uint i = first + id; i < stop; i += gl_WorkGroupSize.x) {
        float more = share(i, last);
        if (SHARES == 1) Floats(operand(args.shares, 8)).v[row * args.vocabulary + i] = more;
        own += more;
    }
    sum_up(own);
    if (id == gl_WorkGroupSize.x - 1) keep(BLOCKS + 2 * args.blocks + block, sums[id]);
    if (block == 0 && id == 0) keep(CHOSEN_LAST, last);
}

// The token where the sum of the probabilities passes the random number, in one lane; NONE in the others.
uint pick() {
    uint last = state(CHOSEN_LAST), token = state(PLACE);
    if (id == 0) {
        float total = 0.0;
        [[dont_unroll]] for (uint b = 0; b < args.blocks; b++) total += state_float(BLOCKS + 2 * args.blocks + b);
        float wanted = setting(5) * total, passed = 0.0;
        found = NONE;
        [[dont_unroll]] for (uint b = 0; b < args.blocks && found == NONE; b++) {
            float own = state_float(BLOCKS + 2 * args.blocks + b);
            if (passed + own > wanted) found = b;
            else passed += own;
        }
        before = wanted - passed;  // the value that the sum of the found block's tokens must exceed
    }
    barrier();
    if (found == NONE) return id == 0 ? token : NONE;
    first = found * args.each;
    stop = min(first + args.each, args.vocabulary);
    float wanted = before, own = 0.0;
    uint run = (args.each + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x, from = min(first + id * run, stop), to = min(from + run, stop);
    for (uint i = from; i < to; i++) own += share(i, last);
    sum_up(own);
    uint lane = lowest_of(sums[id] > wanted ? id : NONE);
    if (lane == NONE) lane = ~lowest_of(own > 0.0 ? ~id : NONE);  // rounding: none did, so the last lane with some
    if (id != lane) return NONE;
    float passed = id > 0 ? sums[id - 1] : 0.0;
    for (uint i = from; i < to && passed <= wanted; i++) {
        float more = share(i, last);
        passed += more;
        if (more > 0.0) token = i;
    }
    return token;
}

void main() {
    id = gl_LocalInvocationIndex;
    uint blocks = PASS == PICK ? 1 : args.blocks;
    row = flat_group() / blocks;
    block = flat_group() % blocks;
    if (row >= args.rows) return;
    first = min(block * args.each, args.vocabulary);
    stop = min(first + args.each, args.vocabulary);
    if (PASS == GREATEST) {
        find_greatest();
        return;
    }
    if (PASS == COARSE) join_greatest();
    else top = state_float(TOP);
    heat = setting(0);
    float top_k = min(setting(1), 4e9), top_p = setting(2);
    bool sampled = heat > 0.0 && !isinf(top), filtered = top_k >= 1.0 || top_p < 1.0;
    lowest = max(log(setting(3)), -RANGE);
    if (PASS == PICK) {
        uint token = sampled ? pick() : id == 0 ? state(PLACE) : NONE;
        if (token == NONE) return;
        Longs(operand(args.tokens, 4)).v[row] = int64_t(token);
        Ints(operand(args.chosen, 5)).v[row] = int(token);
        return;
    }
    if (!sampled) {
        if (PASS == SUM && SHARES == 1)
            for (uint i = first + id; i < stop; i += gl_WorkGroupSize.x)
                Floats(operand(args.shares, 8)).v[row * args.vocabulary + i] = i == state(PLACE) ? 1.0 : 0.0;
        return;
    }
    if (PASS == SUM) sum_block();
    if (!filtered) return;
    if (PASS == COARSE) count_coarse();
    if (PASS == TOP_K && top_k >= 1.0) end_top_k(floor(top_k));
    if (PASS == TOP_P) end_top_p(floor(top_k), top_p);
}
