// Element types that C++ lacks, under the names that ONNX Runtime's tests use: 16-bit and 8-bit floats, 4-bit and 2-bit
// integers in packs. The arithmetic is that of float, rounded back.
#pragma once
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace onnxruntime {

struct HalfFormat {
  static uint16_t encode(float f) {
    _Float16 h = static_cast<_Float16>(f);
    uint16_t bits;
    std::memcpy(&bits, &h, 2);
    return bits;
  }
  static float decode(uint16_t bits) {
    _Float16 h;
    std::memcpy(&h, &bits, 2);
    return static_cast<float>(h);
  }
  static constexpr uint16_t kOne = 0x3C00, kMax = 0x7BFF, kInf = 0x7C00, kNaN = 0x7E00, kEps = 0x1400, kLeast = 0x0400;
};

struct BrainFormat {
  static uint16_t encode(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if (std::isnan(f)) return 0x7FC1;
    return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
  static float decode(uint16_t half) {
    uint32_t bits = static_cast<uint32_t>(half) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
  static constexpr uint16_t kOne = 0x3F80, kMax = 0x7F7F, kInf = 0x7F80, kNaN = 0x7FC1, kEps = 0x3C00, kLeast = 0x0080;
};

template <class Format>
struct Float16Base {
  uint16_t val{0};
  struct FromBitsT {};
  static constexpr FromBitsT FromBits() { return {}; }
  static constexpr Float16Base FromBits(uint16_t bits) { return Float16Base(bits, FromBitsT{}); }
  Float16Base() = default;
  constexpr Float16Base(uint16_t bits, FromBitsT) : val(bits) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  explicit Float16Base(T f) : val(Format::encode(static_cast<float>(f))) {}
  float ToFloat() const { return Format::decode(val); }
  operator float() const { return ToFloat(); }
  bool IsNaN() const { return std::isnan(ToFloat()); }
  bool IsNegative() const { return (val & 0x8000) != 0; }
  bool IsInfinity() const { return std::isinf(ToFloat()); }
  Float16Base Negate() const { return FromBits(IsNaN() ? val : static_cast<uint16_t>(val ^ 0x8000)); }
  Float16Base Abs() const { return FromBits(static_cast<uint16_t>(val & 0x7FFF)); }
  Float16Base operator-() const { return Negate(); }
  Float16Base& operator+=(Float16Base o) { return *this = Float16Base(ToFloat() + o.ToFloat()); }
  Float16Base& operator-=(Float16Base o) { return *this = Float16Base(ToFloat() - o.ToFloat()); }
  Float16Base& operator*=(Float16Base o) { return *this = Float16Base(ToFloat() * o.ToFloat()); }
  Float16Base& operator/=(Float16Base o) { return *this = Float16Base(ToFloat() / o.ToFloat()); }
  bool operator==(const Float16Base& o) const { return ToFloat() == o.ToFloat(); }
  bool operator!=(const Float16Base& o) const { return !(*this == o); }
  bool operator<(const Float16Base& o) const { return ToFloat() < o.ToFloat(); }
  static const Float16Base NaN, NegativeNaN, Infinity, NegativeInfinity, MaxValue, MinValue, Epsilon, One, MinusOne, Zero;
};
template <class F> const Float16Base<F> Float16Base<F>::NaN = FromBits(F::kNaN);
template <class F> const Float16Base<F> Float16Base<F>::NegativeNaN = FromBits(F::kNaN | 0x8000);
template <class F> const Float16Base<F> Float16Base<F>::Infinity = FromBits(F::kInf);
template <class F> const Float16Base<F> Float16Base<F>::NegativeInfinity = FromBits(F::kInf | 0x8000);
template <class F> const Float16Base<F> Float16Base<F>::MaxValue = FromBits(F::kMax);
template <class F> const Float16Base<F> Float16Base<F>::MinValue = FromBits(F::kMax | 0x8000);
template <class F> const Float16Base<F> Float16Base<F>::Epsilon = FromBits(F::kEps);
template <class F> const Float16Base<F> Float16Base<F>::One = FromBits(F::kOne);
template <class F> const Float16Base<F> Float16Base<F>::MinusOne = FromBits(F::kOne | 0x8000);
template <class F> const Float16Base<F> Float16Base<F>::Zero = FromBits(0);
using MLFloat16 = Float16Base<HalfFormat>;
using BFloat16 = Float16Base<BrainFormat>;
inline MLFloat16 operator""_fp16(unsigned long long v) { return MLFloat16(static_cast<float>(v)); }
inline MLFloat16 operator""_fp16(long double v) { return MLFloat16(static_cast<float>(v)); }
inline BFloat16 operator""_bfp16(unsigned long long v) { return BFloat16(static_cast<float>(v)); }
inline BFloat16 operator""_bfp16(long double v) { return BFloat16(static_cast<float>(v)); }

// A float of few bits: EXP exponent bits, MAN mantissa bits, bias, and how it writes NaN and infinity.
enum class Special { ieee, fn, fnuz };
template <int EXP, int MAN, int BIAS, Special KIND>
struct SmallFloat {
  uint8_t val{0};
  struct FromBitsT {};
  static constexpr FromBitsT FromBits() { return {}; }
  SmallFloat() = default;
  constexpr SmallFloat(uint8_t bits, FromBitsT) : val(bits) {}
  explicit SmallFloat(float f, bool saturate = true) : val(encode(f, saturate)) {}
  float ToFloat() const { return decode(val); }
  operator float() const { return ToFloat(); }
  bool operator==(const SmallFloat& o) const { return val == o.val; }
  static float decode(uint8_t bits) {
    const int exponent = (bits >> MAN) & ((1 << EXP) - 1), mantissa = bits & ((1 << MAN) - 1);
    const float sign = (bits >> (EXP + MAN)) & 1 ? -1.f : 1.f;
    const bool top = exponent == (1 << EXP) - 1;
    if (KIND == Special::fnuz && bits == 0x80) return std::numeric_limits<float>::quiet_NaN();
    if (KIND == Special::fn && top && mantissa == (1 << MAN) - 1) return std::numeric_limits<float>::quiet_NaN();
    if (KIND == Special::ieee && top)
      return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), 1 - BIAS - MAN);
    return sign * std::ldexp(static_cast<float>(mantissa + (1 << MAN)), exponent - BIAS - MAN);
  }
  static uint8_t encode(float f, bool saturate) {
    const uint8_t nan = KIND == Special::fnuz ? 0x80 : 0x7F;
    if (std::isnan(f)) return nan;
    uint8_t best = 0, largest = 0;
    for (int b = 0; b < 128; ++b) {  // the positive ones, in ascending order
      const float v = decode(static_cast<uint8_t>(b));
      if (!std::isfinite(v)) continue;
      largest = static_cast<uint8_t>(b);
      const double d = std::fabs(std::fabs(static_cast<double>(f)) - v);
      const double least = std::fabs(std::fabs(static_cast<double>(f)) - decode(best));
      if (d < least || (d == least && b % 2 == 0)) best = static_cast<uint8_t>(b);
    }
    const double limit = decode(largest), step = limit - decode(largest - 1);
    if (std::fabs(f) >= limit + step / 2 || std::isinf(f)) {
      if (saturate) best = largest;
      else best = KIND == Special::ieee ? (((1 << EXP) - 1) << MAN) : nan;
      if (best == nan && KIND == Special::fnuz) return nan;
    }
    if (KIND == Special::fnuz && best == 0) return 0;
    return static_cast<uint8_t>(best | (std::signbit(f) ? 0x80 : 0));
  }
};
using Float8E4M3FN = SmallFloat<4, 3, 7, Special::fn>;
using Float8E4M3FNUZ = SmallFloat<4, 3, 8, Special::fnuz>;
using Float8E5M2 = SmallFloat<5, 2, 15, Special::ieee>;
using Float8E5M2FNUZ = SmallFloat<5, 2, 16, Special::fnuz>;

// Integers of BITS bits, the first in the lowest bits of the byte.
template <int BITS, bool SIGNED>
struct PackedInts {
  using UnpackedType = std::conditional_t<SIGNED, int8_t, uint8_t>;
  static constexpr int kCount = 8 / BITS;
  static constexpr UnpackedType min_val = SIGNED ? -(1 << (BITS - 1)) : 0;
  static constexpr UnpackedType max_val = SIGNED ? (1 << (BITS - 1)) - 1 : (1 << BITS) - 1;
  std::byte bits_{};
  PackedInts() = default;
  explicit PackedInts(std::byte bits) : bits_(bits) {}
  PackedInts(UnpackedType a, UnpackedType b) { SetElem(0, a), SetElem(1, b); }
  PackedInts(UnpackedType a, UnpackedType b, UnpackedType c, UnpackedType d) {
    SetElem(0, a), SetElem(1, b), SetElem(2, c), SetElem(3, d);
  }
  UnpackedType GetElem(size_t i) const {
    const int raw = (static_cast<int>(bits_) >> (BITS * i)) & ((1 << BITS) - 1);
    return static_cast<UnpackedType>(SIGNED && raw >> (BITS - 1) ? raw - (1 << BITS) : raw);
  }
  void SetElem(size_t i, UnpackedType v) {
    const int mask = ((1 << BITS) - 1) << (BITS * i);
    bits_ = static_cast<std::byte>((static_cast<int>(bits_) & ~mask) | ((v << (BITS * i)) & mask));
  }
  std::byte ToBits() const { return bits_; }
  bool operator==(const PackedInts& o) const { return bits_ == o.bits_; }
  static size_t Packs(size_t n) { return (n + kCount - 1) / kCount; }
  static size_t CalcNumInt4Pairs(size_t n) { return Packs(n); }
  static size_t CalcNumInt2Quads(size_t n) { return Packs(n); }
  static std::pair<size_t, size_t> GetTensorElemIndices(size_t i) { return {i / kCount, i % kCount}; }
  static bool Pack(std::span<PackedInts> to, std::span<const UnpackedType> from) {
    for (size_t i = 0; i < from.size(); ++i) to[i / kCount].SetElem(i % kCount, from[i]);
    return true;
  }
  static bool Unpack(std::span<UnpackedType> to, std::span<const PackedInts> from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] = from[i / kCount].GetElem(i % kCount);
    return true;
  }
};
template <bool SIGNED> using Int4x2Base = PackedInts<4, SIGNED>;
template <bool SIGNED> using Int2x4Base = PackedInts<2, SIGNED>;
using Int4x2 = PackedInts<4, true>;
using UInt4x2 = PackedInts<4, false>;
using Int2x4 = PackedInts<2, true>;
using UInt2x4 = PackedInts<2, false>;

