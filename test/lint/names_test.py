#!/usr/bin/env python3
"""tools/names.py sees what unnamed namespaces define, and which sources of a layer define the same."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import names  # noqa: E402

SOURCE = """
namespace nvshare::policy {
namespace {

namespace admin = protocol::admin;
constexpr int64_t kPause_ns = 50'000;  // a while
constexpr char kWords[] = "a = b";
struct Row {
  int inner = 0;
};
class Later;
using Rows = std::vector<Row>;
std::mutex mutex_of_all;

template <class T>
bool same(const T& left, const T& right) {
  return left == right;
}

}  // namespace

int kPublic = 1;
}  // namespace nvshare::policy
"""


class Names(unittest.TestCase):
    def test_what_unnamed_namespaces_define(self):
        found = [name for _, space, name in names.names_of(SOURCE) if space == "nvshare::policy::"]
        self.assertEqual(["kPause_ns", "kWords", "Row", "Rows", "mutex_of_all", "same(const T& left, const T& right)"], found)

    def test_a_name_of_two_sources_is_a_problem_unless_one_stays_apart(self):
        with tempfile.TemporaryDirectory() as folder:
            root, paths = pathlib.Path(folder), ["src/policy/CMakeLists.txt", "src/policy/a.cc", "src/policy/b.cc", "src/policy/b_test.cc"]
            (root / "src/policy").mkdir(parents=True)
            for path in paths:
                (root / path).write_text(SOURCE)
            self.assertEqual(6, len(names.problems(root, paths)))
            (root / paths[0]).write_text("nvshare_unity(nvshare_policy APART b.cc)")
            self.assertEqual([], names.problems(root, paths))
            (root / paths[0]).write_text("set_source_files_properties(b.cc PROPERTIES COMPILE_DEFINITIONS X)")
            self.assertEqual([], names.problems(root, paths))


if __name__ == "__main__":
    unittest.main()
