#include "kubernetes/test_api_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "base/fd.h"

namespace nvshare::kubernetes {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

// A certificate for 127.0.0.1 that is its own authority.
struct Certificate {
  std::unique_ptr<EVP_PKEY, FreeSsl> key{EVP_EC_gen("P-256")};
  std::unique_ptr<X509, FreeSsl> x509{X509_new()};
  Certificate() {
    X509_set_version(x509.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x509.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509.get()), 86400);
    X509_set_pubkey(x509.get(), key.get());
    X509_NAME* name = X509_get_subject_name(x509.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(x509.get(), name);
    for (auto [field, value] : {std::pair{NID_basic_constraints, "critical,CA:TRUE"}, {NID_subject_alt_name, "IP:127.0.0.1"}}) {
      X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, field, value);
      X509_add_ext(x509.get(), extension, -1);
      X509_EXTENSION_free(extension);
    }
    if (X509_sign(x509.get(), key.get(), EVP_sha256()) == 0) throw std::runtime_error("cannot sign a certificate");
  }
  void write(const std::string& path) const {
    std::FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr) throw std::runtime_error("cannot write " + path);
    PEM_write_X509(file, x509.get());
    std::fclose(file);
  }
};

std::string parameter(const std::string& target, const std::string& name) {
  for (size_t at = target.find('?'); at != std::string::npos; at = target.find('&', at + 1)) {
    if (target.compare(at + 1, name.size() + 1, name + "=") == 0) {
      const size_t begin = at + name.size() + 2;
      return target.substr(begin, target.find('&', begin) - begin);
    }
  }
  return {};
}

enum class Order { kNone, kCutInAnEvent, kReset, kEnd, kExpired, kErrorEvent, kGarbage, kSilent };

}  // namespace

struct TestApiServer::Parts {
  struct Event {
    long version;
    std::string type;
    std::string object;
  };
  struct Connection {
    FileDescriptor socket;
    std::unique_ptr<SSL, FreeSsl> ssl;
    std::thread thread;
    std::atomic<bool> ended{false};
  };

  explicit Parts(std::string where) : folder(std::move(where)) {
    certificate.write(folder + "/ca.crt");
    renew_token();
    write_token();
    context.reset(SSL_CTX_new(TLS_server_method()));
    SSL_CTX_use_certificate(context.get(), certificate.x509.get());
    SSL_CTX_use_PrivateKey(context.get(), certificate.key.get());
    listen_again();
    acceptor = std::thread([this] { accept_all(); });
  }

