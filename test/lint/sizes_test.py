#!/usr/bin/env python3
"""tools/sizes.py counts what it says it counts, and says what exceeds a bound."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import sizes  # noqa: E402

HEADER = """
#define NOT_A_MEMBER(x) int x;
namespace a::b {
template <typename T, int N = sizeof(T)>
class CAPABILITY("mutex") Sample final : public Base<int(T)> {
 public:
  Sample();
  explicit Sample(int x) : x_(x), list_{1, 2}, more_(std::vector<int>{3}) { work(); }
  ~Sample() { end(); }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = default;
  bool operator<(const Sample& other) const { return x_ < other.x_; }
  explicit operator bool() const { return x_ != 0; }
  int one() const;                                  // 1
  static int two(std::function<void(int)> f = {});  // 2
  template <typename F>
  std::map<int, F> three(F f) REQUIRES(mutex_) {    // 3
    if (f) { return {}; }
    return {{1, f}};
  }
  virtual void four() = 0;                          // 4
  [[nodiscard]] auto five() -> std::vector<int>;    // 5
  friend class Other;
  using Call = std::function<void(int)>;
  static constexpr int kShift = 1 << 3;
  enum class Kind : uint8_t { kA, kB };
  struct Nested {
    int a = 0, b = 0;
    char text[sizeof(int) * 2] = {};
    int get() const { return a; }
  };

 private:
  void six();
  int x_ = 0;                                              // 1
  std::vector<int> list_ GUARDED_BY(mutex_) = {1, 2};      // 2
  std::function<void(int, int)> more_, other_;             // 3, 4
  std::atomic<bool> flag_{false};                          // 5
  struct { int inner; } unnamed_;                          // 6
  static int shared_;
};
}  // namespace a::b
"""


def function(lines, above=""):
    return f"namespace n {{\n{above}int C::f(int x) const {{\n" + "  x;\n" * (lines - 2) + "}\n}\n"


class Counts(unittest.TestCase):
    def setUp(self):
        reader = sizes.Reader("x.h", HEADER)
        self.classes = {each.name: each for each in reader.classes}

    def test_functions_of_a_class(self):
        self.assertEqual(self.classes["Sample"].public, 5)
        self.assertEqual(self.classes["Sample"].private, 1)

    def test_members_of_a_class(self):
        self.assertEqual(self.classes["Sample"].members, 6)

    def test_a_nested_class_counts_for_itself(self):
        nested = self.classes["Sample::Nested"]
        self.assertEqual((nested.public, nested.members), (1, 3))

    def test_lines_of_a_function(self):
        found = sizes.Reader("x.cc", function(61)).functions
        self.assertEqual([(each.name, each.lines) for each in found], [("C::f", 61)])

    def test_a_lambda_in_an_initialiser_is_no_function(self):
        source = "const auto f = [](int x) {\n" + "  x;\n" * 70 + "};\nint g() { return 1; }\n"
        self.assertEqual([each.name for each in sizes.Reader("x.cc", source).functions], ["g"])

    def test_a_macro_before_a_function_is_not_part_of_it(self):
        source = "DEFINE_IT(A, b,\n" + " c,\n" * 70 + " d)\nint g() { return 1; }\n"
        self.assertEqual([(each.name, each.lines) for each in sizes.Reader("x.cc", source).functions], [("g", 1)])


class Bounds(unittest.TestCase):
    def problems(self, source):
        reader = sizes.Reader("x.cc", source)
        return sizes.complaints(sizes.excesses(reader.classes, reader.functions))

    def test_what_exceeds_a_bound_is_a_problem(self):
        self.assertEqual(self.problems(function(60)), [])
        self.assertEqual(len(self.problems(function(61))), 1)
        self.assertEqual(self.problems("class C {\n public:\n" + "  void f();\n" * 20 + "};\n"), [])
        self.assertIn("C has 21 public functions, at most 20", self.problems("class C {\n public:\n" + "  void f();\n" * 21 + "};\n")[0])
        self.assertIn("S has 31 members, at most 30", self.problems("struct S {\n" + "  int m;\n" * 31 + "};\n")[0])

    def test_a_reason_above_it_is_enough(self):
        self.assertEqual(self.problems(function(70, "// A table.\n// Long because it is one.\n")), [])


if __name__ == "__main__":
    unittest.main()