template <class T> inline constexpr int elements_in = 1;
template <int BITS, bool S> inline constexpr int elements_in<PackedInts<BITS, S>> = 8 / BITS;

// ONNX's number of an element type.
template <class T> struct ElemType;
#define VKEP_ELEM(T, N) template <> struct ElemType<T> { static constexpr int value = N; };
VKEP_ELEM(float, 1) VKEP_ELEM(uint8_t, 2) VKEP_ELEM(int8_t, 3) VKEP_ELEM(uint16_t, 4) VKEP_ELEM(int16_t, 5)
VKEP_ELEM(int32_t, 6) VKEP_ELEM(int64_t, 7) VKEP_ELEM(std::string, 8) VKEP_ELEM(bool, 9) VKEP_ELEM(MLFloat16, 10)
VKEP_ELEM(double, 11) VKEP_ELEM(uint32_t, 12) VKEP_ELEM(uint64_t, 13) VKEP_ELEM(BFloat16, 16)
VKEP_ELEM(Float8E4M3FN, 17) VKEP_ELEM(Float8E4M3FNUZ, 18) VKEP_ELEM(Float8E5M2, 19) VKEP_ELEM(Float8E5M2FNUZ, 20)
VKEP_ELEM(UInt4x2, 21) VKEP_ELEM(Int4x2, 22) VKEP_ELEM(UInt2x4, 25) VKEP_ELEM(Int2x4, 26)
VKEP_ELEM(long long, 7) VKEP_ELEM(unsigned long long, 13)
#undef VKEP_ELEM
}  // namespace onnxruntime

template <class F>
struct std::numeric_limits<onnxruntime::Float16Base<F>> {
  using T = onnxruntime::Float16Base<F>;
  static constexpr bool is_specialized = true, is_signed = true, has_infinity = true, has_quiet_NaN = true;
  static constexpr T lowest() { return T::FromBits(F::kMax | 0x8000); }
  static constexpr T max() { return T::FromBits(F::kMax); }
  static constexpr T min() { return T::FromBits(F::kLeast); }
  static constexpr T epsilon() { return T::FromBits(F::kEps); }
  static constexpr T infinity() { return T::FromBits(F::kInf); }
  static constexpr T quiet_NaN() { return T::FromBits(F::kNaN); }
};