  ~Parts() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    acceptor.join();
    for (Connection& connection : connections) {
      shutdown(connection.socket.get(), SHUT_RDWR);
      connection.thread.join();
    }
  }

  void listen_again() {
    listener = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener.get(), 64) != 0) {
      throw std::runtime_error("cannot listen on loopback");
    }
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port = ntohs(address.sin_port);
  }

  void renew_token() { token = "token-" + std::to_string(++tokens); }
  void write_token() const {
    std::ofstream(folder + "/token.new") << token << "\n";
    std::rename((folder + "/token.new").c_str(), (folder + "/token").c_str());
  }

  void accept_all() {
    while (true) {
      bool refuse = false;
      {
        std::lock_guard lock(mutex);
        if (stop) return;
        refuse = Clock::now() < refuse_until;
      }
      if (refuse) {
        listener.reset();
        std::this_thread::sleep_for(5ms);
        continue;
      }
      if (!listener) listen_again();
      pollfd waits{listener.get(), POLLIN, 0};
      if (poll(&waits, 1, 5) <= 0) {
        std::lock_guard lock(mutex);
        connections.remove_if([](Connection& connection) {
          if (connection.ended) connection.thread.join();
          return connection.ended.load();
        });
        continue;
      }
      FileDescriptor accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!accepted) continue;
      std::lock_guard lock(mutex);
      Connection& connection = connections.emplace_back();
      connection.socket = std::move(accepted);
      connection.thread = std::thread([this, &connection] {
        serve(connection);
        shutdown(connection.socket.get(), SHUT_RDWR);
        connection.ended = true;
      });
    }
  }

  static bool send(Connection& connection, const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const int now = SSL_write(connection.ssl.get(), bytes.data() + sent, static_cast<int>(bytes.size() - sent));
      if (now <= 0) return false;
      sent += static_cast<size_t>(now);
    }
    return true;
  }
  static bool reply(Connection& connection, int status, const std::string& body) {
    return send(connection, "HTTP/1.1 " + std::to_string(status) +
                                " x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " +
                                std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  static bool send_chunk(Connection& connection, const std::string& bytes) {
    char size[24];
    std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    return send(connection, size + bytes + "\r\n");
  }

  // The head, and as much of the body as it announces. Empty: the connection ended.
  static std::string read_request(Connection& connection) {
    std::string text;
    char bytes[4096];
    while (true) {
      const size_t head = text.find("\r\n\r\n");
      if (head != std::string::npos) {
        const size_t at = text.find("Content-Length: ");
        const size_t body = at < head ? std::stoul(text.substr(at + 16)) : 0;
        if (text.size() >= head + 4 + body) return text;
      }
      const int now = SSL_read(connection.ssl.get(), bytes, sizeof bytes);
      if (now <= 0) return {};
      text.append(bytes, static_cast<size_t>(now));
    }
  }

  static void reset(Connection& connection) {
    const linger now{1, 0};
    setsockopt(connection.socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }

  // Whether one of those that are left of `count` was taken. Under the mutex.
  static bool take(int& count) { return count > 0 && count-- > 0; }

  void serve(Connection& connection) {
    bool fails = false;
    {
      std::lock_guard lock(mutex);
      fails = take(handshakes_to_fail);
    }
    if (fails) return;
    connection.ssl.reset(SSL_new(context.get()));
    SSL_set_fd(connection.ssl.get(), connection.socket.get());
    if (SSL_accept(connection.ssl.get()) != 1) {
      ERR_clear_error();
      return;
    }
    const std::string request = read_request(connection);
    if (request.empty()) return;
    const std::string target = request.substr(request.find(' ') + 1, request.find(' ', request.find(' ') + 1) - request.find(' ') - 1);
    std::unique_lock lock(mutex);
    const bool watch = parameter(target, "watch") == "1";
    if (take(slow)) changed.wait_for(lock, 80ms, [this] { return stop; });
    if (request.find("Authorization: Bearer " + token + "\r\n") == std::string::npos) {
      ++unauthorized;
      write_token();
      lock.unlock();
      reply(connection, 401, R"({"kind":"Status","code":401})");
      return;
    }
    if (take(errors)) {
      const int status = error_status;
      lock.unlock();
      reply(connection, status, R"({"kind":"Status","message":"told to fail"})");
      return;
    }
    if (request.starts_with("POST ") && !refusals.empty()) {
      const int status = refusals.front();
      refusals.erase(refusals.begin());
      ++refused;
      lock.unlock();
      reply(connection, status, R"({"kind":"Status","message":"events are forbidden"})");
      return;
    }
    if (request.starts_with("POST ")) {
      events.push_back(request.substr(request.find("\r\n\r\n") + 4));
      lock.unlock();
      reply(connection, 201, "{}");
      return;
    }
    if (parameter(target, "fieldSelector") != "spec.nodeName%3Dnode-1" || !target.starts_with("/api/v1/pods?")) {
      lock.unlock();
      reply(connection, 404, "{}");
      return;
    }
    if (watch) return serve_watch(connection, lock, std::stol("0" + parameter(target, "resourceVersion")));
    serve_list(connection, lock);
  }

  void serve_list(Connection& connection, std::unique_lock<std::mutex>& lock) {
    ++lists;
    Json list = {{"kind", "PodList"}, {"metadata", {{"resourceVersion", std::to_string(version)}}}, {"items", Json::array()}};
    for (const auto& [name, pod] : pods) list["items"].push_back(pod);
    const bool truncate = take(lists_to_truncate);
    lock.unlock();
    const std::string body = list.dump();
    if (!truncate) {
      reply(connection, 200, body);
      return;
    }
    send(connection, "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, body.size() / 2));
  }

  void serve_watch(Connection& connection, std::unique_lock<std::mutex>& lock, long from) {
    ++watches;
    if (take(expired_statuses)) {
      lock.unlock();
      reply(connection, 410, R"({"kind":"Status","code":410})");
      return;
    }
    const long mine = orders;  // later ones are for this watch
    lock.unlock();
    if (!send(connection, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")) return;
    lock.lock();
    const auto expired = [&] {
      return R"({"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}})"
             "\n";
    };
    if (from < forgotten) {
      lock.unlock();
      send_chunk(connection, expired());
      send(connection, "0\r\n\r\n");
      return;
    }
    while (true) {
      const auto next = [&] {
        return std::find_if(history.begin(), history.end(), [&](const Event& event) { return event.version > from; });
      };
      changed.wait(lock, [&] { return stop || orders > mine || next() != history.end(); });
      if (stop) return;
      if (orders > mine) return obey(connection, lock, order, expired());
      const Event event = *next();
      from = event.version;
      lock.unlock();
      if (!send_chunk(connection, "{\"type\":\"" + event.type + "\",\"object\":" + event.object + "}\n")) return;
      lock.lock();
    }
  }

  void obey(Connection& connection, std::unique_lock<std::mutex>& lock, Order what, const std::string& expired) {
    if (what == Order::kSilent) return changed.wait(lock, [this] { return stop; });
    lock.unlock();
    switch (what) {
      case Order::kNone:
      case Order::kSilent:
        break;
      case Order::kCutInAnEvent:
        send(connection, "100\r\n{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"uid\":\"hal");
        break;
      case Order::kReset:
        reset(connection);
        break;
      case Order::kEnd:
        send(connection, "0\r\n\r\n");
        break;
      case Order::kExpired:
        send_chunk(connection, expired);
        break;
      case Order::kErrorEvent:
        send_chunk(connection, R"({"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd"}})"
                               "\n");
        break;
      case Order::kGarbage:
        send_chunk(connection, "<html>a proxy's page</html>\n");
        break;
    }
  }

  void publish(const char* type, Json pod) {
    ++version;
    pod["metadata"]["resourceVersion"] = std::to_string(version);
    const std::string name = pod["metadata"]["name"];
    history.push_back({version, type, pod.dump()});
    if (std::string_view(type) == "DELETED") {
      pods.erase(name);
    } else {
      pods[name] = std::move(pod);
    }
    changed.notify_all();
  }

  void give(Order what) {
    order = what;
    ++orders;
  }
  void forget() {
    ++version;
    forgotten = version;
    history.clear();
  }

  const std::string folder;
  Certificate certificate;
  std::unique_ptr<SSL_CTX, FreeSsl> context;
  FileDescriptor listener;  // the acceptor's
  uint16_t port = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::list<Connection> connections;
  std::map<std::string, Json> pods;  // by name
  std::deque<Event> history;
  long version = 1000, forgotten = 0;
  long orders = 0;
  Order order = Order::kNone;
  int handshakes_to_fail = 0, slow = 0, errors = 0, error_status = 500, expired_statuses = 0, lists_to_truncate = 0;
  Clock::time_point refuse_until;
  std::string token;
  int tokens = 0;
  std::vector<std::string> events;
  int lists = 0, watches = 0, unauthorized = 0;
  std::vector<int> refusals;  // of events, to come
  int refused = 0;            // of events
  int uids = 0;
  bool stop = false;
  std::thread acceptor;
};

TestApiServer::TestApiServer(std::string folder) : parts_(std::make_unique<Parts>(std::move(folder))) {}
TestApiServer::~TestApiServer() = default;

ApiServerAddress TestApiServer::address() const { return {"https://127.0.0.1:" + std::to_string(parts_->port), parts_->folder}; }

std::string TestApiServer::add_pod(const std::string& name, const std::map<std::string, int>& resources, const std::string& uid) {
  std::lock_guard lock(parts_->mutex);
  char made[40];
  std::snprintf(made, sizeof made, "00000000-1111-2222-3333-%012d", ++parts_->uids);
  Json limits = Json::object();
  for (const auto& [resource, amount] : resources) limits[resource] = std::to_string(amount);
  const std::string id = uid.empty() ? made : uid;
  parts_->publish("ADDED", {{"apiVersion", "v1"},
                            {"kind", "Pod"},
                            {"metadata", {{"name", name}, {"namespace", "team"}, {"uid", id}, {"annotations", Json::object()}}},
                            {"spec", {{"nodeName", "node-1"}, {"containers", {{{"name", "main"}, {"resources", {{"limits", limits}}}}}}}},
                            {"status", {{"phase", "Running"}}}});
  return id;
}

void TestApiServer::annotate(const std::string& name, const std::string& annotation, const std::string& value) {
  std::lock_guard lock(parts_->mutex);
  Json pod = parts_->pods.at(name);
  if (value.empty()) {
    pod["metadata"]["annotations"].erase(annotation);
  } else {
    pod["metadata"]["annotations"][annotation] = value;
  }
  parts_->publish("MODIFIED", std::move(pod));
}

void TestApiServer::begin_deletion(const std::string& name) {
  std::lock_guard lock(parts_->mutex);
  Json pod = parts_->pods.at(name);
  pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z";
  pod["metadata"]["deletionGracePeriodSeconds"] = 30;
  parts_->publish("MODIFIED", std::move(pod));
}

void TestApiServer::delete_pod(const std::string& name) {
  std::lock_guard lock(parts_->mutex);
  parts_->publish("DELETED", parts_->pods.at(name));
}

void TestApiServer::bookmark() {
  std::lock_guard lock(parts_->mutex);
  ++parts_->version;
  const Json object = {{"kind", "Pod"}, {"metadata", {{"resourceVersion", std::to_string(parts_->version)}}}};
  parts_->history.push_back({parts_->version, "BOOKMARK", object.dump()});
  parts_->changed.notify_all();
}

void TestApiServer::fault(Fault fault) {
  std::lock_guard lock(parts_->mutex);
  Parts& server = *parts_;
  switch (fault) {
    case Fault::kCutInAnEvent:
      server.give(Order::kCutInAnEvent);
      break;
    case Fault::kReset:
      server.give(Order::kReset);
      break;
    case Fault::kEnd:
      server.give(Order::kEnd);
      break;
    case Fault::kExpired:
      server.forget();
      server.give(Order::kExpired);
      break;
    case Fault::kExpiredStatus:
      server.forget();
      server.expired_statuses = 1;
      server.give(Order::kReset);
      break;
    case Fault::kErrorEvent:
      server.give(Order::kErrorEvent);
      break;
    case Fault::kServerErrors:
    case Fault::kTooManyRequests:
      server.errors = 3;
      server.error_status = fault == Fault::kServerErrors ? 500 : 429;
      server.give(Order::kReset);
      break;
    case Fault::kRefuseConnections:
      server.refuse_until = Clock::now() + 60ms;
      server.give(Order::kReset);
      break;
    case Fault::kHandshakeFails:
      server.handshakes_to_fail = 3;
      server.give(Order::kReset);
      break;
    case Fault::kSlow:
      server.slow = 3;
      server.give(Order::kReset);
      break;
    case Fault::kGarbage:
      server.give(Order::kGarbage);
      break;
    case Fault::kSilent:
      server.give(Order::kSilent);
      break;
    case Fault::kTokenRotated:
      server.renew_token();
      server.give(Order::kReset);
      break;
    case Fault::kTruncatedList:
      server.forget();
      server.lists_to_truncate = 1;
      server.give(Order::kExpired);
      break;
  }
  server.changed.notify_all();
}

std::vector<std::string> TestApiServer::events() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->events;
}
int TestApiServer::lists() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->lists;
}
int TestApiServer::watches() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->watches;
}
void TestApiServer::refuse_events(const std::vector<int>& statuses) {
  std::lock_guard lock(parts_->mutex);
  parts_->refusals = statuses;
}

int TestApiServer::refused_events() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->refused;
}

int TestApiServer::unauthorized() const {
  std::lock_guard lock(parts_->mutex);
  return parts_->unauthorized;
}

}  // namespace nvshare::kubernetes
