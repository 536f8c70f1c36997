// The API server's answers: a list of pods, then a watch that brings bytes in pieces. Whatever comes, the limits that follow are taken by
// the scheduler. Input: a line with the list, then the watch; the list's first byte says how large the pieces are.
#include "fuzz.h"
#include "kubernetes/pods/pod_answers.h"
#include "pods.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nvshare;
  using namespace nvshare::kubernetes;
  using fuzz::require;
  std::string_view text = fuzz::text_of(data, size);
  const size_t piece = 1 + fuzz::take_byte(&text) % 64;
  PodLimits limits;
  const ResourceNames names = fuzz::resource_names();

  if (const auto list = read_pod_list(fuzz::take_line(&text)); fuzz::good(list)) {
    require(!list->version.empty(), "a list has a version");
    std::vector<WatchedPod> pods;
    for (const std::string& one : list->pods) {
      if (auto pod = read_pod(one, names); fuzz::good(pod)) pods.push_back(std::move(*pod));
    }
    fuzz::require_sendable(limits.replace(pods).limits);
    require(limits.all().size() <= pods.size(), "only pods that were listed are known");
  }

  const PodEvents::Listener listener{[&](const std::string& one) {
                                       if (const auto pod = read_pod(one, names); fuzz::good(pod))
                                         fuzz::require_sendable(limits.update(*pod).limits);
                                     },
                                     [&](const std::string& one) {
                                       const auto pod = read_pod(one, names);
                                       if (!fuzz::good(pod)) return;
                                       fuzz::require_sendable(limits.remove(pod->uid).limits);
                                       for (const auto& left : limits.all())
                                         require(left.uid != pod->uid, "a pod that was deleted is not known any more");
                                     }};
  PodEvents events(listener);
  bool useful = true;
  for (size_t at = 0; at < text.size() && useful; at += piece) useful = events.take(text.substr(at, piece));
  require(useful == !events.failed(), "a watch that is of no more use says why");
  require(events.version().empty() || events.heard(), "a version comes with an event");
  fuzz::require_sendable(limits.all());
  return 0;
}
