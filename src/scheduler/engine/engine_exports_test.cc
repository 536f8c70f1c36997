// Who may open whose memory by legacy IPC.
#include <unistd.h>

#include <string>

#include "scheduler/testing/test_engine.h"

namespace nvshare::scheduler {
namespace {

class EngineExports : public EngineTest {
 protected:
  EngineExports() {
    look_at_cgroups_ = [this](pid_t pid) -> std::string {
      return pid == in_unit_ ? "0::/system.slice/server.service\n" : "0::/user.slice/user-1000.slice/session-3.scope\n";
    };
  }
  uint64_t join(ConnectionId connection, pid_t pid, uid_t uid) {
    Peer peer;
    peer.pid = pid;
    peer.uid = uid;
    peer.start_time = start_time_of(pid);
    peer.account = "user " + std::to_string(uid);
    engine().connected(connection, std::move(peer));
    send(connection, test_registration(kGiB));
    const auto registered = packets_.last<protocol::Registered>(connection);
    return registered ? registered->client_id : 0;
  }
  // Whether the exporter is asked; else the importer is told that it may not.
  bool asks(ConnectionId importer, uint64_t exporter, ConnectionId of_exporter) {
    packets_.sent[of_exporter].clear();
    protocol::Import message{};
    message.request = ++request_;
    message.exporter = exporter;
    send(importer, message);
    const bool asked = packets_.last<protocol::ExportWanted>(of_exporter).has_value();
    const auto answer = packets_.last<protocol::Imported>(importer);
    const bool refused =
        answer && answer->request == request_ && static_cast<protocol::ExportStatus>(answer->status) == protocol::ExportStatus::kRefused;
    EXPECT_NE(asked, refused);
    return asked;
  }

  pid_t in_unit_ = 0;
  uint64_t request_ = 0;
};

// Two processes that live: this one and the one that started it.
TEST_F(EngineExports, ProgramsOfOneUserInNoGroup) {
  const uint64_t exporter = join(1, getpid(), 1000);
  ASSERT_NE(join(2, getppid(), 1000), 0u);
  EXPECT_TRUE(asks(2, exporter, 1));
}

TEST_F(EngineExports, NotThoseOfAnotherUser) {
  const uint64_t exporter = join(1, getpid(), 1000);
  ASSERT_NE(join(2, getppid(), 1001), 0u);
  EXPECT_FALSE(asks(2, exporter, 1));
}

TEST_F(EngineExports, NotThoseOfAUnitFromOutside) {
  in_unit_ = getpid();
  const uint64_t exporter = join(1, getpid(), 1000);
  const uint64_t other = join(2, getppid(), 1000);
  ASSERT_NE(other, 0u);
  EXPECT_FALSE(asks(2, exporter, 1));
  EXPECT_FALSE(asks(1, other, 2));
}

}  // namespace
}  // namespace nvshare::scheduler
