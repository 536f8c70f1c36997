// The kubelet's checkpoint: refused with a reason, or grants that the scheduler takes and whose record is read again as it was.
#include "fuzz.h"
#include "kubernetes/pods/checkpoint.h"
#include "kubernetes/pods/pod_allocations.h"
#include "pods.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nvshare;
  using namespace nvshare::kubernetes;
  using fuzz::require;
  const ResourceNames names = fuzz::resource_names();
  const auto checkpoint = read_checkpoint(fuzz::text_of(data, size), names);
  if (!fuzz::good(checkpoint)) return 0;
  for (const std::string& why : checkpoint->unread) require(why.find('\n') == std::string::npos, "what was not understood is one line");
  require(checkpoint->unread.empty() == (checkpoint->whole && checkpoint->half_read.empty()), "what is missing is said");

  PodAllocations grants(names.division);
  grants.read(*checkpoint);
  grants.named({{"team", "train", "main", {"GPU-a::0"}, {}, {}}});
  std::vector<protocol::admin::PodRequest> limits;
  for (const auto& [uid, pod] : grants.pods()) {
    require(pod.allocation.memory >= 0 && pod.allocation.core >= 1 && pod.allocation.core <= 100, "a grant is possible");
    limits.push_back(limits_with(nullptr, &pod.allocation, uid, pod.name));
  }
  fuzz::require_sendable(limits);

  PodAllocations again(names.division);
  const auto left_out = again.restore(grants.record());
  require(fuzz::good(left_out) && left_out->empty(), "the record of grants is read again");
  require(again.record() == grants.record(), "the record says the same again");
  const size_t pods = grants.pods().size();
  grants.read(*checkpoint);
  require(grants.pods().size() == pods, "the same checkpoint again changes nothing");
  return 0;
}
