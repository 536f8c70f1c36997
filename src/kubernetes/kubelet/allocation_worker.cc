#include "kubernetes/kubelet/allocation_worker.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/nanoseconds.h"

namespace nvshare::kubernetes {
namespace {

constexpr std::chrono::milliseconds kBetweenLists{100};
constexpr std::chrono::milliseconds kLongestPause{60'000};
constexpr std::chrono::milliseconds kBetweenLooks{1000};  // whether a listener waits for a list

}  // namespace

AllocationWorker::AllocationWorker(Node& node, List list, std::chrono::milliseconds patience)
    : node_(node), list_(std::move(list)), patience_(patience), thread_([this] { run(); }) {}

AllocationWorker::~AllocationWorker() {
  {
    Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void AllocationWorker::prefer(Resource resource, std::vector<std::string> available, std::vector<std::string> must, int size, Chosen done) {
  ask({resource, std::move(available), std::move(must), size, std::move(done), {}, {}});
}

void AllocationWorker::pre_start(Resource resource, std::vector<std::string> ids, Admitted done) {
  if (ids.empty()) return done("a container starts that names no device of " + node_.name_of(resource));
  ask({resource, std::move(ids), {}, 0, {}, std::move(done), {}});
}

void AllocationWorker::ask(Question question) {
  question.until = std::chrono::steady_clock::now() + patience_;
  {
    Lock lock(mutex_);
    asked_.push_back(std::move(question));
  }
  changed_.notify_one();
}

void AllocationWorker::run() {
  std::deque<Question> open;
  bool due = true;  // the kubelet may have containers already
  std::chrono::milliseconds pause = kBetweenLists;
  Lock lock(mutex_);
  while (true) {
    const auto somebody = [this]() REQUIRES(mutex_) { return stop_ || !asked_.empty(); };
    if (!open.empty()) {
      changed_.wait_for(mutex_, nanoseconds_of(kBetweenLists), somebody);
    } else if (!due) {
      changed_.wait_for(mutex_, nanoseconds_of(kBetweenLooks), somebody);
    }
    std::move(asked_.begin(), asked_.end(), std::back_inserter(open));
    asked_.clear();
    if (stop_) break;
    lock.unlock();
    if (due || !open.empty() || node_.incomplete()) {
      const std::optional<std::string> failed = list_once();
      open.erase(std::remove_if(open.begin(), open.end(), [&](Question& question) { return answer(question, failed); }), open.end());
      due = failed || node_.incomplete();
    }
    lock.lock();
    if (!due) {
      pause = kBetweenLists;
    } else if (open.empty()) {
      changed_.wait_for(mutex_, nanoseconds_of(pause), somebody);
      pause = std::min(pause * 2, kLongestPause);
    }
  }
  lock.unlock();
  for (Question& question : open) {
    if (question.chosen) question.chosen(node_.prefer(question.resource, std::move(question.ids), question.must, question.size));
    if (question.admitted) question.admitted("the device plugin is about to end; the kubelet tries again");
  }
}

// Why it failed; nothing when it did not.
std::optional<std::string> AllocationWorker::list_once() {
  auto listed = list_();
  if (!listed) {
    spdlog::warn("the kubelet's list of devices: {}", listed.error().text);
    return listed.error().text;
  }
  node_.update(std::move(*listed));
  return std::nullopt;
}

// False: later, with another list.
bool AllocationWorker::answer(Question& question, const std::optional<std::string>& list_failed) {
  if (question.chosen) {  // advice may rest on an old list
    question.chosen(node_.prefer(question.resource, std::move(question.ids), question.must, question.size));
    return true;
  }
  bool late = std::chrono::steady_clock::now() >= question.until;
  if (list_failed) {
    if (late) question.admitted("cannot tell which container this is: " + *list_failed);
    return late;
  }
  Admission admission = node_.admit(question.resource, question.ids);
  switch (admission.kind) {
    case Admission::Kind::kGranted:
      question.admitted(std::nullopt);
      return true;
    case Admission::Kind::kRefused:
      spdlog::warn("refused: {}", admission.reason);
      question.admitted(admission.reason);
      return true;
    case Admission::Kind::kNotListed:
      break;
  }
  if (!late) return false;
  if (question.resource == Resource::kGpu) {
    // An init container whose devices no later container has: the kubelet lists only the later ones. It has no memory of its own to count.
    spdlog::info("a container starts with {}, which the kubelet does not list; an init container, it seems", question.ids.front());
    question.admitted(std::nullopt);
  } else {
    question.admitted(node_.name_of(question.resource) + ": " + admission.reason +
                      "; an init container may only have what a later container of its pod has as well");
  }
  return true;
}

}  // namespace nvshare::kubernetes
