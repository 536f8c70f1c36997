// The short form of a fuzz target, for every compiler: the inputs of its corpus, then as many mutations of them as are asked for, made from
// a fixed seed (NVSHARE_TEST_SEED: another). What an input breaks is the long form's to narrow down: the input is left in a file.
//   TARGET_short RUNS CORPUS...
#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz.h"

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

constexpr size_t kInputMax = 4096;
constexpr const char* kWords[] = {"-1", "0", "1e99", "9223372036854775807", "18446744073709551616", "null", "[]", "{}", "\"\"", "\n", "::"};

std::string current;  // the input that is tried
std::string left_in;

void leave_input() {
  std::ofstream(left_in, std::ios::binary).write(current.data(), static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the input is in %s\n", left_in.c_str());
}

void on_signal(int signal) {
  leave_input();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

class Mutator {
 public:
  Mutator(uint64_t seed, const std::vector<std::string>& corpus) : random_(seed), corpus_(corpus) {}

  std::string next() {
    std::string text = corpus_[below(corpus_.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) change(&text);
    if (text.size() > kInputMax) text.resize(kInputMax);
    return text;
  }

 private:
  size_t below(size_t bound) { return random_() % bound; }

  void change(std::string* text) {
    const size_t at = below(text->size() + 1);
    const size_t length = std::min(below(16) + 1, text->size() - at);
    switch (below(6)) {
      case 0:
        if (at < text->size()) (*text)[at] = static_cast<char>((*text)[at] ^ (1 << below(8)));
        break;
      case 1:
        text->erase(at, length);
        break;
      case 2:
        text->insert(at, 1, static_cast<char>(below(256)));
        break;
      case 3:
        text->insert(at, kWords[below(std::size(kWords))]);
        break;
      case 4:
        text->insert(at, text->substr(below(text->size() + 1), length));
        break;
      default:
        const std::string& other = corpus_[below(corpus_.size())];
        *text = text->substr(0, at) + other.substr(below(other.size() + 1));
        break;
    }
  }

  std::mt19937_64 random_;
  const std::vector<std::string>& corpus_;
};

void run(const std::string& input) {
  current = input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(current.data()), current.size());
}

}  // namespace

int main(int argc, char** argv) {
  const long runs = argc > 2 ? std::strtol(argv[1], nullptr, 10) : 0;
  if (runs <= 0) {
    std::fprintf(stderr, "usage: %s RUNS CORPUS...\n", argv[0]);
    return 2;
  }
  std::vector<std::string> corpus;
  for (int i = 2; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no input in the corpus\n", argv[0]);
    return 2;
  }
  std::sort(corpus.begin(), corpus.end());
  left_in = std::filesystem::path(argv[0]).filename().string() + "-input";
  for (int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS}) std::signal(signal, on_signal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(leave_input);
  const char* seed = std::getenv("NVSHARE_TEST_SEED");
  Mutator mutator(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1, corpus);
  run("");
  for (const std::string& input : corpus) run(input);
  for (long i = 0; i < runs; ++i) run(mutator.next());
  std::printf("%zu inputs, %ld mutations\n", corpus.size(), runs);
  return 0;
}
