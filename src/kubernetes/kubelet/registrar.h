// Keeps this plugin known to the kubelet: watches the kubelet's folder, makes our sockets anew when they are gone, registers when the
// kubelet's socket appears or was not heard of, and when another plugin's socket goes: the kubelet takes that end for the resource's, also
// where a newer plugin has registered since (PluginDisconnected goes by the resource's name). On a thread of its own; knows neither gRPC
// nor devices.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace nvshare::kubernetes {

class Registrar {
 public:
  // Of the kubelet's socket: one kubelet's differs from the next one's.
  struct Identity {
    uint64_t device = 0, inode = 0;
    int64_t made_ns = 0;
    bool operator==(const Identity&) const = default;
  };

  // Called on the registrar's thread only. `announce` may block for as long as a call takes; stop() waits for it.
  struct Hooks {
    std::function<bool()> serving;                       // our sockets are all there
    std::function<Result<void>()> serve;                 // makes them, whatever was there before
    std::function<Result<void>()> announce;              // registers every resource
    std::function<bool()> heard;                         // the kubelet watches every resource
    std::function<bool(std::string_view)> another = {};  // whether that socket is another plugin's of the same resources
  };

  // `look_interval`: between two looks at what no event reports. `unheard_patience`: an announced plugin that the kubelet does not watch
  // for so long is announced again.
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
  void announce_again_later();
  Identity kubelet() const;  // zeros: it is not there
  std::chrono::milliseconds until_next_look() const;
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
  Identity announced_to_;
  bool served_anew_ = false;                 // since the last registration
  std::string successor_;                    // a plugin's socket that came after this one registered: this one asks for nothing more
  std::vector<Clock::time_point> again_at_;  // registrations after another plugin has gone
  std::atomic<int> announcements_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last
};

}  // namespace nvshare::kubernetes
