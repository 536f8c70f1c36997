// Keeps this plugin known to the kubelet: watches the kubelet's folder, makes our sockets anew when they are gone, registers when the
// kubelet's socket appears or was not heard of. On a thread of its own; knows neither gRPC nor devices.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "base/fd.h"
#include "base/result.h"

namespace nvshare::kubernetes {

class Registrar {
 public:
  // Called on the registrar's thread only. `announce` may block for as long as a call takes; stop() waits for it.
  struct Hooks {
    std::function<bool()> serving;           // our sockets are all there
    std::function<Result<void>()> serve;     // makes them, whatever was there before
    std::function<Result<void>()> announce;  // registers every resource
    std::function<bool()> heard;             // the kubelet watches every resource
  };

  // `look_interval`: between two looks at what no event tells. `unheard_patience`: an announced plugin that the kubelet does not watch for
  // so long is announced again.
  Registrar(std::string kubelet_dir, Hooks hooks, std::chrono::milliseconds look_interval = std::chrono::seconds(2),
            std::chrono::milliseconds unheard_patience = std::chrono::seconds(5));
  ~Registrar();
  Registrar(const Registrar&) = delete;
  Registrar& operator=(const Registrar&) = delete;

  void stop();  // returns when the thread has ended; nothing is called afterwards

  // Registrations that succeeded since the start.
  int announcements() const { return announcements_.load(); }

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  bool watch_folder();
  void take_events();
  void look();
  void wait(std::chrono::milliseconds longest);

  const std::string folder_;
  const Hooks hooks_;
  const std::chrono::milliseconds look_interval_, unheard_patience_;
  FileDescriptor wake_;  // eventfd: stop() was called
  FileDescriptor events_;
  int watch_ = -1;
  bool announced_ = false;
  bool complained_ = false;  // about the folder or the kubelet, once until it is well again
  std::chrono::milliseconds pause_{0};
  Clock::time_point heard_at_;
  std::atomic<int> announcements_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes
