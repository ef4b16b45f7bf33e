// OpTester: keeps what a test says, and writes a record for each Run.
// A record: the length of its JSON as a little-endian uint32, the JSON, the length of its data as a uint64, the data.
#pragma once

namespace vkep {
inline std::string quote(std::string_view s) {
  std::string out = "\"";
  char buffer[8];
  for (unsigned char c : s) {  // bytes over 127 as they are: read back as Latin-1, whatever the encoding
    if (c == '"' || c == '\\' || c < 32 || c > 126) {
      std::snprintf(buffer, sizeof buffer, "\\u%04x", c);
      out += buffer;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}
template <class C> std::string join(const C& c) {
  std::string out = "[";
  for (const auto& v : c) out += (out.size() > 1 ? "," : "") + std::to_string(v);
  return out + "]";
}
inline uint32_t bits(float f) {
  uint32_t b;
  std::memcpy(&b, &f, 4);
  return b;
}
inline std::ofstream& file() {
  static std::ofstream one;
  return one;
}
}  // namespace vkep

namespace ONNX_NAMESPACE {
// The parts of the protobuf classes that tests of one operator use.
struct AttributeProto {};
struct TensorProto {
  enum DataType { UNDEFINED, FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE, UINT32, UINT64,
    COMPLEX64, COMPLEX128, BFLOAT16, FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ, UINT4, INT4, FLOAT4E2M1,
    FLOAT8E8M0, UINT2, INT2 };
  int type = 0;
  std::vector<int64_t> dims_, ints;
  std::vector<float> floats;
  std::vector<double> doubles;
  std::vector<std::string> strings;
  std::string name_;
  void set_data_type(int t) { type = t; }
  void set_name(const std::string& n) { name_ = n; }
  void add_dims(int64_t d) { dims_.push_back(d); }
  void add_float_data(float v) { floats.push_back(v); }
  void add_double_data(double v) { doubles.push_back(v); }
  void add_int32_data(int32_t v) { ints.push_back(v); }
  void add_int64_data(int64_t v) { ints.push_back(v); }
  void add_uint64_data(uint64_t v) { ints.push_back(static_cast<int64_t>(v)); }
  void add_string_data(const std::string& v) { strings.push_back(v); }
  std::string* add_string_data() { return &strings.emplace_back(); }
};
using TensorProto_DataType = TensorProto::DataType;
inline constexpr auto TensorProto_DataType_FLOAT = TensorProto::FLOAT, TensorProto_DataType_UINT8 = TensorProto::UINT8,
  TensorProto_DataType_INT8 = TensorProto::INT8, TensorProto_DataType_UINT16 = TensorProto::UINT16,
  TensorProto_DataType_INT16 = TensorProto::INT16, TensorProto_DataType_INT32 = TensorProto::INT32,
  TensorProto_DataType_INT64 = TensorProto::INT64, TensorProto_DataType_STRING = TensorProto::STRING,
  TensorProto_DataType_BOOL = TensorProto::BOOL, TensorProto_DataType_FLOAT16 = TensorProto::FLOAT16,
  TensorProto_DataType_DOUBLE = TensorProto::DOUBLE, TensorProto_DataType_UINT32 = TensorProto::UINT32,
  TensorProto_DataType_UINT64 = TensorProto::UINT64, TensorProto_DataType_BFLOAT16 = TensorProto::BFLOAT16,
  TensorProto_DataType_UINT4 = TensorProto::UINT4, TensorProto_DataType_INT4 = TensorProto::INT4,
  TensorProto_DataType_UINT2 = TensorProto::UINT2, TensorProto_DataType_INT2 = TensorProto::INT2,
  TensorProto_DataType_FLOAT8E4M3FN = TensorProto::FLOAT8E4M3FN, TensorProto_DataType_FLOAT8E5M2 = TensorProto::FLOAT8E5M2,
  TensorProto_DataType_FLOAT8E4M3FNUZ = TensorProto::FLOAT8E4M3FNUZ,
  TensorProto_DataType_FLOAT8E5M2FNUZ = TensorProto::FLOAT8E5M2FNUZ;
}  // namespace ONNX_NAMESPACE

namespace onnxruntime {
namespace test {

class BaseTester {
 public:
  using DimsVariant = std::variant<std::vector<int64_t>>;
  using Strings = std::vector<std::string>;
  enum class ExpectResult { kExpectSuccess, kExpectFailure };

  BaseTester(std::string_view op, int opset, std::string_view domain, bool verify)
      : op_(op), domain_(domain), opset_(opset), verify_(verify) {}
  virtual ~BaseTester() = default;

#define VKEP_ADD(NAME, LIST, PARAMS, OPTIONS)                                                                \
  template <class T> void NAME(const char* n, std::initializer_list<int64_t> d, std::initializer_list<T> v PARAMS) {     \
    Keep<T>(LIST, n, d, v.begin(), v.size(), OPTIONS); }                                                     \
  template <class T> void NAME(const char* n, std::initializer_list<int64_t> d, const std::vector<T>& v PARAMS) {        \
    Keep<T>(LIST, n, d, v.data(), v.size(), OPTIONS); }                                                      \
  template <class T> void NAME(const char* n, std::initializer_list<int64_t> d, const T* v, const size_t c PARAMS) {     \
    Keep<T>(LIST, n, d, v, c, OPTIONS); }                                                                    \
  template <class T> void NAME(const char* n, std::initializer_list<int64_t> d, std::span<const T> v PARAMS) {           \
    Keep<T>(LIST, n, d, v.data(), v.size(), OPTIONS); }                                                      \
  template <class T> void NAME(const char* n, const DimsVariant& d, std::initializer_list<T> v PARAMS) {     \
    Keep<T>(LIST, n, std::get<0>(d), v.begin(), v.size(), OPTIONS); }                                        \
  template <class T> void NAME(const char* n, const DimsVariant& d, const std::vector<T>& v PARAMS) {        \
    Keep<T>(LIST, n, std::get<0>(d), v.data(), v.size(), OPTIONS); }                                         \
  template <class T> void NAME(const char* n, const DimsVariant& d, const T* v, const size_t c PARAMS) {     \
    Keep<T>(LIST, n, std::get<0>(d), v, c, OPTIONS); }
#define VKEP_IN_PARAMS , bool is_initializer = false, const Strings* dim_params = nullptr
#define VKEP_OUT_PARAMS , bool sort = false, float rel = 0, float abs = 0
  VKEP_ADD(AddInput, inputs_, VKEP_IN_PARAMS, (Options{is_initializer, false, 0, 0, dim_params && !dim_params->empty()}))
  VKEP_ADD(AddOutput, outputs_, VKEP_OUT_PARAMS, (Options{false, sort, rel, abs, false}))

  template <class K, class V> void AddInput(const char* n, const std::map<K, V>&) { Strange(inputs_, n, "a map"); }
  template <class T> void AddInput(const char* n, const T&) { Strange(inputs_, n, "a value that is no tensor"); }
  template <class T> void AddOutput(const char* n, const T&) { Strange(outputs_, n, "a value that is no tensor"); }
  template <class T> void AddSeqInput(const char* n, const SeqTensors<T>&) { Strange(inputs_, n, "a sequence"); }
  template <class T> void AddSeqOutput(const char* n, const SeqTensors<T>&, float = 0, float = 0) {
    Strange(outputs_, n, "a sequence");
  }
  template <class T, class... A> void AddOptionalTypeTensorInput(const char* n, const A&...) { Strange(inputs_, n, "an optional"); }
  template <class T> void AddOptionalTypeTensorInput(const char* n, std::initializer_list<int64_t>,
                                                     const std::initializer_list<T>* = nullptr) {
    Strange(inputs_, n, "an optional");
  }
  template <class T> void AddOptionalTypeTensorOutput(const char* n, std::initializer_list<int64_t>,
                                                      const std::initializer_list<T>* = nullptr) {
    Strange(outputs_, n, "an optional");
  }
  template <class T> void AddOptionalTypeSeqInput(const char* n, const SeqTensors<T>*) { Strange(inputs_, n, "an optional"); }
  template <class T> void AddOptionalTypeSeqOutput(const char* n, const SeqTensors<T>*) { Strange(outputs_, n, "an optional"); }
  template <class T = float, class... A> void AddSparseCooInput(const char* n, const std::vector<int64_t>&, const A&...) {
    Strange(inputs_, n, "a sparse tensor");
  }
  template <class T> void AddOptionalInputEdge() { Absent(inputs_, ElemType<T>::value); }
  template <class T> void AddOptionalOutputEdge() { Absent(outputs_, ElemType<T>::value); }
  template <class T> void AddMissingOptionalInput() { Absent(inputs_, ElemType<T>::value); }
  template <class T> void AddMissingOptionalOutput() { Absent(outputs_, ElemType<T>::value); }
  template <class... A> void AddReferenceOutputs(const A&...) { why_not_ = "expected values from a model file"; }
  template <class T> void AddCustomOpRegistry(const T&) { why_not_ = "a custom operator"; }

  void SetOutputAbsErr(const char* n, float v) {
    for (auto& o : outputs_)
      if (o.name == n) o.options.abs = v;
  }
  void SetOutputRelErr(const char* n, float v) {
    for (auto& o : outputs_)
      if (o.name == n) o.options.rel = v;
  }
  void SetOutputTolerance(float abs, float rel = -1) {
    for (auto& o : outputs_) {
      if (abs >= 0) o.options.abs = abs;
      if (rel >= 0) o.options.rel = rel;
    }
  }
  void SetNumRunCalls(int) {}
  void SetDeterminism(bool) {}
  void SetAllowUnreleasedOnnxOpset() {}
  void EnableSharingOfPrePackedWeightsAcrossSessions() {}
  size_t GetNumPrePackedWeightsShared() const { return 0; }
  int GetNumberOfNodesAfterRun() const { return 1; }
  using CustomOutputVerifierFn = std::function<void(const std::vector<OrtValue>&, const std::string&)>;
  void SetCustomOutputVerifier(CustomOutputVerifierFn) { verify_ = false; }
  std::vector<OrtValue> GetFetches() { return std::vector<OrtValue>(outputs_.size()); }

  BaseTester& Config(const SessionOptions&) { return *this; }
  BaseTester& Config(const RunOptions*) { return *this; }
  BaseTester& Config(const Graph::ResolveOptions&) { return *this; }
  BaseTester& Config(ExpectResult expect, const std::string& message) {
    expect_ = expect, message_ = message;
    return *this;
  }
  BaseTester& ConfigExcludeEps(const std::unordered_set<std::string>& excluded) {
    excluded_ = excluded;
    return *this;
  }
  BaseTester& ConfigEp(Provider&& provider) {
    std::vector<Provider> all;
    all.push_back(std::move(provider));
    return ConfigEps(std::move(all));
  }
  BaseTester& ConfigEps(std::vector<Provider>&& providers) {
    providers_ = std::move(providers);
    chosen_ = true;
    return *this;
  }
  void RunWithConfig(size_t* = nullptr, size_t* = nullptr) { Write(); }
  void Run(ExpectResult expect = ExpectResult::kExpectSuccess, const std::string& message = "",
           const std::unordered_set<std::string>& excluded = {}, const RunOptions* = nullptr,
           std::vector<Provider>* providers = nullptr, ExecutionMode = {}, const Graph::ResolveOptions& = {}) {
    expect_ = expect, message_ = message, excluded_ = excluded;
    chosen_ = providers != nullptr;
    if (providers) providers_ = std::move(*providers);
    Write();
  }
  void Run(SessionOptions, ExpectResult expect = ExpectResult::kExpectSuccess, const std::string& message = "",
           const std::unordered_set<std::string>& excluded = {}, const RunOptions* = nullptr,
           std::vector<Provider>* providers = nullptr, const Graph::ResolveOptions& = {}, size_t* = nullptr,
           size_t* = nullptr) {
    Run(expect, message, excluded, nullptr, providers);
  }

 protected:
  struct Options {
    bool initializer, sort;
    float rel, abs;
    bool symbolic;
  };
  struct Value {
    std::string name, kind;
    int type;
    std::vector<int64_t> dims;
    std::string data;
    Strings strings;
    Options options;
    bool shaped;
    int symbolic;
  };

  template <class T> void Keep(std::vector<Value>& list, const char* name, std::vector<int64_t> dims, const T* v, size_t count,
                               Options options) {
    Value value{name, "tensor", ElemType<T>::value, dims, "", {}, options, shaped_, symbolic_};
    int64_t size = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<int64_t>());
    if (v != nullptr || count == 0)
      ORT_ENFORCE((size + elements_in<T> - 1) / elements_in<T> == static_cast<int64_t>(count), "");
    if constexpr (std::is_same_v<T, std::string>) {
      value.strings.assign(v, v + count);
    } else if (v != nullptr) {
      value.data.assign(reinterpret_cast<const char*>(v), count * sizeof(T));
    }
    list.push_back(std::move(value));
  }
  void Absent(std::vector<Value>& list, int type) { list.push_back({"", "absent", type, {}, "", {}, {}, true, -1}); }
  void Strange(std::vector<Value>& list, const char* name, const char* what) {
    list.push_back({name, what, 0, {}, "", {}, {}, true, -1});
    why_not_ = what;
  }

  static std::string Json(const Value& v, std::string& data) {
    std::string out = "{\"name\":" + vkep::quote(v.name) + ",\"kind\":" + vkep::quote(v.kind) +
      ",\"type\":" + std::to_string(v.type) + ",\"dims\":" + vkep::join(v.dims) +
      ",\"offset\":" + std::to_string(data.size()) + ",\"bytes\":" + std::to_string(v.data.size()) +
      ",\"initializer\":" + (v.options.initializer ? "true" : "false") + ",\"sort\":" + (v.options.sort ? "true" : "false") +
      ",\"shaped\":" + (v.shaped ? "true" : "false") +
      ",\"symbolic\":" + std::to_string(v.options.symbolic ? -2 : v.symbolic) +
      ",\"rel\":" + std::to_string(vkep::bits(v.options.rel)) + ",\"abs\":" + std::to_string(vkep::bits(v.options.abs)) +
      ",\"strings\":[";
    for (size_t i = 0; i < v.strings.size(); ++i) out += (i ? "," : "") + vkep::quote(v.strings[i]);
    data += v.data;
    return out + "]}";
  }

  void Write() {
    bool on_cpu = !excluded_.count(kCpuExecutionProvider);
    if (chosen_) {
      bool cpu = false, any = false;
      for (auto& p : providers_) {
        any |= p != nullptr;
        cpu |= p != nullptr && p->type == kCpuExecutionProvider;
      }
      if (!any) return;  // for a provider that is not there
      on_cpu = cpu;
    }
    const auto& info = ::testing::UnitTest::GetInstance()->info;
    std::string data, json = "{\"test\":" + vkep::quote(info.suite_ + "." + info.name_) + ",\"op\":" + vkep::quote(op_) +
      ",\"opset\":" + std::to_string(opset_) + ",\"domain\":" + vkep::quote(domain_) +
      ",\"verify\":" + (verify_ ? "true" : "false") + ",\"on_cpu\":" + (on_cpu ? "true" : "false") +
      ",\"fails\":" + (expect_ == ExpectResult::kExpectFailure ? "true" : "false") +
      ",\"message\":" + vkep::quote(message_) + ",\"why_not\":" + vkep::quote(why_not_) + ",\"attributes\":[";
    for (size_t i = 0; i < attributes_.size(); ++i) json += (i ? "," : "") + attributes_[i];
    json += "],\"inputs\":[";
    for (size_t i = 0; i < inputs_.size(); ++i) json += (i ? "," : "") + Json(inputs_[i], data);
    json += "],\"outputs\":[";
    for (size_t i = 0; i < outputs_.size(); ++i) json += (i ? "," : "") + Json(outputs_[i], data);
    json += "]}";
    const uint32_t length = static_cast<uint32_t>(json.size());
    const uint64_t bytes = data.size();
    vkep::file().write(reinterpret_cast<const char*>(&length), 4).write(json.data(), length);
    vkep::file().write(reinterpret_cast<const char*>(&bytes), 8).write(data.data(), static_cast<std::streamsize>(bytes));
    vkep::file().flush();
  }

  std::string op_, domain_, message_, why_not_;
  int opset_;
  bool verify_, shaped_ = true, chosen_ = false;
  int symbolic_ = -1;
  ExpectResult expect_ = ExpectResult::kExpectSuccess;
  std::unordered_set<std::string> excluded_;
  std::vector<Provider> providers_;
  std::vector<std::string> attributes_;
  std::vector<Value> inputs_, outputs_;
};

class OpTester : public BaseTester {
 public:
  using ExpectResult = BaseTester::ExpectResult;
  explicit OpTester(std::string_view op, int opset = 7, std::string_view domain = kOnnxDomain, bool verify = true)
      : BaseTester(op, opset, domain, verify) {}

  OpTester& AddShapeToTensorData(bool enable = true, int symbolic = -1) {
    shaped_ = enable, symbolic_ = symbolic;
    return *this;
  }

  template <class T> void AddAttribute(std::string name, T value) {
    std::string text;
    if constexpr (std::is_same_v<T, ONNX_NAMESPACE::TensorProto>) {
      text = "\"tensor\":{\"type\":" + std::to_string(value.type) + ",\"dims\":" + vkep::join(value.dims_) +
        ",\"ints\":" + vkep::join(value.ints) + ",\"floats\":[";
      for (size_t i = 0; i < value.floats.size(); ++i) text += (i ? "," : "") + std::to_string(vkep::bits(value.floats[i]));
      text += "],\"doubles\":[";
      for (size_t i = 0; i < value.doubles.size(); ++i) {
        uint64_t b;
        std::memcpy(&b, &value.doubles[i], 8);
        text += (i ? "," : "") + std::to_string(b);
      }
      text += "],\"strings\":[";
      for (size_t i = 0; i < value.strings.size(); ++i) text += (i ? "," : "") + vkep::quote(value.strings[i]);
      text += "]}";
    } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      text = "\"int\":" + std::to_string(static_cast<int64_t>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      text = "\"float\":" + std::to_string(vkep::bits(static_cast<float>(value)));
    } else if constexpr (std::is_convertible_v<T, std::string>) {
      text = "\"string\":" + vkep::quote(std::string(value));
    } else {
      using E = std::decay_t<decltype(*value.begin())>;
      std::string items;
      for (const auto& v : value) {
        if (!items.empty()) items += ",";
        if constexpr (std::is_integral_v<E>) items += std::to_string(static_cast<int64_t>(v));
        else if constexpr (std::is_floating_point_v<E>) items += std::to_string(vkep::bits(static_cast<float>(v)));
        else items += vkep::quote(std::string(v));
      }
      text = std::string(std::is_integral_v<E> ? "\"ints\":[" : std::is_floating_point_v<E> ? "\"floats\":[" : "\"strings\":[") +
        items + "]";
    }
    attributes_.push_back("{\"name\":" + vkep::quote(name) + "," + text + "}");
  }
};
}  // namespace test
}  // namespace onnxruntime

namespace ort = onnxruntime;
using onnxruntime::IExecutionProvider;
