// A minimal frame for the C++ test programs: TEST registers, CHECK reports, main runs all and
// prints the count line. Usage: prog [NAME-SUBSTRING]. Exit code 1 when anything failed.
#pragma once
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace nvmeof::test {

struct Case {
  const char* name;
  void (*run)();
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};
inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  failures()++;
}

inline int run_all(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const Case& c : cases()) {
    if (argc > 1 && !std::strstr(c.name, argv[1])) continue;
    const int before = failures();
    c.run();
    const bool ok = failures() == before;
    (ok ? passed : failed)++;
    if (!ok) std::fprintf(stderr, "FAILED %s\n", c.name);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0 || passed == 0;
}

}  // namespace nvmeof::test

#define TEST(name)                                                           \
  static void test_##name();                                                 \
  static const ::nvmeof::test::Register register_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) ::nvmeof::test::fail(__FILE__, __LINE__, "CHECK(" #condition ")"); \
  } while (0)

#define CHECK_EQ(a, b)                                                                      \
  do {                                                                                      \
    const auto a_ = (a);                                                                    \
    const auto b_ = (b);                                                                    \
    if (!(a_ == b_))                                                                        \
      ::nvmeof::test::fail(                                                                 \
          __FILE__, __LINE__,                                                               \
          "CHECK_EQ(" #a ", " #b "): " + std::to_string(a_) + " != " + std::to_string(b_)); \
  } while (0)

#define REQUIRE(condition)                                                 \
  do {                                                                     \
    if (!(condition)) {                                                    \
      ::nvmeof::test::fail(__FILE__, __LINE__, "REQUIRE(" #condition ")"); \
      return;                                                              \
    }                                                                      \
  } while (0)

#define TEST_MAIN                               \
  int main(int argc, char** argv) {             \
    return ::nvmeof::test::run_all(argc, argv); \
  }
