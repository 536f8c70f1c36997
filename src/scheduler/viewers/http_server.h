// As much of HTTP/1.1 as a scraper and the page need: GET or HEAD, one request a connection, answered from sites. One thread serves all
// connections and waits for none: one whose request is not there within two seconds ends, and so does one whose answer is not read within
// five; the 65th that is open ends the oldest without a request. A site may hold an answer back for two seconds, until there is news: 16 of
// one address and 32 in all, so that those that wait leave room for others; one more is answered at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace nvshare::scheduler {

struct HttpRequest {
  std::string path;           // "/metrics": without what follows a '?'
  std::string query;          // what follows it
  std::string host;           // as the header says; empty: there was none, or several
  std::string authorization;  // the same
};

struct HttpResponse {
  std::string status = "200 OK";
  std::string type = "text/plain; charset=utf-8";
  std::string headers;                      // more of them, each with its "\r\n"
  std::shared_ptr<const std::string> body;  // null: none. Shared by all who get the same
};

HttpResponse plain_response(const char* status, std::string text);

// What is served below some paths. Called by the server's thread alone.
class HttpSite {
 public:
  virtual ~HttpSite() = default;
  // nullopt: the path is not of this site.
  virtual std::optional<HttpResponse> answer(const HttpRequest& request) = 0;
  // False: there is nothing to say yet. Asked again after look(), for two seconds at most; then it is answered all the same.
  virtual bool has_news(const HttpRequest& /*request*/) const { return true; }
  // All requests that were there together have been answered: those of one round may have the same answer.
  virtual void round_is_over() {}
  // A sentence for who asks for a path that is of no site: where this one is.
  virtual std::string where() const = 0;
};

struct HttpListener {
  FileDescriptor socket;
  std::string url;  // "http://127.0.0.1:9402", with the port that was found for port 0
};

// "127.0.0.1:9402", "[::]:9402"; port 0: any free one. The error begins with `what`, such as "cannot serve metrics", and names the address.
Result<HttpListener> listen_http(const char* what, const std::string& address);

class HttpServer {
 public:
  HttpServer(FileDescriptor listener, std::vector<std::unique_ptr<HttpSite>> sites);

  void run();   // until end()
  void end();   // any thread
  void look();  // any thread: there may be news

 private:
  struct Connection {
    std::string peer;  // its address, without the port
    FileDescriptor socket;
    int64_t until = 0;
    std::string in;
    std::string head;  // of the answer; empty: there is none yet
    std::shared_ptr<const std::string> body;
    size_t sent = 0;                     // of both together
    std::optional<HttpRequest> request;  // to be answered in this round, or when there is news
    int64_t answer_at = 0;               // all the same
    bool head_only = false;
  };

  void accept_all();
  bool serve(Connection& connection);  // false: it ends; so below
  bool take_request(Connection& connection);
  HttpResponse response_to(const HttpRequest& request);
  bool has_news_for(const HttpRequest& request) const;
  void answer_round();
  bool may_hold(const Connection& connection) const;
  static bool reply(Connection& connection, const HttpResponse& response);
  static bool flush(Connection& connection);

  FileDescriptor listener_;
  FileDescriptor wake_;
  std::vector<std::unique_ptr<HttpSite>> sites_;
  std::atomic<bool> ending_ = false;
  std::list<Connection> connections_;  // the oldest first
};

}  // namespace nvshare::scheduler
