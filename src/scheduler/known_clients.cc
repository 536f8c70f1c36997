#include "scheduler/known_clients.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "scheduler/identity.h"

namespace nvshare::scheduler {

KnownClients::KnownClients(std::string file) : file_(std::move(file)) { read(); }

policy::ClientId KnownClients::join(policy::ClientId claimed, KnownClient client) {
  policy::ClientId id = 0;
  auto known = missing_.find(claimed);
  if (known != missing_.end() && known->second.pid == client.pid && known->second.start_time == client.start_time) {
    id = claimed;
    missing_.erase(known);
  } else {
    id = next_++;
  }
  present_[id] = client;
  write();
  return id;
}

void KnownClients::leave(policy::ClientId id) {
  if (present_.erase(id) > 0) write();
}

// Lines "next ID" and "client ID PID START_TIME".
void KnownClients::read() {
  std::ifstream stream(file_);
  std::string line;
  while (std::getline(stream, line)) {
    std::istringstream fields(line);
    std::string kind;
    policy::ClientId id = 0;
    KnownClient client;
    fields >> kind >> id;
    if (!fields || id == 0) continue;
    if (kind == "next" && id > next_) next_ = id;
    if (kind != "client") continue;
    fields >> client.pid >> client.start_time;
    if (fields && client.start_time != 0 && start_time_of(client.pid) == client.start_time) missing_[id] = client;
    if (id >= next_) next_ = id + 1;
  }
}

void KnownClients::write() {
  std::string temporary = file_ + ".new";
  std::ofstream stream(temporary, std::ios::trunc);
  stream << "next " << next_ << "\n";
  for (const auto* clients : {&present_, &missing_}) {
    for (const auto& [id, client] : *clients) stream << "client " << id << " " << client.pid << " " << client.start_time << "\n";
  }
  stream.close();
  bool written = stream.good() && std::rename(temporary.c_str(), file_.c_str()) == 0;
  problem_ = written ? "" : "cannot write " + file_ + ": " + std::strerror(errno);
}

}  // namespace nvshare::scheduler
