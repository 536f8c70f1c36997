// A scheduler for tests that only listens: what limits of pods it was sent last, over the admin socket. Thread-safe.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "protocol/admin.h"
#include "protocol/paths.h"

namespace nvshare::kubernetes {

class ListeningScheduler {
 public:
  explicit ListeningScheduler(const std::string& runtime_dir) {
    const std::string path = runtime_dir + protocol::kAdminSocket;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    unlink(path.c_str());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
    listener_ = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_.get(), 4), 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~ListeningScheduler() {
    stop_ = true;
    shutdown(listener_.get(), SHUT_RDWR);
    {
      std::lock_guard lock(mutex_);
      for (const int client : clients_) shutdown(client, SHUT_RDWR);
    }
    thread_.join();
  }
  // "memory in MiB/core" of a pod, and what is not as by default; empty when nothing holds for it.
  std::string limits_of(const std::string& uid) {
    std::lock_guard lock(mutex_);
    auto found = pods_.find(uid);
    if (found == pods_.end()) return "";
    const protocol::admin::PodRequest& pod = found->second;
    return std::to_string(pod.gpu_memory_limit >> 20) + "/" + std::to_string(pod.gpu_core_limit) +
           (pod.priority != 0 ? " priority " + std::to_string(pod.priority) : "") + (pod.ends ? " ends" : "") + on_gpus(pod);
  }
  // The UID of the pod whose tenant its processes belong to; empty when nothing holds for it.
  std::string tenant_of(const std::string& uid) {
    std::lock_guard lock(mutex_);
    const auto found = pods_.find(uid);
    if (found == pods_.end()) return "";
    return found->second.member_of.empty() ? uid : found->second.member_of;
  }
  std::string name_of(const std::string& uid) {
    std::lock_guard lock(mutex_);
    return pods_.contains(uid) ? pods_[uid].name : "";
  }
  int connections() {
    std::lock_guard lock(mutex_);
    return connections_;
  }
  int requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  bool has_complete_list() {
    std::lock_guard lock(mutex_);
    return whole_;
  }
  // Of pods in all requests so far.
  int pods_received() {
    std::lock_guard lock(mutex_);
    return pods_received_;
  }
  // As if no scheduler were there: the connection ends, and so does each new one at once. The limits stay.
  void refuse_connections() {
    std::lock_guard lock(mutex_);
    refuses_ = true;
    for (const int client : clients_) shutdown(client, SHUT_RDWR);
  }
  void accept_connections() {
    std::lock_guard lock(mutex_);
    refuses_ = false;
  }
  // Requests so far count no more, a complete list neither; the limits stay.
  void forget_requests() {
    std::lock_guard lock(mutex_);
    whole_ = false;
    requests_ = 0;
  }

 private:
  void serve() {
    std::vector<std::jthread> threads;  // one a client
    while (!stop_) {
      FileDescriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) return;
      std::lock_guard lock(mutex_);
      if (stop_) return;  // the destructor has looked for clients already
      if (refuses_) continue;
      clients_.insert(client.get());
      ++connections_;
      threads.emplace_back([this, served = std::move(client)] { serve(served.get()); });
    }
  }
  void serve(int client) {
    std::string text;
    char bytes[65536];
    for (ssize_t length = 0; (length = read(client, bytes, sizeof bytes)) > 0;) {
      text.append(bytes, static_cast<size_t>(length));
      for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
        const std::string answer = take(text.substr(0, end));
        text.erase(0, end + 1);
        const ssize_t sent = ::send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
        // One that ends does not wait for the answer.
        EXPECT_TRUE(stop_ || sent == static_cast<ssize_t>(answer.size()) || (sent < 0 && (errno == EPIPE || errno == ECONNRESET)));
      }
    }
    std::lock_guard lock(mutex_);
    clients_.erase(client);
    shutdown(client, SHUT_RDWR);  // it is closed with its thread, at the end
  }
  // As the scheduler has it (WhoDoesNotKnowAllOfAPodOnlyLowers).
  static protocol::admin::PodRequest lowest_of(protocol::admin::PodRequest held, const protocol::admin::PodRequest& sent) {
    const auto lower = [](int64_t a, int64_t b) { return a == 0 || b == 0 ? a + b : std::min(a, b); };
    held.gpu_memory_limit = lower(held.gpu_memory_limit, sent.gpu_memory_limit);
    held.gpu_core_limit = std::min(held.gpu_core_limit, sent.gpu_core_limit);
    held.gpu_core_reserved = std::min(held.gpu_core_reserved, held.gpu_core_limit);
    for (const auto& [gpu, bytes] : sent.gpu_memory_on) held.gpu_memory_on[gpu] = lower(held.gpu_memory_on[gpu], bytes);
    return held;
  }
  static std::string on_gpus(const protocol::admin::PodRequest& pod) {
    std::string text;
    for (const auto& [gpu, bytes] : pod.gpu_memory_on) text += " " + gpu + " " + std::to_string(bytes >> 20);
    return text;
  }
  std::string take(const std::string& line) {
    auto request = protocol::admin::decode_request(line);
    EXPECT_TRUE(request) << (request ? "" : request.error().text);
    if (!request || !std::holds_alternative<protocol::admin::PodsRequest>(*request)) return protocol::admin::encode_error("not that");
    const auto& pods = std::get<protocol::admin::PodsRequest>(*request);
    std::lock_guard lock(mutex_);
    using List = protocol::admin::PodsRequest::List;
    if (pods.list == List::kFirst) pods_.clear();
    whole_ = whole_ || pods.complete || pods.list == List::kLast;
    ++requests_;
    pods_received_ += static_cast<int>(pods.pods.size());
    for (const auto& pod : pods.pods) {
      const auto held = pods_.extract(pod.uid);
      if (!pod.gone) pods_[pod.uid] = pod.only_lowers && held ? lowest_of(held.mapped(), pod) : pod;
    }
    if (pods.complete) {
      std::erase_if(pods_, [&](const auto& held) {
        return std::none_of(pods.pods.begin(), pods.pods.end(), [&](const auto& pod) { return pod.uid == held.first; });
      });
    }
    return protocol::admin::encode_ok();
  }

  FileDescriptor listener_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::set<int> clients_;
  int connections_ = 0;
  int requests_ = 0;
  int pods_received_ = 0;
  bool refuses_ = false;
  bool whole_ = false;
  std::map<std::string, protocol::admin::PodRequest> pods_;
  std::thread thread_;
};

}  // namespace nvshare::kubernetes
