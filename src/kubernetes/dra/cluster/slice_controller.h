// Keeps this node's ResourceSlices at the API server as they should be: written, watched, repaired when they were changed or removed (a
// kubelet that starts removes them), written anew when a GPU falls ill. What is to be done comes from resource_slices.h.
//
// The watch only says that something happened; what is there is listed before each step, so that an old event never leads to a write.
// Lives on a loop.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kubernetes/dra/device_model.h"
#include "kubernetes/dra/resource_slices.h"
#include "kubernetes/pods/api_client.h"
#include "kubernetes/pods/object_watch.h"
#include "loop/loop_thread.h"

namespace nvshare::kubernetes::dra {

class SliceController {
 public:
  struct Options {
    ApiServerAddress api_server;
    std::string node;
    // Between two tries, and between two writes where something changes the slices each time that they are repaired.
    ObjectWatch::Pace pace;
  };
  SliceController(LoopThread& loop, Options options, DeviceModels devices);
  // The slices stay: a driver that is replaced goes on with them, and of one that is gone the kubelet removes them.
  ~SliceController();
  SliceController(const SliceController&) = delete;
  SliceController& operator=(const SliceController&) = delete;

  // Any thread.
  void set_devices(DeviceModels devices);
  // What keeps the slices from being as they should be; nothing: the last look found them so. Any thread.
  std::optional<std::string> trouble() const;

 private:
  struct Write {
    ApiRequest request;
    const char* what;  // "creating"
    Json slice;        // as it is to be there; null: gone
  };
  using Then = std::function<void(const ApiReply&)>;
  void look_again();  // any thread
  // On the loop's thread: a look is a list, and then what it leads to, one request after another.
  void begin_look_if_due();
  void begin_look();
  void send(ApiRequest request, Then then);  // an error ends the look
  void take_list(const ApiReply& reply);
  void take_node(const ApiReply& reply);
  void begin_writes(const SlicePlan& plan);
  void write_next();
  static Result<void> check_written(const Write& write, const ApiReply& reply);
  void end_look(const Result<bool>& done);  // true: something was written
  void note(const Result<bool>& done);

  LoopThread& loop_;
  const Options options_;
  const std::string slices_path_;
  mutable Mutex mutex_;
  DeviceModels devices_ GUARDED_BY(mutex_);
  std::optional<std::string> trouble_ GUARDED_BY(mutex_) = "not published yet";
  bool dirty_ GUARDED_BY(mutex_) = true;
  // Of the loop's thread.
  std::optional<ApiClient> server_;
  std::optional<Timer> next_look_;
  NodeIdentity node_;
  bool is_busy_ = false;                // a look, or the pause after one
  std::chrono::milliseconds pause_{0};  // after this look
  DeviceModels wanted_;                 // of this look, as the next two
  std::vector<Json> seen_;
  std::deque<Write> writes_;
  std::optional<ObjectWatch> watch_;
};

}  // namespace nvshare::kubernetes::dra
