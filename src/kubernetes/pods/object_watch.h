// Follows objects of the API server, such as the pods of one node: a list, then a watch from the list's resource version, for ever, on a
// loop. After any break it goes on from the last version that it saw; when the API server no longer has that, it lists again.
// The listener sees every object's latest state, whatever breaks; not every state in between.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kubernetes/pods/api_client.h"
#include "kubernetes/pods/pod_answers.h"
#include "loop/loop_thread.h"

namespace nvshare::kubernetes {

// Escaped for a query's value.
std::string escaped_for_query(const std::string& text);

class ObjectWatch {
 public:
  struct Watched {
    std::string path;   // with a query: "/api/v1/pods?fieldSelector=..."
    std::string name;   // for messages: "pods' annotations"
    std::string until;  // what holds while the API server does not answer, for messages: "limits stay as they are"
  };
  // Called on the loop's thread; objects as JSON texts.
  struct Listener {
    std::function<void(const std::vector<std::string>& objects)> listed;  // these are all
    PodEvents::Listener events;
  };
  struct Pace {
    std::chrono::milliseconds first_pause{50};      // after something failed; doubled each time, with jitter
    std::chrono::milliseconds longest_pause{5000};  // an outage's end is noticed within this
    std::chrono::milliseconds quiet{90'000};        // bookmarks come about once a minute
    std::chrono::seconds watch{300};                // one watch lasts this long
  };

  ObjectWatch(LoopThread& loop, ApiServerAddress address, Watched watched, Listener listener, Pace pace);
  ~ObjectWatch();
  ObjectWatch(const ObjectWatch&) = delete;
  ObjectWatch& operator=(const ObjectWatch&) = delete;

  static Watched pods_of(const std::string& node);

  int lists() const { return lists_.load(); }  // so far

 private:
  // On the loop's thread, as the members below.
  void go_on();
  void list();
  void watch();
  Result<void> take_list(const Result<ApiReply>& reply);
  Result<void> watch_ended(const Result<ApiReply>& reply);
  void after(const Result<void>& done, bool heard);
  std::chrono::milliseconds jittered(std::chrono::milliseconds longest);

  LoopThread& loop_;
  const Watched watched_;
  const Listener listener_;
  const Pace pace_;
  std::optional<ApiClient> server_;
  std::optional<Timer> next_;        // the next list or watch
  std::optional<PodEvents> events_;  // of the watch that is under way
  std::string version_;              // of the last list or event; empty: list first
  bool latest_wanted_ = false;       // the list must be the latest, not just one not older than version_
  std::chrono::milliseconds pause_;  // the next one
  bool complained_ = false;
  std::minstd_rand random_;
  std::atomic<int> lists_{0};
};

}  // namespace nvshare::kubernetes
