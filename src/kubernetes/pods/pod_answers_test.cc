#include "kubernetes/pods/pod_answers.h"

#include <gtest/gtest.h>

namespace nvshare::kubernetes {
namespace {

const std::string kDeep = std::string(100, '[') + std::string(100, ']');

struct Heard {
  std::vector<std::string> changed, deleted;
  PodEvents::Listener listener{[this](const std::string& pod) { changed.push_back(pod); },
                               [this](const std::string& pod) { deleted.push_back(pod); }};
};

TEST(PodAnswers, AListHasAVersionAndItems) {
  const auto list = read_pod_list(R"({"metadata":{"resourceVersion":"7"},"items":[{"a":1},3]})");
  ASSERT_TRUE(list) << list.error().text;
  EXPECT_EQ(list->version, "7");
  EXPECT_EQ(list->pods, (std::vector<std::string>{R"({"a":1})", "3"}));
  for (const std::string& bad :
       {std::string(), std::string("["), std::string("[]"), std::string(R"({"items":[]})"), std::string(R"({"metadata":[],"items":[]})"),
        std::string(R"({"metadata":{"resourceVersion":7},"items":[]})"), std::string(R"({"metadata":{"resourceVersion":"7"},"items":{}})"),
        R"({"metadata":{"resourceVersion":"7"},"items":[)" + kDeep + "]}"}) {
    EXPECT_FALSE(read_pod_list(bad)) << bad;
  }
}

TEST(PodAnswers, EventsComeInPiecesOfAnySize) {
  const std::string text = R"({"type":"ADDED","object":{"metadata":{"resourceVersion":"8"}}}

{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}
{"type":"DELETED","object":{}}
)";
  for (const size_t piece : {size_t{1}, size_t{7}, text.size()}) {
    Heard heard;
    PodEvents events(heard.listener);
    for (size_t at = 0; at < text.size(); at += piece) EXPECT_TRUE(events.take(std::string_view(text).substr(at, piece)));
    EXPECT_EQ(heard.changed, std::vector<std::string>{R"({"metadata":{"resourceVersion":"8"}})"});
    EXPECT_EQ(heard.deleted, std::vector<std::string>{"{}"});
    EXPECT_EQ(events.version(), "9");
    EXPECT_TRUE(events.heard());
    EXPECT_FALSE(events.failed());
  }
}

TEST(PodAnswers, WhatIsNoEventEndsTheWatchWithAReason) {
  const auto reason = [](const std::string& bytes) {
    Heard heard;
    PodEvents events(heard.listener);
    EXPECT_FALSE(events.take(bytes));
    EXPECT_FALSE(events.heard());
    EXPECT_FALSE(events.take("\n")) << "nor is it of use later";
    return events.failed().value_or("none");
  };
  EXPECT_EQ(reason("{}\n"), "what came is no event of a watch");
  EXPECT_EQ(reason("{\"type\":\"ADDED\"}\n"), "what came is no event of a watch");
  EXPECT_EQ(reason("{\"type\":\"ADDED\",\"object\":" + kDeep + "}\n"), "what came is no event of a watch");
  EXPECT_EQ(reason("{\"type\":\"ERROR\",\"object\":{\"code\":410}}\n"), R"(the API server ended the watch: {"code":410})");
  EXPECT_EQ(reason(std::string((16u << 20) + 1, ' ')), "an event of a watch is longer than 16 MiB");
}

}  // namespace
}  // namespace nvshare::kubernetes
