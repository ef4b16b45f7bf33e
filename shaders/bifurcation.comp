// com.microsoft BifurcationDetector, by one lane. `tokens` is `current` followed by the items of `predicted` up to and
// including the first that differs from the source (from `start` on). `found` is [number of tokens, position in the source
// behind the only occurrence of an n-gram that ends `tokens`, or -1].
#version 460
#extension GL_GOOGLE_include_directive : require
#include "vkep.glsl"
#define ARGS_BODY { uvec2 source; uvec2 current; uvec2 start; uvec2 predicted; WRITTEN tokens; WRITTEN found; WRITTEN fault; \
    uint sources; uint currents; uint predictions; uint shortest; uint longest; uint fault_code; }
#include "args.glsl"
#include "fault.glsl"
#include "workgroup.glsl"

TENSOR(int64_t, Longs)

// The first position in the source, from `from` on, of the last `size` tokens; `sources` if they do not occur.
uint place_of(Longs source, Longs tokens, uint count, uint size, uint from) {
    for (uint at = from; at + size <= args.sources; ++at) {
        bool same = true;
        for (uint k = 0u; same && k < size; ++k) same = source.v[at + k] == tokens.v[count - size + k];
        if (same) return at;
    }
    return args.sources;
}

void main() {
    if (flat_lane() != 0u) return;
    Longs source = Longs(operand(args.source, 0)), current = Longs(operand(args.current, 1));
    Longs predicted = Longs(operand(args.predicted, 3)), tokens = Longs(operand(args.tokens, 4));
    uint count = args.currents;
    for (uint k = 0u; k < args.currents; ++k) tokens.v[k] = current.v[k];
    if (args.predictions > 0u) {
        int64_t start = Longs(operand(args.start, 2)).v[0];
        if (start < 0 || start > int64_t(args.sources) || int64_t(args.predictions) != int64_t(args.sources) + 1 - start)
            note_fault(operand(args.fault, 6), args.fault_code);
        uint first = uint(clamp(int(start), 0, int(args.sources))), agreed = 0u;
        uint most = min(args.sources - first, args.predictions - 1u);
        while (agreed < most && predicted.v[agreed] == source.v[first + agreed]) ++agreed;
        for (uint k = 0u; k <= agreed; ++k) tokens.v[count + k] = predicted.v[k];
        count += agreed + 1u;
    }
    int suffix = -1;
    for (uint size = args.shortest; size <= min(args.longest, count); ++size) {
        uint at = place_of(source, tokens, count, size, 0u);
        if (at == args.sources) break;
        suffix = int(at + size);
        if (at + size >= args.sources) break;
        if (place_of(source, tokens, count, size, at + 1u) != args.sources) suffix = -1;
    }
    Longs found = Longs(operand(args.found, 5));
    found.v[0] = int64_t(count);
    found.v[1] = int64_t(suffix);
}
