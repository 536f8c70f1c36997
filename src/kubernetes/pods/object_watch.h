// Follows objects of the API server, such as the pods of one node: a list, then a watch from the list's resource version, for ever, on a
// thread of its own. After any break it goes on from the last version that it saw; when the API server no longer has that, it lists again.
// The listener sees every object's latest state, whatever breaks; not every state in between.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "kubernetes/pods/api_server.h"
#include "kubernetes/pods/pod_answers.h"

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
  // Called on the watch's thread; objects as JSON texts.
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

  ObjectWatch(ApiServerAddress address, Watched watched, Listener listener, Pace pace);
  ~ObjectWatch();
  ObjectWatch(const ObjectWatch&) = delete;
  ObjectWatch& operator=(const ObjectWatch&) = delete;

  static Watched pods_of(const std::string& node);

  int lists() const { return lists_.load(); }  // so far

 private:
  void run();
  Result<void> list();
  Result<void> watch(bool* heard);
  void pause(std::chrono::milliseconds longest);

  ApiServer server_;
  const Watched watched_;
  const Listener listener_;
  const Pace pace_;
  std::string version_;         // of the last list or event; empty: list first
  bool latest_wanted_ = false;  // the list must be the latest, not just one not older than version_
  std::minstd_rand random_;
  std::atomic<int> lists_{0};
  Mutex mutex_;
  Condition stopped_;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes
