// ONNX Runtime's test interface, by declaration only, for a program that writes down what its operator tests say: operator,
// attributes, inputs, expected outputs. No kernel is run here. What is not declared here does not compile, and the reader
// leaves out (and counts) the tests that need it.
#pragma once
#define ONNX_NAMESPACE onnx
#include <algorithm>
#include <array>
#include <cassert>
#include <cfloat>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include "scalars.h"
#include "testing.h"

#define ORT_THROW(...) throw std::runtime_error("thrown by the test")
#define ORT_ENFORCE(c, ...) do { if (!(c)) throw std::runtime_error("enforced: " #c); } while (false)
#define ORT_UNUSED_PARAMETER(x) (void)(x)
#define ORT_NOT_IMPLEMENTED(...) ORT_THROW()
#define ORT_THROW_IF_ERROR(...) (void)(__VA_ARGS__)
#define ORT_TRY try
#define ORT_CATCH(x) catch (x)
#define ORT_TSTR(x) x
#define ORT_DISALLOW_COPY_ASSIGNMENT_AND_MOVE(x) static_assert(true)
#define ORT_RETURN_IF_ERROR(...) static_assert(true)
#define ORT_IGNORE_RETURN_VALUE(x) (void)(x)
#define DISABLE_SPARSE_TENSORS 1

namespace gsl {
using std::span;
using std::as_bytes;
template <class C> auto make_span(C&& c) { return std::span(c); }
template <class T> auto make_span(T* p, size_t n) { return std::span<T>(p, n); }
template <class T, class U> T narrow(U u) { return static_cast<T>(u); }
template <class T, class U> T narrow_cast(U u) { return static_cast<T>(u); }
template <class T> using not_null = T;
using byte = std::byte;
}  // namespace gsl

