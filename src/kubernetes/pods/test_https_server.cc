#include "kubernetes/pods/test_https_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace nvshare::kubernetes {
namespace {

using namespace std::chrono_literals;

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

// With NVSHARE_TEST_SENT=FILE: what was sent with a body, a line each, for test/deploy/sent_objects_test.py.
void note_sent(const std::string& request) {
  const char* file = std::getenv("NVSHARE_TEST_SENT");
  const std::string body = TestHttpsServer::body_of(request);
  if (file == nullptr || body.empty()) return;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::ofstream(file, std::ios::app) << TestHttpsServer::method_of(request) << " " << TestHttpsServer::target_of(request) << " " << body
                                     << "\n";
}

}  // namespace

TestHttpsServer::TestHttpsServer(std::string folder, Handler handler) : folder_(std::move(folder)), handler_(std::move(handler)) {
  const Certificate certificate;
  certificate.write(folder_ + "/ca.crt");
  context_.reset(SSL_CTX_new(TLS_server_method()));
  SSL_CTX_use_certificate(context_.get(), certificate.x509.get());
  SSL_CTX_use_PrivateKey(context_.get(), certificate.key.get());
  listen_again();
  acceptor_ = std::thread([this] { accept_all(); });
}

TestHttpsServer::~TestHttpsServer() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  acceptor_.join();
  for (Connection& connection : connections_) {
    shutdown(connection.socket_.get(), SHUT_RDWR);
    connection.thread_.join();
  }
}

ApiServerAddress TestHttpsServer::address() const { return {"https://127.0.0.1:" + std::to_string(port_), folder_}; }

void TestHttpsServer::refuse_connections(std::chrono::milliseconds time) {
  std::lock_guard lock(mutex_);
  refuse_until_ = Clock::now() + time;
}

void TestHttpsServer::fail_handshakes(int count) {
  std::lock_guard lock(mutex_);
  handshakes_to_fail_ = count;
}

void TestHttpsServer::listen_again() {
  listener_ = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener_.get(), 64) != 0) {
    throw std::runtime_error("cannot listen on loopback");
  }
  getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(address.sin_port);
}

void TestHttpsServer::accept_all() {
  while (true) {
    bool refuse = false;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      refuse = Clock::now() < refuse_until_;
    }
    if (refuse) {
      listener_.reset();
      std::this_thread::sleep_for(5ms);
      continue;
    }
    if (!listener_) listen_again();
    pollfd waits{listener_.get(), POLLIN, 0};
    if (poll(&waits, 1, 5) <= 0) {
      std::lock_guard lock(mutex_);
      connections_.remove_if([](Connection& connection) {
        if (connection.ended_) connection.thread_.join();
        return connection.ended_.load();
      });
      continue;
    }
    FileDescriptor accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!accepted) continue;
    std::lock_guard lock(mutex_);
    Connection& connection = connections_.emplace_back();
    connection.socket_ = std::move(accepted);
    connection.thread_ = std::thread([this, &connection] {
      serve(connection);
      shutdown(connection.socket_.get(), SHUT_RDWR);
      connection.ended_ = true;
    });
  }
}

void TestHttpsServer::serve(Connection& connection) {
  {
    std::lock_guard lock(mutex_);
    if (handshakes_to_fail_ > 0) {
      --handshakes_to_fail_;
      return;
    }
  }
  connection.ssl_.reset(SSL_new(context_.get()));
  SSL_set_fd(connection.ssl_.get(), connection.socket_.get());
  if (SSL_accept(connection.ssl_.get()) != 1) {
    ERR_clear_error();
    return;
  }
  const std::string request = connection.read_request();
  if (request.empty()) return;
  note_sent(request);
  handler_(connection, request);
}

bool TestHttpsServer::Connection::send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const int now = SSL_write(ssl_.get(), bytes.data() + sent, static_cast<int>(bytes.size() - sent));
    if (now <= 0) return false;
    sent += static_cast<size_t>(now);
  }
  return true;
}

bool TestHttpsServer::Connection::reply(int status, const std::string& body) {
  return send("HTTP/1.1 " + std::to_string(status) + " x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
}

bool TestHttpsServer::Connection::begin_chunks() {
  return send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
}

bool TestHttpsServer::Connection::send_chunk(const std::string& bytes) {
  char size[24];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return send(size + bytes + "\r\n");
}

void TestHttpsServer::Connection::reset_at_end() {
  const linger now{1, 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

// The head, and as much of the body as it announces. Empty: the connection ended.
std::string TestHttpsServer::Connection::read_request() {
  std::string text;
  char bytes[4096];
  while (true) {
    const size_t head = text.find("\r\n\r\n");
    if (head != std::string::npos) {
      const size_t at = text.find("Content-Length: ");
      const size_t body = at < head ? std::stoul(text.substr(at + 16)) : 0;
      if (text.size() >= head + 4 + body) return text;
    }
    const int now = SSL_read(ssl_.get(), bytes, sizeof bytes);
    if (now <= 0) return {};
    text.append(bytes, static_cast<size_t>(now));
  }
}

std::string TestHttpsServer::method_of(const std::string& request) { return request.substr(0, request.find(' ')); }

std::string TestHttpsServer::target_of(const std::string& request) {
  const size_t begin = request.find(' ') + 1;
  return request.substr(begin, request.find(' ', begin) - begin);
}

std::string TestHttpsServer::body_of(const std::string& request) { return request.substr(request.find("\r\n\r\n") + 4); }

std::string TestHttpsServer::parameter_of(const std::string& target, const std::string& name) {
  for (size_t at = target.find('?'); at != std::string::npos; at = target.find('&', at + 1)) {
    if (target.compare(at + 1, name.size() + 1, name + "=") == 0) {
      const size_t begin = at + name.size() + 2;
      return target.substr(begin, target.find('&', begin) - begin);
    }
  }
  return {};
}

}  // namespace nvshare::kubernetes
