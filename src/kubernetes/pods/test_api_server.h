// An API server for tests, on loopback with TLS and a CA of its own: lists and watches pods, sends bookmarks, takes events, wants a token,
// and fails in every way that a real one does, when configured to. Any thread may call it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kubernetes/pods/api_server.h"

namespace nvshare::kubernetes {

class TestApiServer {
 public:
  // Writes ca.crt and token into `folder`, as a service account has them. Throws what keeps it from starting.
  explicit TestApiServer(std::string folder);
  ~TestApiServer();

  ApiServerAddress address() const;

  // ---- pods, each a v1.Pod in JSON of namespace "team" on node "node-1" ----
  // `resources`: what its one container asks for. Returns its UID.
  std::string add_pod(const std::string& name, const std::map<std::string, int>& resources, const std::string& uid = "");
  void annotate(const std::string& name, const std::string& annotation, const std::string& value);  // empty: removes it
  void begin_deletion(const std::string& name);  // it gets its deletionTimestamp, and runs on
  void delete_pod(const std::string& name);

  // ---- faults; all but those that say otherwise are over once they have happened ----
  enum class Fault {
    kCutInAnEvent,       // connections end in the middle of an event's line
    kReset,              // connections end with a reset
    kEnd,                // watches end as they do at their timeout
    kExpired,            // watches get 410 inside a 200; older versions are forgotten
    kExpiredStatus,      // the next watch is answered with status 410, older versions are forgotten; running ones are cut
    kErrorEvent,         // watches get an ERROR event of code 500
    kServerErrors,       // running connections are cut, the next three requests get 500
    kTooManyRequests,    // the same with 429
    kRefuseConnections,  // connections are cut and new ones not accepted for 60 ms
    kHandshakeFails,     // connections are cut, the next three end in the middle of TLS
    kSlow,               // connections are cut, the next three answers come 80 ms late
    kGarbage,            // watches get a line that is no JSON
    kSilent,             // running watches get nothing more, and do not end
    kTokenRotated,       // connections are cut, the token is good no more; its file changes once it was refused
    kTruncatedList,      // versions are forgotten, and the next list ends in its middle
  };
  static constexpr int kFaults = 15;
  void fault(Fault fault);
  void bookmark();
  // The next posts of events are refused with these, in this order.
  void refuse_events(const std::vector<int>& statuses);

  // ---- what it saw ----
  std::vector<std::string> events() const;  // bodies of posted events
  int lists() const;
  int watches() const;  // started so far
  int unauthorized() const;
  int refused_events() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace nvshare::kubernetes