namespace onnxruntime {
using std::optional;
using TimePoint = std::chrono::high_resolution_clock::time_point;
using TensorShapeVector = std::vector<int64_t>;
template <class T, size_t N = 0> using InlinedVector = std::vector<T>;
template <class T> using InlinedHashSet = std::unordered_set<T>;
template <class K, class V> using InlinedHashMap = std::unordered_map<K, V>;
template <class T, class U> T narrow(U u) { return static_cast<T>(u); }
template <class... A> std::string MakeString(const A&... a) {
  std::ostringstream s;
  (s << ... << a);
  return s.str();
}
template <class C> auto AsSpan(const C& c) { return std::span(c); }
template <class T> std::span<const T> AsSpan(std::initializer_list<T> c) { return {c.begin(), c.size()}; }
template <class T> std::span<const std::byte> AsByteSpan(const T* p, size_t n) {
  return {reinterpret_cast<const std::byte*>(p), n};
}
template <class To, class From> std::span<To> ReinterpretAsSpan(std::span<From> s) {
  return {reinterpret_cast<To*>(s.data()), s.size() * sizeof(From) / sizeof(To)};
}
namespace utils {
template <class T> struct IsByteType : std::bool_constant<sizeof(T) == 1 && std::is_integral_v<T> && !std::is_same_v<T, bool>> {};
template <class T> int ToTensorProtoElementType() { return ElemType<T>::value; }
}  // namespace utils

inline constexpr const char *kOnnxDomain = "", *kOnnxDomainAlias = "ai.onnx", *kMLDomain = "ai.onnx.ml",
  *kMSDomain = "com.microsoft", *kMSExperimentalDomain = "com.microsoft.experimental",
  *kMSNchwcDomain = "com.microsoft.nchwc", *kMSInternalNHWCDomain = "com.ms.internal.nhwc",
  *kPytorchAtenDomain = "org.pytorch.aten";
inline constexpr const char *kCpuExecutionProvider = "CPUExecutionProvider", *kCudaExecutionProvider = "CUDAExecutionProvider",
  *kCudaPluginExecutionProvider = "CudaPluginExecutionProvider", *kCudaNHWCExecutionProvider = "CUDANHWCExecutionProvider",
  *kDnnlExecutionProvider = "DnnlExecutionProvider", *kOpenVINOExecutionProvider = "OpenVINOExecutionProvider",
  *kVitisAIExecutionProvider = "VitisAIExecutionProvider", *kTensorrtExecutionProvider = "TensorrtExecutionProvider",
  *kNvTensorRTRTXExecutionProvider = "NvTensorRTRTXExecutionProvider", *kNnapiExecutionProvider = "NnapiExecutionProvider",
  *kQnnExecutionProvider = "QNNExecutionProvider", *kRknpuExecutionProvider = "RknpuExecutionProvider",
  *kDmlExecutionProvider = "DmlExecutionProvider", *kMIGraphXExecutionProvider = "MIGraphXExecutionProvider",
  *kAclExecutionProvider = "ACLExecutionProvider", *kCoreMLExecutionProvider = "CoreMLExecutionProvider",
  *kJsExecutionProvider = "JsExecutionProvider", *kSnpeExecutionProvider = "SNPEExecutionProvider",
  *kXnnpackExecutionProvider = "XnnpackExecutionProvider", *kWebNNExecutionProvider = "WebNNExecutionProvider",
  *kWebGpuExecutionProvider = "WebGpuExecutionProvider", *kCannExecutionProvider = "CANNExecutionProvider",
  *kAzureExecutionProvider = "AzureExecutionProvider", *kVSINPUExecutionProvider = "VSINPUExecutionProvider",
  *kArmNNExecutionProvider = "ArmNNExecutionProvider", *kRocmExecutionProvider = "ROCMExecutionProvider";

// Names of options, which nothing reads here.
inline constexpr const char *kOrtSessionOptionsConfigStrictShapeTypeInference = "", *kOrtSessionOptionsDisableCPUEPFallback = "",
  *kOrtSessionOptionsMlasGemmFastMathArm64Bfloat16 = "", *kOrtSessionOptionsMlasDisableKleidiAi = "",
  *kOrtSessionOptionsConfigDisablePrepacking = "", *kOrtSessionOptionsMlasLutGemm = "";

struct IExecutionProvider {
  std::string type;
  const std::string& Type() const { return type; }
};
struct Status {
  static Status OK() { return {}; }
  bool operator==(const Status&) const { return true; }
  bool IsOK() const { return true; }
  std::string ErrorMessage() const { return ""; }
};
struct ConfigOptions {
  std::unordered_map<std::string, std::string> configurations;
  Status AddConfigEntry(const char*, const char*) { return {}; }
};
enum class ExecutionMode { ORT_SEQUENTIAL, ORT_PARALLEL };
enum class TransformerLevel { Default, Level1, Level2, Level3, MaxLevel };
enum class GraphOptimizationLevel { ORT_DISABLE_ALL, ORT_ENABLE_BASIC, ORT_ENABLE_EXTENDED, ORT_ENABLE_ALL };
struct SessionOptions {
  ConfigOptions config_options;
  ExecutionMode execution_mode{};
  TransformerLevel graph_optimization_level{};
  bool use_deterministic_compute{}, enable_mem_pattern{}, enable_cpu_mem_arena{}, enable_mem_reuse{};
  struct {
    int thread_pool_size{};
  } intra_op_param, inter_op_param;
  std::string session_logid;
  Status AddInitializer(...) { return {}; }
};
struct RunOptions {
  ConfigOptions config_options;
  std::string run_tag;
  int run_log_severity_level{};
};
using OrtRunOptions = RunOptions;
struct Tensor;
struct TensorShape {
  std::vector<int64_t> dims;
  TensorShape() = default;
  TensorShape(std::vector<int64_t> d) : dims(std::move(d)) {}
  TensorShape(std::initializer_list<int64_t> d) : dims(d) {}
  TensorShape(std::span<const int64_t> d) : dims(d.begin(), d.end()) {}
  static TensorShape FromExistingBuffer(const std::vector<int64_t>& d) { return d; }
  int64_t Size() const { return SizeFrom(0, dims.size()); }
  int64_t SizeFromDimension(size_t i) const { return SizeFrom(i, dims.size()); }
  int64_t SizeToDimension(size_t i) const { return SizeFrom(0, i); }
  int64_t SizeFrom(size_t a, size_t b) const {
    return std::accumulate(dims.begin() + a, dims.begin() + b, int64_t{1}, std::multiplies<int64_t>());
  }
  int64_t SizeHelper(size_t a, size_t b) const { return SizeFrom(a, b); }
  size_t NumDimensions() const { return dims.size(); }
  int64_t operator[](size_t i) const { return dims[i]; }
  int64_t& operator[](size_t i) { return dims[i]; }
  std::span<const int64_t> GetDims() const { return dims; }
  const std::vector<int64_t>& GetDimsAsVector() const { return dims; }
  TensorShapeVector AsShapeVector() const { return dims; }
  bool operator==(const TensorShape& o) const { return dims == o.dims; }
  std::string ToString() const { return ""; }
};
template <class C> TensorShapeVector ToShapeVector(const C& c) { return {c.begin(), c.end()}; }
// What a session would have answered: there is none, so a test that looks at it ends there.
struct Tensor {
  template <class... A> static void InitOrtValue(const A&...) {}
  TensorShape Shape() const { throw std::runtime_error("no session was run"); }
  template <class T> const T* Data() const { throw std::runtime_error("no session was run"); }
  template <class T> std::span<const T> DataAsSpan() const { throw std::runtime_error("no session was run"); }
};
struct OrtValue {
  template <class T> const T& Get() const { throw std::runtime_error("no session was run"); }
  bool IsTensor() const { return true; }
};
struct DataTypeImpl {
  template <class T> static int GetType() { return ElemType<T>::value; }
};
enum OrtAllocatorType { OrtDeviceAllocator, OrtArenaAllocator };
inline constexpr const char* CPU = "Cpu";
struct OrtMemoryInfo {
  template <class... A> OrtMemoryInfo(const A&...) {}
};
struct Graph {
  struct ResolveOptions {};
};
namespace logging {}

namespace quantization {
template <class T> struct Params {
  Params() = default;
  Params(float s, T z) : scale(s), zero_point(z) {}
  float scale{};
  T zero_point{};
};
template <class T> T Quantize(float v, const Params<T>& p) {
  const float q = std::nearbyintf(v / p.scale) + static_cast<float>(p.zero_point);
  return static_cast<T>(std::clamp<float>(q, std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max()));
}
template <class C, class D, class T> void Quantize(const C& from, D&& to, const Params<T>& p) {
  for (size_t i = 0; i < std::size(from); ++i) to[i] = Quantize<T>(from[i], p);
}
template <class T> Params<T> QuantizeLinear(const std::vector<float>& from, std::vector<T>& to, bool symmetric = false) {
  const float least = std::is_same_v<T, int8_t> ? -127.f : std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
  float low = std::min(0.f, *std::min_element(from.begin(), from.end()));
  float high = std::max(0.f, *std::max_element(from.begin(), from.end()));
  if (symmetric) high = std::max(-low, high), low = -high;
  Params<T> p((high - low) / (most - least), 0);
  p.zero_point = static_cast<T>(std::round(std::clamp(p.scale != 0 ? least - low / p.scale : low, least, most)));
  Quantize(from, to, p);
  return p;
}
template <class T> float Dequantize(T v, const Params<T>& p) {
  return (static_cast<int32_t>(v) - static_cast<int32_t>(p.zero_point)) * p.scale;
}
}  // namespace quantization

namespace contrib {}
namespace math {
inline bool is_a_ge_zero_and_a_lt_b(int64_t a, int64_t b) { return a >= 0 && a < b; }
}

namespace test {
inline constexpr const char* kOpTesterRunOptionsConfigTestTunableOp = "";
using RandomSeedType = uint32_t;
inline RandomSeedType GetTestRandomSeed() { return 2026; }
template <class T> struct SeqTensors {
  struct Entry {
    std::vector<int64_t> shape;
    std::vector<T> data;
  };
  std::vector<Entry> tensors;
  void AddTensor(const std::vector<int64_t>& shape, const std::vector<T>& data) { tensors.push_back({shape, data}); }
};
struct ValidateOutputParams {
  std::optional<float> relative_error, absolute_error;
  bool sort_output{};
};
inline std::vector<MLFloat16> FloatsToMLFloat16s(const std::vector<float>& f) { return {f.begin(), f.end()}; }
inline std::vector<BFloat16> FloatsToBFloat16s(const std::vector<float>& f) { return {f.begin(), f.end()}; }
inline std::vector<BFloat16> MakeBFloat16(const std::initializer_list<float>& f) { return {f.begin(), f.end()}; }
inline std::vector<MLFloat16> MakeMLFloat16(const std::initializer_list<float>& f) { return {f.begin(), f.end()}; }
inline void ConvertFloatToMLFloat16(const float* f, MLFloat16* h, size_t n) {
  for (size_t i = 0; i < n; ++i) h[i] = MLFloat16(f[i]);
}
inline void ConvertMLFloat16ToFloat(const MLFloat16* h, float* f, size_t n) {
  for (size_t i = 0; i < n; ++i) f[i] = h[i].ToFloat();
}
inline void ConvertFloatToUint8_t(const float* f, uint8_t* h, size_t n) {
  for (size_t i = 0; i < n; ++i) h[i] = static_cast<uint8_t>(f[i]);
}

using Provider = std::unique_ptr<IExecutionProvider>;
inline Provider DefaultCpuExecutionProvider(bool = true) {
  return std::make_unique<IExecutionProvider>(IExecutionProvider{kCpuExecutionProvider});
}
// No other provider is there, as in a build for the CPU alone.
#define VKEP_NO_PROVIDER(name) template <class... A> Provider name(const A&...) { return nullptr; }
VKEP_NO_PROVIDER(DefaultCudaExecutionProvider) VKEP_NO_PROVIDER(DefaultCudaNHWCExecutionProvider)
VKEP_NO_PROVIDER(CudaExecutionProviderWithOptions) VKEP_NO_PROVIDER(DefaultDnnlExecutionProvider)
VKEP_NO_PROVIDER(DnnlExecutionProviderWithOptions) VKEP_NO_PROVIDER(DefaultTensorrtExecutionProvider)
VKEP_NO_PROVIDER(DefaultNvTensorRTRTXExecutionProvider) VKEP_NO_PROVIDER(DefaultMIGraphXExecutionProvider)
VKEP_NO_PROVIDER(DefaultOpenVINOExecutionProvider) VKEP_NO_PROVIDER(OpenVINOExecutionProviderWithOptions)
VKEP_NO_PROVIDER(DefaultNnapiExecutionProvider) VKEP_NO_PROVIDER(DefaultVSINPUExecutionProvider)
VKEP_NO_PROVIDER(DefaultRknpuExecutionProvider) VKEP_NO_PROVIDER(DefaultAclExecutionProvider)
VKEP_NO_PROVIDER(DefaultArmNNExecutionProvider) VKEP_NO_PROVIDER(DefaultCoreMLExecutionProvider)
VKEP_NO_PROVIDER(DefaultSnpeExecutionProvider) VKEP_NO_PROVIDER(DefaultQnnExecutionProvider)
VKEP_NO_PROVIDER(QnnExecutionProviderWithOptions) VKEP_NO_PROVIDER(DefaultXnnpackExecutionProvider)
VKEP_NO_PROVIDER(DefaultWebGpuExecutionProvider) VKEP_NO_PROVIDER(WebGpuExecutionProviderWithOptions)
VKEP_NO_PROVIDER(DefaultCannExecutionProvider) VKEP_NO_PROVIDER(DefaultDmlExecutionProvider)
VKEP_NO_PROVIDER(DefaultRocmExecutionProvider) VKEP_NO_PROVIDER(DefaultJsExecutionProvider)
VKEP_NO_PROVIDER(DefaultWebGpuNHWCExecutionProvider)
inline int GetCudaArchitecture() { return 0; }
inline bool HasCudaEnvironment(int) { return false; }
inline bool NeedSkipIfCudaArchLowerThan(int) { return false; }
inline bool NeedSkipIfCudaArchGreaterEqualThan(int) { return false; }
inline bool CudaHasBF16Support() { return false; }
inline bool DnnlHasBF16Support() { return false; }
struct ScopedEnvironmentVariables {
  using EnvVarMap = std::unordered_map<std::string, std::optional<std::string>>;
  template <class... A> ScopedEnvironmentVariables(const A&...) {}
  ScopedEnvironmentVariables(const EnvVarMap&) {}
};
using EnvVarMap = ScopedEnvironmentVariables::EnvVarMap;
}  // namespace test
}  // namespace onnxruntime

#include "tester.h"
