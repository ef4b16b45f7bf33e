// The test framework's macros, for a program that runs each test for what it records. A failed ASSERT ends the test as it
// does there; what EXPECT says of a session's answers is left alone, for no session is run.
#pragma once
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace testing {
struct Message {
  template <class T> Message& operator<<(const T&) { return *this; }
  Message& operator<<(std::ostream& (*)(std::ostream&)) { return *this; }
};
struct Leave {
  void operator=(const Message&) const {}
};
struct ScopedTrace {
  template <class... A> ScopedTrace(const A&...) {}
};
struct TestInfo {
  std::string suite_, name_;
  const char* name() const { return name_.c_str(); }
  const char* test_suite_name() const { return suite_.c_str(); }
  const char* test_case_name() const { return suite_.c_str(); }
};
struct UnitTest {
  TestInfo info;
  static UnitTest* GetInstance() {
    static UnitTest one;
    return &one;
  }
  const TestInfo* current_test_info() const { return &info; }
};
class Test {
 public:
  virtual ~Test() = default;
  virtual void SetUp() {}
  virtual void TearDown() {}
  virtual void TestBody() = 0;
  static bool HasFailure() { return false; }
  static bool HasFatalFailure() { return false; }
  static bool IsSkipped() { return false; }
};
template <class P> struct Param {
  static inline const P* now = nullptr;
};
template <class P> class WithParamInterface {
 public:
  using ParamType = P;
  static const P& GetParam() { return *Param<P>::now; }
};
template <class P> class TestWithParam : public Test, public WithParamInterface<P> {};
template <class P> struct TestParamInfo {
  P param;
  size_t index;
};

struct Entry {
  std::string suite, name;
  std::function<void()> run;
};
inline std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}
template <class T> int enter(const char* suite, const char* name) {
  entries().push_back({suite, name, [] {
                         T test;
                         Test& base = test;  // a fixture's own SetUp may be protected
                         base.SetUp();
                         base.TestBody();
                       }});
  return 0;
}

template <class... T> struct Types {};
template <class L> struct AsTypes { using type = Types<L>; };
template <class... T> struct AsTypes<Types<T...>> { using type = Types<T...>; };
template <template <class> class Body, class... T> int enter_typed(const char* suite, const char* name, Types<T...>) {
  int index = 0;
  (enter<Body<T>>((std::string(suite) + "/" + std::to_string(index++)).c_str(), name), ...);
  return index;
}

// Tests with parameters: bodies by suite, run for each value of the suite's instantiations.
using Runs = std::vector<std::pair<std::string, std::function<void()>>>;
template <class Suite> Runs& bodies() {
  static Runs all;
  return all;
}
template <class Suite, class T> int enter_body(const char* name) {
  bodies<Suite>().push_back({name, [] {
                               T test;
                               Test& base = test;
                               base.SetUp();
                               base.TestBody();
                             }});
  return 0;
}
template <class T> struct ValuesOf {
  std::vector<T> values;
};
template <class... T> auto Values(T... v) {
  using C = std::common_type_t<T...>;
  return ValuesOf<C>{{static_cast<C>(v)...}};
}
template <class C> auto ValuesIn(const C& c) {
  using T = std::decay_t<decltype(*std::begin(c))>;
  return ValuesOf<T>{std::vector<T>(std::begin(c), std::end(c))};
}
inline ValuesOf<bool> Bool() { return {{false, true}}; }
template <class A> auto Combine(ValuesOf<A> a) {
  ValuesOf<std::tuple<A>> all;
  for (const auto& x : a.values) all.values.push_back(std::tuple<A>(x));
  return all;
}
template <class A, class... B> auto Combine(ValuesOf<A> a, ValuesOf<B>... b) requires(sizeof...(B) > 0) {
  ValuesOf<std::tuple<A, B...>> all;
  auto rest = Combine(b...);
  for (const auto& x : a.values)
    for (const auto& y : rest.values) all.values.push_back(std::tuple_cat(std::tuple<A>(x), y));
  return all;
}
// A suite's bodies may come after its instantiation: they are asked for when the program runs.
using Expansion = std::function<void(std::vector<Entry>&)>;
inline std::vector<Expansion>& expansions() {
  static std::vector<Expansion> all;
  return all;
}
template <class Suite, class T, class... Names> int instantiate(const char* suite, ValuesOf<T> values, const Names&...) {
  using P = typename Suite::ParamType;
  auto kept = std::make_shared<std::vector<P>>(values.values.begin(), values.values.end());
  expansions().push_back([suite = std::string(suite), kept](std::vector<Entry>& out) {
    for (auto& [name, body] : bodies<Suite>())
      for (size_t i = 0; i < kept->size(); ++i)
        out.push_back({suite, name + "/" + std::to_string(i), [kept, i, body = body] {
                         Param<P>::now = &(*kept)[i];
                         body();
                       }});
  });
  return 0;
}
struct Anything {
  template <class... A> Anything(const A&...) {}
};
template <class... A> Anything HasSubstr(const A&...) { return 0; }
template <class... A> Anything ContainsRegex(const A&...) { return 0; }
template <class... A> Anything StartsWith(const A&...) { return 0; }
template <class... A> Anything ElementsAre(const A&...) { return 0; }
template <class... A> Anything ElementsAreArray(const A&...) { return 0; }
template <class... A> Anything Contains(const A&...) { return 0; }
template <class... A> Anything Eq(const A&...) { return 0; }
}  // namespace testing

