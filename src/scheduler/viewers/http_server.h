// As much of HTTP/1.1 as a scraper and the page need: GET or HEAD, one request a connection, answered from sites. One thread serves all
// connections and waits for none: one whose request is not there within two seconds ends, and so does one whose answer is not read within
// five; the 65th that is open ends the oldest without a request. An answer may go on (HttpFeed), of 16 connections of one address and 32
// in all, so that others have room; one more is told all once. A part is begun once the kernel has the one before, and each has
// to be read within five seconds: a reader that is slow costs one part and the kernel's buffer, kept small.
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

struct HttpResponse;

// An answer that goes on, part by part, until its reader leaves. Called by the server's thread alone.
class HttpFeed {
 public:
  virtual ~HttpFeed() = default;
  // The next part; null: there is nothing to say yet. Asked once the one before is with the kernel, after look() or at due_at().
  virtual std::shared_ptr<const std::string> next() = 0;
  virtual int64_t due_at() const = 0;  // of CLOCK_MONOTONIC
  virtual bool is_over() const = 0;    // the answer ends here
  // In its place, where it may not go on: all there is, whatever its reader has; or why not. Without headers.
  virtual HttpResponse once() = 0;
};

struct HttpResponse {
  std::string status = "200 OK";
  std::string type = "text/plain; charset=utf-8";
  std::string headers;                      // more of them, each with its "\r\n"
  std::shared_ptr<const std::string> body;  // null: none. Shared by all who get the same
  std::unique_ptr<HttpFeed> feed;           // in place of the body; ends with the site
};

HttpResponse plain_response(const char* status, std::string text);

// What is served below some paths. Called by the server's thread alone.
class HttpSite {
 public:
  virtual ~HttpSite() = default;
  // nullopt: the path is not of this site.
  virtual std::optional<HttpResponse> answer(const HttpRequest& request) = 0;
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
    int64_t until = 0;  // INT64_MAX: its feed has nothing to say
    std::string in;
    std::string head;  // of the answer; empty: there is none yet, or the feed's first part follows it
    std::shared_ptr<const std::string> body;
    size_t sent = 0;                     // of both together
    std::optional<HttpRequest> request;  // to be answered in this round
    std::unique_ptr<HttpFeed> feed;
    bool head_only = false;

    size_t unsent() const { return head.size() + (body ? body->size() : 0) - sent; }
  };

  void accept_all();
  bool serve(Connection& connection);  // false: it ends; so below
  bool take_input(Connection& connection);
  bool take_request(Connection& connection);
  HttpResponse response_to(const HttpRequest& request);
  void answer_round();
  bool answer(Connection& connection);
  bool may_go_on(const Connection& connection) const;
  static bool go_on(Connection& connection);
  static bool reply(Connection& connection, HttpResponse response);
  static bool flush(Connection& connection);

  FileDescriptor listener_;
  FileDescriptor wake_;
  std::vector<std::unique_ptr<HttpSite>> sites_;
  std::atomic<bool> ending_ = false;
  std::list<Connection> connections_;  // the oldest first
};

}  // namespace nvshare::scheduler
