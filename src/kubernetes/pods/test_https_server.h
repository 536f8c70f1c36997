// HTTPS on loopback for tests, with a CA and a token of its own, as a service account's folder has them: one request a connection. Its
// handler answers; connections that are refused or end in the middle of TLS are this server's to play. Any thread may call it.
#pragma once

#include <openssl/ssl.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/fd.h"
#include "kubernetes/pods/api_server.h"

namespace nvshare::kubernetes {

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

class TestHttpsServer {
 public:
  class Connection {
   public:
    // False: the other side is gone.
    bool send(const std::string& bytes);
    bool reply(int status, const std::string& body);
    bool begin_chunks();
    bool send_chunk(const std::string& bytes);
    void reset_at_end();  // it ends with a reset

   private:
    friend class TestHttpsServer;
    std::string read_request();
    FileDescriptor socket_;
    std::unique_ptr<SSL, FreeSsl> ssl_;
    std::thread thread_;
    std::atomic<bool> ended_{false};
  };
  // `request`: head and body. On the connection's thread, which ends with it.
  using Handler = std::function<void(Connection&, const std::string& request)>;

  // Writes ca.crt into `folder`. Throws what keeps it from starting.
  TestHttpsServer(std::string folder, Handler handler);
  ~TestHttpsServer();  // what handlers wait for must be over

  ApiServerAddress address() const;
  void refuse_connections(std::chrono::milliseconds time);
  void fail_handshakes(int count);

  // Of a request: "GET", "/path?query", what stands behind the head, a parameter of the query.
  static std::string method_of(const std::string& request);
  static std::string target_of(const std::string& request);
  static std::string body_of(const std::string& request);
  static std::string parameter_of(const std::string& target, const std::string& name);

 private:
  using Clock = std::chrono::steady_clock;
  void listen_again();
  void accept_all();
  void serve(Connection& connection);

  const std::string folder_;
  const Handler handler_;
  std::unique_ptr<SSL_CTX, FreeSsl> context_;
  FileDescriptor listener_;  // the acceptor's
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::list<Connection> connections_;  // guarded by mutex_, as the next three
  Clock::time_point refuse_until_;
  int handshakes_to_fail_ = 0;
  bool stop_ = false;
  std::thread acceptor_;
};

}  // namespace nvshare::kubernetes