#define VKEP_CLASS(s, n) s##_##n##_Test
#define TEST(s, n)                                             \
  class VKEP_CLASS(s, n) : public ::testing::Test {            \
   public:                                                     \
    void TestBody() override;                                  \
  };                                                           \
  static int s##_##n##_in = ::testing::enter<VKEP_CLASS(s, n)>(#s, #n); \
  void VKEP_CLASS(s, n)::TestBody()
#define TEST_F(s, n)                                           \
  class VKEP_CLASS(s, n) : public s {                          \
   public:                                                     \
    void TestBody() override;                                  \
  };                                                           \
  static int s##_##n##_in = ::testing::enter<VKEP_CLASS(s, n)>(#s, #n); \
  void VKEP_CLASS(s, n)::TestBody()
#define TEST_P(s, n)                                           \
  class VKEP_CLASS(s, n) : public s {                          \
   public:                                                     \
    void TestBody() override;                                  \
  };                                                           \
  static int s##_##n##_in = ::testing::enter_body<s, VKEP_CLASS(s, n)>(#n); \
  void VKEP_CLASS(s, n)::TestBody()
#define TYPED_TEST_SUITE(s, ...) using s##_types = typename ::testing::AsTypes<__VA_ARGS__>::type
#define TYPED_TEST_CASE(s, ...) TYPED_TEST_SUITE(s, __VA_ARGS__)
#define TYPED_TEST(s, n)                                       \
  template <class TP> class VKEP_CLASS(s, n) : public s<TP> {  \
   public:                                                     \
    using TypeParam = TP;                                      \
    using TestFixture = s<TP>;                                 \
    void TestBody() override;                                  \
  };                                                           \
  static int s##_##n##_in = ::testing::enter_typed<VKEP_CLASS(s, n)>(#s, #n, s##_types{}); \
  template <class TP> void VKEP_CLASS(s, n)<TP>::TestBody()
#define INSTANTIATE_TEST_SUITE_P(p, s, ...) static int p##_##s##_in = ::testing::instantiate<s>(#s, __VA_ARGS__)
#define INSTANTIATE_TEST_CASE_P(p, s, ...) INSTANTIATE_TEST_SUITE_P(p, s, __VA_ARGS__)
#define GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(s) static_assert(true)

#define VKEP_SAID ::testing::Message()
#define VKEP_LEAVE return ::testing::Leave() = ::testing::Message()
#define ASSERT_TRUE(c) if (c) ; else VKEP_LEAVE
#define ASSERT_FALSE(c) if (!(c)) ; else VKEP_LEAVE
#define ASSERT_EQ(a, b) if ((a) == (b)) ; else VKEP_LEAVE
#define ASSERT_NE(a, b) if ((a) != (b)) ; else VKEP_LEAVE
#define ASSERT_LE(a, b) if ((a) <= (b)) ; else VKEP_LEAVE
#define ASSERT_LT(a, b) if ((a) < (b)) ; else VKEP_LEAVE
#define ASSERT_GE(a, b) if ((a) >= (b)) ; else VKEP_LEAVE
#define ASSERT_GT(a, b) if ((a) > (b)) ; else VKEP_LEAVE
#define ASSERT_STATUS_OK(s) if ((s).IsOK()) ; else VKEP_LEAVE
#define ASSERT_NO_FATAL_FAILURE(s) do { s; } while (false); if (true) ; else VKEP_SAID
#define ASSERT_NO_THROW(s) do { s; } while (false); if (true) ; else VKEP_SAID
#define EXPECT_NO_THROW(s) ASSERT_NO_THROW(s)
#define EXPECT_NO_FATAL_FAILURE(s) ASSERT_NO_THROW(s)
#define VKEP_QUIET(...) if (true) ; else VKEP_SAID
#define EXPECT_TRUE VKEP_QUIET
#define EXPECT_FALSE VKEP_QUIET
#define EXPECT_EQ VKEP_QUIET
#define EXPECT_NE VKEP_QUIET
#define EXPECT_LE VKEP_QUIET
#define EXPECT_LT VKEP_QUIET
#define EXPECT_GE VKEP_QUIET
#define EXPECT_GT VKEP_QUIET
#define EXPECT_NEAR VKEP_QUIET
#define ASSERT_NEAR VKEP_QUIET
#define EXPECT_FLOAT_EQ VKEP_QUIET
#define EXPECT_STREQ VKEP_QUIET
#define EXPECT_THAT VKEP_QUIET
#define ASSERT_THAT VKEP_QUIET
#define EXPECT_STATUS_OK VKEP_QUIET
#define EXPECT_THROW(s, e) do { try { s; } catch (...) {} } while (false); if (true) ; else VKEP_SAID
#define ASSERT_THROW EXPECT_THROW
#define GTEST_SKIP() VKEP_LEAVE
#define FAIL() VKEP_LEAVE
#define ADD_FAILURE() VKEP_SAID
#define SUCCEED() VKEP_SAID
#define SCOPED_TRACE(m) VKEP_SAID << m
#define GTEST_UNUSED_ [[maybe_unused]]
#define FRIEND_TEST(s, n) static_assert(true)
