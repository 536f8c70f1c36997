#include "kubernetes/dra/kubelet/dra_node.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "kubernetes/dra/device_facts.h"
#include "kubernetes/dra/driver_settings.h"
#include "kubernetes/dra/driver_sockets.h"
#include "kubernetes/files.h"

namespace nvshare::kubernetes::dra {
namespace {

Result<void> make_way_for_sockets(const Settings& settings) {
  const std::string registration = registration_socket_of(settings);
  const std::string service = service_socket_of(settings);
  const std::string folder = service.substr(0, service.rfind('/'));
  if (mkdir(folder.c_str(), 0750) != 0 && errno != EEXIST)
    return error_format("cannot make the folder %.150s: %s", folder.c_str(), strerror(errno));
  for (const std::string& socket : {registration, service}) {
    if (auto ok = check_is_free(socket); !ok) return ok;
  }
  remove_dead_sockets(settings.registry_dir, kDriverName, "-reg.sock");
  remove_dead_sockets(folder, "dra", ".sock");
  return {};
}

}  // namespace

DraNode::DraNode(Options options)
    : options_(std::move(options)),
      gpus_(options_.gpus),
      reader_(options_.api_server),
      status_(loop_, options_.api_server, options_.settings.node_name, StatusWriter::Pace{}),
      recorder_(loop_, options_.api_server, options_.settings.node_name, options_.event_pace) {}

Result<std::unique_ptr<DraNode>> DraNode::open(Options options) {
  std::unique_ptr<DraNode> node(new DraNode(std::move(options)));
  if (auto ok = node->begin(); !ok) return ok.error();
  return node;
}

Result<void> DraNode::begin() {
  const Settings& settings = options_.settings;
  const DeviceModels models = models_of(options_.gpus, settings.division);
  if (models.empty()) return error_format("this node has no GPU that can be offered");
  if (auto ok = make_way_for_sockets(settings); !ok) return ok;
  DriverOptions driver;
  driver.pool = settings.node_name;
  driver.devices = models;
  driver.priority_max = settings.pod_priority_max;
  driver.state_dir = settings.install_dir;
  driver.cdi_dir = settings.cdi_dir;
  driver.runtime_dir = settings.runtime_dir;
  driver.mounts = mounts_of(settings, options_.files);
  driver.prepared = [this](const Claim& claim) { status_.prepared(claim); };
  driver.watches_pods = true;
  driver.changed = [this](PodLimits::Changes changes) { changed(std::move(changes)); };
  auto opened = ClaimDriver::open(loop_, std::move(driver), [this](const ClaimName& name) { return reader_.read(name); });
  if (!opened) return opened.error();
  driver_ = std::move(*opened);
  watch_pods();
  slices_ =
      std::make_unique<SliceController>(loop_, SliceController::Options{options_.api_server, settings.node_name, options_.pace}, models);
  auto server = DraServer::serve({registration_socket_of(settings), service_socket_of(settings)}, *driver_);
  if (!server) return server.error();
  server_ = std::move(*server);
  server_->set_health(settings.node_name, models);
  std::vector<Gpu> offered;
  for (const DeviceFacts& one : options_.gpus) {
    if (find_device(models, device_name(one.gpu.uuid)) != nullptr) offered.push_back(one.gpu);
  }
  health_ = std::make_unique<HealthWatch>(
      HealthWatch::Options{std::move(offered), std::chrono::nanoseconds(settings.health_interval), settings.runtime_dir,
                           std::chrono::nanoseconds(settings.scheduler_patience),
                           [this](const std::vector<protocol::admin::PodNotice>& notices) { noticed(notices); }},
      [this](const Gpu& gpu, bool healthy, const std::string& why) { set_health(gpu, healthy, why); });
  return {};
}

// ---- pods ----

void DraNode::watch_pods() {
  const Result<std::string> there = read_file(driver_->pods_record_path());
  store_.add(driver_->pods_record_path(), there ? *there : "", [this] { return driver_->pods_record(); });
  const auto listed = [this](const std::vector<std::string>& texts) {
    std::vector<WatchedPod> pods;
    for (const std::string& text : texts) {
      if (auto pod = read(text)) pods.push_back(std::move(*pod));
    }
    driver_->pods_listed(pods);
  };
  const auto changed = [this](const std::string& text) {
    if (const auto pod = read(text)) driver_->pod_changed(*pod);
  };
  const auto deleted = [this](const std::string& text) {
    if (const auto pod = read(text)) driver_->pod_deleted(pod->uid);
  };
  pods_ = std::make_unique<ObjectWatch>(pods_loop_, options_.api_server, ObjectWatch::pods_of(options_.settings.node_name),
                                        ObjectWatch::Listener{listed, {changed, deleted}}, options_.pace);
}

std::optional<WatchedPod> DraNode::read(const std::string& pod) const {
  Result<WatchedPod> read = read_pod(pod, {});  // it asks for claims, not for the device plugin's resources
  if (read) return *read;
  spdlog::warn("{}", read.error().text);
  return std::nullopt;
}

void DraNode::changed(PodLimits::Changes changes) {
  for (PodLimits::Notice& notice : changes.notices) recorder_.record(std::move(notice));
  store_.changed();
}

void DraNode::noticed(const std::vector<protocol::admin::PodNotice>& notices) {
  for (const protocol::admin::PodNotice& notice : notices) {
    const std::string name = driver_->name_of_pod(notice.uid);
    const size_t slash = name.find('/');
    if (slash == std::string::npos) {
      spdlog::warn("pod {}: {}: {}", notice.uid, notice.reason, notice.text);
    } else {
      recorder_.record({notice.uid, name.substr(0, slash), name.substr(slash + 1), true, notice.reason, notice.text});
    }
  }
}

DraNode::~DraNode() {
  health_.reset();
  reader_.interrupt();  // calls of the kubelet that wait for the API server
  server_.reset();
}

void DraNode::set_health(const Gpu& gpu, bool healthy, const std::string& why) {
  Lock lock(mutex_);
  bool changed = false;
  for (DeviceFacts& one : gpus_) {
    if (one.gpu.uuid != gpu.uuid || one.ailment == (healthy ? "" : why)) continue;
    one.ailment = healthy ? "" : why;
    changed = true;
  }
  if (!changed) return;
  if (healthy) {
    spdlog::info("{} is healthy again", shown(gpu));
  } else {
    spdlog::error("{} is unhealthy: {}; it gets no more claims", shown(gpu), why);
  }
  const DeviceModels models = models_of(gpus_, options_.settings.division);
  slices_->set_devices(models);
  server_->set_health(options_.settings.node_name, models);
}

}  // namespace nvshare::kubernetes::dra
