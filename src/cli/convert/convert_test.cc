#include "cli/convert/convert.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "cli/convert/yaml.h"

namespace nvshare::cli::convert {
namespace {

std::string manifest(const std::string& name) {
  std::ifstream file(std::string(MANIFESTS "/") + name);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

Converted converted(const std::string& text, const Options& options = {}) {
  auto made = convert(text, options);
  EXPECT_TRUE(made) << made.error().text;
  return made ? std::move(*made) : Converted{};
}

std::string remarks_of(const Converted& made) {
  std::string text;
  for (const Remark& one : made.remarks) text += std::to_string(one.line) + ": " + (one.failed ? "left as it was: " : "") + one.text + "\n";
  return text;
}

Options with_share() {
  Options options;
  options.memory = 6ULL << 30;
  options.cores = 25;
  return options;
}

// The text and the remarks as they are kept beside the manifest. NVSHARE_WRITE_MANIFESTS=1 writes them anew, to be read before they are
// committed.
void expect_as_kept(const std::string& name, const Options& options) {
  SCOPED_TRACE(name);
  const Converted made = converted(manifest(name), options);
  const std::string stem = name.substr(0, name.rfind('.'));
  if (std::getenv("NVSHARE_WRITE_MANIFESTS") != nullptr) {
    std::ofstream(std::string(MANIFESTS "/") + stem + ".converted.yaml") << made.text;
    std::ofstream(std::string(MANIFESTS "/") + stem + ".remarks") << remarks_of(made);
  }
  EXPECT_EQ(made.text, manifest(stem + ".converted.yaml"));
  EXPECT_EQ(remarks_of(made), manifest(stem + ".remarks"));
  EXPECT_FALSE(made.failed);

  // What was converted asks for no GPU by a resource any more, and stays as it is.
  const Converted again = converted(made.text, options);
  EXPECT_EQ(again.text, made.text);
  EXPECT_EQ(again.templates, 0);
}

TEST(Convert, ManifestsOfThePlugin) { expect_as_kept("plugin.yaml", {}); }
TEST(Convert, ManifestsOfTimeSlicing) { expect_as_kept("time-slicing.yaml", with_share()); }
TEST(Convert, ManifestsOfHami) { expect_as_kept("hami.yaml", {}); }
// A tag alone, which the entry after it ends.
TEST(Convert, WhatWouldBeNoYamlIsRefused) {
  const std::string before = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: b, resources: {limits: {cpu: ";
  const std::string after = ", nvshare.com/gpu: 1}}}]}\n";
  const auto refused = convert(before + "!" + after, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(std::string(refused.error().text).find("would be no YAML once it is converted"), std::string::npos) << refused.error().text;
  EXPECT_EQ(converted(before + "'1'" + after).templates, 1);
}

TEST(Convert, AListInJson) { expect_as_kept("list.json", {}); }

// Every line that asks for no GPU is there, in its order and to the byte.
TEST(Convert, OtherLinesAndCommentsSurvive) {
  const std::vector<std::string> after = lines_in(converted(manifest("plugin.yaml")).text);
  size_t at = 0;
  for (const std::string& line : lines_in(manifest("plugin.yaml"))) {
    const bool goes = line.find("nvshare.com/gpu") != std::string::npos && line.find("script stays") == std::string::npos &&
                      line.find("print(") == std::string::npos && line.find("annotations") == std::string::npos &&
                      line.find("gpu-core-limit") == std::string::npos;
    const bool emptied = line == "          limits:" || line == "                limits:";  // nothing was left in some of them
    if (goes || emptied) continue;
    while (at < after.size() && after[at] != line) ++at;
    ASSERT_LT(at, after.size()) << "lost: " << line;
    ++at;
  }
}

TEST(Convert, WithoutGpusNothingChanges) {
  for (const char* text : {"", "# nothing\n", "---\n---\n", "kind: Pod\nspec:\n", "kind: Pod\nspec: {containers: }\n",
                           "kind: Pod\nspec:\n  containers:\n  - name: a\n    resources: {}\n  - null\n"}) {
    const Converted made = converted(text);
    EXPECT_EQ(made.text, text);
    EXPECT_TRUE(made.remarks.empty()) << text << remarks_of(made);
  }
}

// It was passed on as if it had been looked at.
TEST(Convert, WhatIsNoManifestIsRefused) {
  const std::string pod = "# a pod\nkind: Pod\nspec:\n---\n";
  for (const std::string& text : {std::string("Dear all,"), std::string("a: [1, 2]\n"), std::string("- x\n- y\n"), std::string("kind:\n"),
                                  std::string("kind: {a: b}\n"), std::string("gpu: {count: 1}\nimage: nvidia\n")}) {
    const auto refused = convert(text, {});
    ASSERT_FALSE(refused) << text;
    EXPECT_NE(std::string(refused.error().text).find("line 1: no manifest"), std::string::npos) << refused.error().text;
    const auto second = convert(pod + text, {});
    ASSERT_FALSE(second) << text;
    EXPECT_NE(std::string(second.error().text).find("line 5: no manifest"), std::string::npos) << second.error().text;
  }
}

TEST(Convert, NvidiasGpusStayWithoutAShare) {
  const Converted made = converted(manifest("time-slicing.yaml"));
  EXPECT_EQ(made.text, manifest("time-slicing.yaml"));
  EXPECT_EQ(made.templates, 0);
  EXPECT_FALSE(made.failed);
  EXPECT_NE(remarks_of(made).find("24: Deployment time-slicing-verification: container vector-add: nvidia.com/gpu is left as it is"),
            std::string::npos)
      << remarks_of(made);
}

std::string pod_with(const std::string& resources) {
  return "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n    - name: main\n      resources:\n" + resources;
}

TEST(Convert, AnEvenPartForEachGpuRoundedToMebibytes) {
  Options options;
  options.memory_unit = 100ULL << 20;
  const Converted made = converted(
      pod_with(
          "        limits:\n          nvshare.com/gpu: 3\n          nvshare.com/gpu-memory: 10\n          nvshare.com/gpu-core: 100\n"),
      options);
  EXPECT_NE(made.text.find(
                "count: 3\n            capacity:\n              requests:\n                memory: 334Mi\n                cores: \"33\"\n"),
            std::string::npos)
      << made.text;
  EXPECT_NE(remarks_of(made).find("100 % of compute over 3 GPUs is 33 % of each"), std::string::npos) << remarks_of(made);
}

TEST(Convert, WhatTakesAWholeGpuIsSaid) {
  const std::string text = pod_with("        limits:\n          nvshare.com/gpu: 1\n");
  EXPECT_NE(remarks_of(converted(text)).find("takes whole GPUs; --memory and --cores"), std::string::npos);
  Options options;
  options.memory = 1ULL << 30;
  EXPECT_NE(remarks_of(converted(text, options)).find("takes 100 % of a GPU"), std::string::npos);
  options.cores = 10;
  const Converted made = converted(text, options);
  EXPECT_TRUE(made.remarks.empty()) << remarks_of(made);
  EXPECT_NE(made.text.find("memory: 1Gi\n                cores: \"10\"\n"), std::string::npos) << made.text;
}

TEST(Convert, OneTemplateForWhatIsAlike) {
  const std::string pod = pod_with("        limits: {nvshare.com/gpu: 1, nvshare.com/gpu-memory: 4}\n");
  const std::string job = "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: p}\nspec:\n  template:\n    spec:\n      containers:\n";
  const std::string alike = job + "      - name: main\n        resources: {limits: {nvshare.com/gpu: 1, nvshare.com/gpu-memory: 4}}\n";
  EXPECT_EQ(converted(pod + alike).templates, 1);
  const std::string other = job + "      - name: main\n        resources: {limits: {nvshare.com/gpu: 1, nvshare.com/gpu-memory: 5}}\n";
  const Converted made = converted(pod + other);
  EXPECT_EQ(made.templates, 2);
  EXPECT_NE(made.text.find("name: p-gpu-2\n"), std::string::npos) << made.text;
  const Converted taken = converted("kind: ResourceClaimTemplate\nmetadata: {name: p-gpu}\n---\n" + pod);
  EXPECT_NE(taken.text.find("  name: p-gpu-2\n"), std::string::npos) << taken.text;
}

TEST(Convert, AnInitContainerThatNeedsMoreHasItsOwnPart) {
  const Converted made = converted(
      "kind: Pod\nmetadata: {name: p}\nspec:\n  initContainers:\n  - name: first\n    resources: {limits: {nvshare.com/gpu: 1, "
      "nvshare.com/gpu-memory: 8, nvshare.com/gpu-core: 5}}\n  containers:\n  - name: main\n    resources: {limits: {nvshare.com/gpu: 1, "
      "nvshare.com/gpu-memory: 4, nvshare.com/gpu-core: 5}}\n");
  EXPECT_NE(made.text.find("{\"name\": \"gpu\", \"request\": \"first\"}"), std::string::npos) << made.text;
  EXPECT_NE(remarks_of(made).find("container first: an init container that asks for more"), std::string::npos) << remarks_of(made);
}

TEST(Convert, LinesThatEndAsOnWindowsAndATextThatEndsWithoutOne) {
  std::string text;
  for (const std::string& line : lines_in(pod_with("        limits:\n          nvshare.com/gpu: 1\n          nvshare.com/gpu-memory: 4"))) {
    text += (text.empty() ? "" : "\r\n") + line;
  }
  const Converted made = converted(text);
  EXPECT_EQ(made.templates, 1);
  for (size_t at = made.text.find('\n'); at != std::string::npos; at = made.text.find('\n', at + 1))
    ASSERT_EQ(made.text[at - 1], '\r') << at;
  auto documents = read_documents(made.text);
  ASSERT_TRUE(documents);
  EXPECT_EQ(documents->size(), 2u);
}

TEST(Convert, DirectivesAndAByteOrderMark) {
  const std::string pod = pod_with("        limits: {nvshare.com/gpu: 1, nvshare.com/gpu-memory: 4}\n");
  for (const std::string& head : {std::string("%YAML 1.1\n---\n"), std::string("\xEF\xBB\xBF"), std::string("--- # first\n")}) {
    const Converted made = converted(head + pod);
    EXPECT_EQ(made.templates, 1) << head;
    auto documents = read_documents(made.text);
    ASSERT_TRUE(documents) << documents.error().text << "\n" << made.text;
    EXPECT_EQ(documents->size(), 2u) << made.text;
  }
}

struct Wrong {
  const char* text;
  const char* said;
};

// Nothing of such an object changes.
TEST(Convert, WhatCannotBeConvertedIsLeftAndNamed) {
  const Wrong wrongs[] = {
      {"        limits: {nvshare.com/gpu-memory: 4}\n", "nvshare.com/gpu-memory without nvshare.com/gpu: no GPU is asked for"},
      {"        limits: {nvshare.com/gpu: 1, nvshare.com/gpu-memory: 4Gi}\n", "nvshare.com/gpu-memory: '4Gi'; accepted: a whole number"},
      {"        limits: {nvshare.com/gpu: 33}\n", "accepted: a whole number from 0 to 32"},
      {"        limits: {nvshare.com/gpu: -1}\n", "accepted: a whole number from 0 to 32"},
      {"        limits: {nvshare.com/gpu: {{ .Values.gpus }}}\n", "convert what 'helm template' writes"},
      {"        limits: {nvshare.com/gpu: 1, nvshare.com/gpu-core: 101}\n", "accepted: 1 to 100 for each of its GPUs"},
      {"        limits: {nvshare.com/gpu: 1, nvidia.com/gpu: 1}\n", "which of them is meant?"},
      {"        limits: {nvshare.com/gpu: 1}\n        requests: {nvshare.com/gpu: 2}\n", "accepted: the same in both"},
      {"        limits: {nvidia.com/gpu: 1, nvidia.com/gpucores: 200}\n",
       "nvidia.com/gpucores: '200'; accepted: a whole number from 0 to 100"},
      {"        limits: &l {nvshare.com/gpu: 1}\n    - name: second\n      resources: {limits: *l}\n",
       "is used elsewhere as *l: write it out"},
      {"        limits: [nvshare.com/gpu]\n    - name: second\n      resources: {limits: {nvshare.com/gpu: 1}}\n", "limits is no mapping"},
      {"        <<: {limits: {nvshare.com/gpu: 1}}\n", "takes in another mapping with '<<'"},
      {"        limits: {nvshare.com/gpu: 1}\n        claims: all\n", "claims is no list"},
      {"        limits: {nvshare.com/gpu: 20}\n    - name: second\n      resources: {limits: {nvshare.com/gpu: 20}}\n",
       "one claim has at most 32"},
  };
  for (const Wrong& wrong : wrongs) {
    const std::string text = pod_with(wrong.text);
    const Converted made = converted(text);
    EXPECT_TRUE(made.failed) << wrong.text;
    EXPECT_EQ(made.text, text);
    EXPECT_NE(remarks_of(made).find(wrong.said), std::string::npos) << wrong.text << remarks_of(made);
  }
}

TEST(Convert, OtherPlacesAreNamed) {
  const Converted job = converted("kind: PyTorchJob\nspec:\n  x:\n    limits:\n      nvshare.com/gpu: 1\n");
  EXPECT_TRUE(job.failed);
  EXPECT_EQ(remarks_of(job), "5: left as it was: nvshare.com/gpu in limits: no pod of a kind that is known here; it is left as it was\n");
  const Converted quota = converted("kind: ResourceQuota\nspec:\n  hard:\n    requests.nvshare.com/gpu: 8\n");
  EXPECT_FALSE(quota.failed);
  EXPECT_NE(remarks_of(quota).find("gpu.nvshare.com.deviceclass.resource.k8s.io/devices"), std::string::npos) << remarks_of(quota);
  const Converted nameless = converted("kind: Pod\nspec:\n  containers:\n  - name: a\n    resources: {limits: {nvshare.com/gpu: 1}}\n");
  EXPECT_TRUE(nameless.failed);
  EXPECT_NE(remarks_of(nameless).find("metadata.name is needed"), std::string::npos);
}

TEST(Convert, WhatIsNoYamlIsAnErrorWithItsLine) {
  const std::string deep(300, '[');
  const Wrong wrongs[] = {
      {"a: b\n  c: d\n", "line 2: "}, {"a: 1\nb: 2\na: 3\n", "line 3: 'a' is there twice"}, {"x: \"never ends\n", "line "},
      {"a: \xff\n", "line 1: "},      {deep.c_str(), "nested more than 100 times"},         {"a: {b: 1\n", "line "}};
  for (const Wrong& wrong : wrongs) {
    auto made = convert(wrong.text, {});
    ASSERT_FALSE(made) << wrong.text;
    EXPECT_NE(std::string(made.error().text).find(wrong.said), std::string::npos) << made.error().text;
  }
}

// Texts that were cut and changed at random: an error or a text, and no crash.
TEST(Convert, DamagedManifests) {
  uint64_t state = 1;
  const auto random = [&](size_t bound) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<size_t>(state >> 33) % bound;
  };
  int read = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text = manifest(i % 2 == 0 ? "plugin.yaml" : "hami.yaml");
    text.resize(1 + random(text.size()));
    for (size_t n = random(4); n > 0; --n) text[random(text.size())] = " \n:-{}[]&*#\"'a1\t"[random(16)];
    auto made = convert(text, with_share());
    if (!made) continue;
    ++read;
    EXPECT_TRUE(read_documents(made->text)) << "from " << text << "\nto " << made->text;
  }
  EXPECT_GT(read, 200);
}

}  // namespace
}  // namespace nvshare::cli::convert
