// Maps elements to unsigned keys of the same order, so that selection and sorting compare integers only. -0 equals +0.
// `nan_key` decides where NaN goes. Included after elements.glsl.
//
// A candidate is an element's key and where it is; the one with the greater key goes first, of equal keys the one with the lower
// index. NONE goes last.
// Defines: KEY_FLOAT, KEY_DOUBLE, KEY_SIGNED or KEY_UNSIGNED; KEY_T (uint or uint64_t); KEY_SIGN_BIT.
#ifndef VKEP_SORTKEY_GLSL
#define VKEP_SORTKEY_GLSL

// descending != 0: the greatest element has the greatest key; else the smallest has. nan_key is the key of a NaN.
KEY_T sort_key(COMPUTE_T v, bool descending, KEY_T nan_key) {
#if defined(KEY_FLOAT)
    if (isnan(v)) return nan_key;
    uint bits = v == 0.0 ? 0u : floatBitsToUint(v);
    uint key = (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
#elif defined(KEY_DOUBLE)
    if (isnan(v)) return nan_key;
    KEY_T bits = v == 0.0lf ? KEY_T(0) : KEY_T(doubleBitsToUint64(v));
    KEY_T key = (bits & KEY_SIGN_BIT) != KEY_T(0) ? ~bits : bits | KEY_SIGN_BIT;
#elif defined(KEY_SIGNED)
    KEY_T key = KEY_T(v) ^ KEY_SIGN_BIT;
#else
    KEY_T key = KEY_T(v);
#endif
    return descending ? key : ~key;
}

struct Candidate { KEY_T key; uint index; };
const Candidate NONE = Candidate(KEY_T(0), 0xffffffffu);
layout(buffer_reference, scalar) buffer Candidates { Candidate v[]; };

bool before(Candidate a, Candidate b) { return a.key > b.key || (a.key == b.key && a.index < b.index); }
#endif
