// What one client, process, user or tenant may take of the scheduler: every bound, its value and its reason, in one table. A program may
// lie to the scheduler (docs/security.md); none of these bounds is one that honest programs meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nvshare::scheduler::bounds {

inline constexpr int64_t kConnectionsPerTenant = 4096;
inline constexpr int64_t kConnectionsPerUser = 4096;
inline constexpr int64_t kConnectionsPerProcess = 512;
inline constexpr int64_t kConnectionsWhenCrowded = 64;
inline constexpr int64_t kConnectsPerSecond = 1'000;
inline constexpr int64_t kConnectBurst = 1'000;
inline constexpr int64_t kDescriptorsKept = 192;
inline constexpr int64_t kQueuedDescriptorsPerConnection = 512;
inline constexpr int64_t kUnclosedDescriptors = 512;
inline constexpr int64_t kRegisterWithinMs = 5'000;
inline constexpr int64_t kMessagesPerSecond = 20'000;
inline constexpr int64_t kMessageBurst = 20'000;
inline constexpr int64_t kTenantMessagesPerSecond = 40'000;
inline constexpr int64_t kTenantMessageBurst = 40'000;
inline constexpr int64_t kMessageTimeNs = 10'000;
inline constexpr int64_t kOwnQuestionsPerSecond = 20;
inline constexpr int64_t kGpusPerUser = 64;
inline constexpr int64_t kGpus = 1024;
inline constexpr int64_t kUnansweredImports = 256;
inline constexpr int64_t kImportsPerClient = 16'384;
inline constexpr int64_t kImportsPerTenant = 65'536;

struct Bound {
  const char* name;
  int64_t value;  // the default, where `setting` names a setting
  const char* setting;
  const char* why;
};

// As docs/security.md shows it; a test compares both.
inline constexpr Bound kTable[] = {
    {"connections of a tenant", kConnectionsPerTenant, "connections_per_tenant",
     "each takes a descriptor of the scheduler's, and each process one"},
    {"connections of a user outside containers", kConnectionsPerUser, "connections_per_user",
     "a user can make as many units and processes as it likes; root is not bound"},
    {"connections of a process", kConnectionsPerProcess, nullptr, "a process has one for each GPU, and one for each question to NVML"},
    {"connections of a tenant when three quarters of all are taken", kConnectionsWhenCrowded, nullptr,
     "so that many hostile tenants leave room for others"},
    {"times that a process connects in a second", kConnectsPerSecond, nullptr,
     "to find out who it is takes 60 us; beyond it a connection is closed at once"},
    {"times that a process connects at once", kConnectBurst, nullptr, "all its threads may begin together"},
    {"descriptors that connections never take", kDescriptorsKept, nullptr, "for the administrator's socket, locks, files and messages"},
    {"descriptors queued for a connection", kQueuedDescriptorsPerConnection, nullptr, "a client that does not read holds them open"},
    {"descriptors of a tenant or user that are not closed yet", kUnclosedDescriptors, nullptr,
     "to close what somebody sent may take as long as the sender likes; beyond it reading pauses"},
    {"ms from connecting to Register", kRegisterWithinMs, nullptr, "a silent connection takes as many descriptors as another"},
    {"messages of a connection in a second", kMessagesPerSecond, nullptr,
     "an honest program sends a few thousand, each after an answer; beyond it reading pauses"},
    {"messages of a connection at once", kMessageBurst, nullptr, "what comes after a pause of the scheduler"},
    {"messages of a tenant in a second", kTenantMessagesPerSecond, nullptr, "of all its connections, or those of a user"},
    {"messages of a tenant at once", kTenantMessageBurst, nullptr, "its programs may all begin together"},
    {"ns of the scheduler's time that count as one message more", kMessageTimeNs, nullptr,
     "some messages read /proc, or look at all clients"},
    {"questions of a tenant or user about its own in a second", kOwnQuestionsPerSecond, nullptr,
     "each makes a report; beyond it they are refused"},
    {"GPUs named by a user where NVML does not run", kGpusPerUser, "gpus_per_user",
     "each is a lock file, a descriptor and an entry; one that nobody uses makes room"},
    {"GPUs in all", kGpus, nullptr, "one that nobody uses makes room, of whoever named most"},
    {"imports of a client without an answer", kUnansweredImports, nullptr, "the library asks for one at a time"},
    {"imports of a client", kImportsPerClient, nullptr, "one for each allocation that other processes shared with it"},
    {"imports of a tenant", kImportsPerTenant, nullptr, "the same, of all its clients, or those of a user"},
};

}  // namespace nvshare::scheduler::bounds
