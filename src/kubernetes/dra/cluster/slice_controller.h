// Keeps this node's ResourceSlices at the API server as they should be: written, watched, repaired when they were changed or removed (a
// kubelet that starts removes them), written anew when a GPU falls ill. What is to be done comes from resource_slices.h.
//
// The watch only says that something happened; what is there is listed before each step, so that an old event never leads to a write.
#pragma once

#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "kubernetes/dra/device_model.h"
#include "kubernetes/dra/resource_slices.h"
#include "kubernetes/pods/api_server.h"
#include "kubernetes/pods/object_watch.h"

namespace nvshare::kubernetes::dra {

class SliceController {
 public:
  struct Options {
    ApiServerAddress api_server;
    std::string node;
    // Between two tries, and between two writes where something changes the slices each time that they are repaired.
    ObjectWatch::Pace pace;
  };
  // Starts threads.
  SliceController(Options options, DeviceModels devices);
  // The slices stay: a driver that is replaced goes on with them, and of one that is gone the kubelet removes them.
  ~SliceController();
  SliceController(const SliceController&) = delete;
  SliceController& operator=(const SliceController&) = delete;

  // Any thread.
  void set_devices(DeviceModels devices);
  // What keeps the slices from being as they should be; nothing: the last look found them so. Any thread.
  std::optional<std::string> trouble() const;

 private:
  void run();
  void look_again();
  bool wait_for_work(std::chrono::milliseconds pause);  // false: it ends
  Result<bool> step();                                  // true: something was written
  Result<std::vector<Json>> list();
  Result<void> read_node();
  Result<void> write(const SlicePlan& plan);
  Result<void> write_one(const Json& slice, bool is_new);
  void note(const Result<bool>& done);

  const Options options_;
  const std::string slices_path_;
  ApiServer server_;  // of the thread, as the next
  NodeIdentity node_;
  mutable Mutex mutex_;
  Condition changed_;
  DeviceModels devices_ GUARDED_BY(mutex_);
  std::optional<std::string> trouble_ GUARDED_BY(mutex_) = "not published yet";
  bool dirty_ GUARDED_BY(mutex_) = true;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
  ObjectWatch watch_;  // last
};

}  // namespace nvshare::kubernetes::dra
