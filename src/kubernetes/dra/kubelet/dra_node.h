// The DRA driver put together: claims, slices, health, the kubelet's services. One object in a process (a test may have several). No gRPC
// in this header.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kubernetes/devices/gpus.h"
#include "kubernetes/dra/claim_driver.h"
#include "kubernetes/dra/cluster/claim_reader.h"
#include "kubernetes/dra/cluster/slice_controller.h"
#include "kubernetes/dra/cluster/status_writer.h"
#include "kubernetes/dra/device_model.h"
#include "kubernetes/dra/kubelet/dra_server.h"
#include "kubernetes/pods/event_recorder.h"
#include "kubernetes/pods/state_store.h"
#include "kubernetes/settings.h"

namespace nvshare::kubernetes::dra {

class DraNode {
 public:
  struct Options {
    Settings settings;
    ApiServerAddress api_server;
    InstalledFiles files;
    std::vector<DeviceFacts> gpus;
    ObjectWatch::Pace pace;
    EventRecorder::Pace event_pace;
  };
  // Starts threads. An error: there is nothing to offer, another driver runs with the same folder, the record is a later version's, the
  // kubelet's folders cannot be written.
  static Result<std::unique_ptr<DraNode>> open(Options options);
  ~DraNode();
  DraNode(const DraNode&) = delete;
  DraNode& operator=(const DraNode&) = delete;

  // A GPU's health, as NVML (or a test) sees it. Any thread.
  void set_health(const Gpu& gpu, bool healthy, const std::string& why);
  bool registered() const { return server_->registered(); }
  std::optional<std::string> slice_trouble() const { return slices_->trouble(); }
  size_t prepared() const { return driver_->prepared(); }

 private:
  explicit DraNode(Options options);
  Result<void> begin();
  void watch_pods();
  std::optional<WatchedPod> read(const std::string& pod) const;
  void changed(PodLimits::Changes changes);
  void noticed(const std::vector<protocol::admin::PodNotice>& notices);

  const Options options_;
  Mutex mutex_;
  std::vector<DeviceFacts> gpus_ GUARDED_BY(mutex_);
  ClaimReader reader_;
  // In this order: a part that calls ends before the one that it calls.
  LoopThread loop_;       // none of its steps takes the claim driver's mutex
  LoopThread pods_loop_;  // of the watch of pods, whose steps take it, and so may wait as long as a claim does
  StatusWriter status_;
  EventRecorder recorder_;
  std::unique_ptr<ClaimDriver> driver_;
  StateStore store_;
  std::unique_ptr<ObjectWatch> pods_;
  std::unique_ptr<SliceController> slices_;
  std::unique_ptr<DraServer> server_;
  std::unique_ptr<HealthWatch> health_;
};

}  // namespace nvshare::kubernetes::dra
