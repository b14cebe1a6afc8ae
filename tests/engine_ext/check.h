// The smallest test frame that serves: TEST registers, CHECK counts faults and goes on, main reports.
// Usage of a test executable: no argument runs everything, one argument runs the tests whose name contains
// it.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int& num_faults() {
  static int num = 0;
  return num;
}

struct Registration {
  Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

// Text for a fault report; bytes that are not printable ASCII appear as \xNN.
inline std::string show(const std::string& text) {
  std::string shown = "\"";
  for (unsigned char c : text) {
    char buffer[5];
    if (c >= 0x20 && c < 0x7F) {
      shown.push_back(static_cast<char>(c));
    } else {
      std::snprintf(buffer, sizeof buffer, "\\x%02X", c);
      shown += buffer;
    }
  }
  return shown + "\"";
}

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else {
    out << value;
  }
  return out.str();
}

template <typename T>
std::string show(const std::vector<T>& values) {
  std::string shown = "[";
  for (const T& value : values) shown += (shown.size() > 1 ? ", " : "") + show(value);
  return shown + "]";
}

// What the test was doing, printed with a fault: the seed of a random run, the case of a table.
inline std::string& context() {
  static std::string text;
  return text;
}

inline void fault(const char* file, int line, const std::string& what) {
  constexpr int kMostShown = 20;
  if (++num_faults() > kMostShown) return;
  std::cerr << file << ":" << line << ": " << what;
  if (!context().empty()) std::cerr << "  (" << context() << ")";
  std::cerr << std::endl;
}

template <typename A, typename B>
void equal(const char* file, int line, const char* expression, const A& a, const B& b) {
  if (a == b) return;
  fault(file, line, std::string(expression) + ": got " + show(a) + ", want " + show(b));
}

// The message of the exception of type E that `call` throws, or nothing.
template <typename E>
std::optional<std::string> thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& e) {
    return e.what();
  }
  return std::nullopt;
}

inline int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  int num_run = 0, num_failed = 0;
  for (const Test& test : tests()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
    const int before = num_faults();
    context().clear();
    try {
      test.run();
    } catch (const std::exception& e) {
      fault(test.name, 0, std::string("threw: ") + e.what());
    }
    const bool has_passed = num_faults() == before;
    std::cout << (has_passed ? "ok    " : "FAIL  ") << test.name << std::endl;
    num_failed += has_passed ? 0 : 1;
    ++num_run;
  }
  std::cout << num_run << " tests, " << num_failed << " failed" << std::endl;
  return num_run == 0 || num_failed > 0 ? 1 : 0;
}

}  // namespace check

#define TEST(name)                                                   \
  static void name();                                                \
  static const check::Registration name##_registration{#name, name}; \
  static void name()

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) check::fault(__FILE__, __LINE__, #condition " does not hold"); \
  } while (false)

#define CHECK_EQ(got, want) check::equal(__FILE__, __LINE__, #got " == " #want, got, want)

// The expression throws E and its message contains every one of the parts.
#define CHECK_THROWS(E, expression, ...)                                                                    \
  do {                                                                                                      \
    const auto message = check::thrown<E>([&] { expression; });                                             \
    if (!message) check::fault(__FILE__, __LINE__, #expression " did not throw " #E);                       \
    for (const char* part : {__VA_ARGS__}) {                                                                \
      if (message && message->find(part) == std::string::npos)                                              \
        check::fault(                                                                                       \
            __FILE__, __LINE__,                                                                             \
            #expression " threw " + check::show(*message) + ", without " + check::show(std::string(part))); \
    }                                                                                                       \
  } while (false)
