#include "kubernetes/pods/api_client.h"

#include <map>
#include <optional>
#include <utility>

#include "base/nanoseconds.h"
#include "kubernetes/pods/api_transfer.h"

namespace nvshare::kubernetes {

// curl says which sockets it waits for, and until when; the loop waits, and says what came.
struct ApiClient::Core {
  struct Socket {
    Watch watch;
    int wanted = CURL_POLL_NONE;
  };

  Core(EventLoop& of, ApiServerAddress to)
      : loop(of),
        address(std::move(to)),
        multi(make_multi()),
        curls_timer(of, [this] { act(CURL_SOCKET_TIMEOUT, 0); }),
        quiet_timer(of, [this] { look_whether_quiet(); }) {
    if (multi == nullptr) return;
    curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, socket_wanted);
    curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, this);
    curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, timer_wanted);
    curl_multi_setopt(multi, CURLMOPT_TIMERDATA, this);
  }
  ~Core() {
    if (transfer) curl_multi_remove_handle(multi, transfer->handle());
    curl_multi_cleanup(multi);
  }

  static int socket_wanted(CURL*, curl_socket_t descriptor, int wanted, void* core, void*) {
    static_cast<Core*>(core)->want(descriptor, wanted);
    return 0;
  }
  static int timer_wanted(CURLM*, long milliseconds, void* core) {
    Timer& timer = static_cast<Core*>(core)->curls_timer;
    if (milliseconds < 0) {
      timer.cancel();
    } else {
      timer.arm(monotonic_ns() + nanoseconds_of(std::chrono::milliseconds(milliseconds)));
    }
    return 0;
  }

  void want(curl_socket_t descriptor, int wanted) {
    if (wanted == CURL_POLL_REMOVE) {
      sockets.erase(descriptor);  // before curl closes it
      return;
    }
    auto [at, is_new] = sockets.try_emplace(descriptor);
    Socket& socket = at->second;
    if (is_new) {
      socket.watch = Watch(
          loop, descriptor, [this, descriptor] { act(descriptor, CURL_CSELECT_IN); },
          [this, descriptor] { act(descriptor, CURL_CSELECT_OUT); });
    }
    socket.wanted = wanted;
    if ((wanted & CURL_POLL_IN) != 0) {
      socket.watch.resume();
    } else {
      socket.watch.pause();
    }
    if ((wanted & CURL_POLL_OUT) != 0) socket.watch.want_writable();
  }

  void act(curl_socket_t descriptor, int came) {
    int running = 0;
    curl_multi_socket_action(multi, descriptor, came, &running);
    // Also where curl wants what it wanted before, of which it says nothing.
    if (const auto at = sockets.find(descriptor); at != sockets.end() && (at->second.wanted & CURL_POLL_OUT) != 0) {
      at->second.watch.want_writable();
    }
    std::optional<CURLcode> result;
    int left = 0;
    while (CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg == CURLMSG_DONE) result = message->data.result;
    }
    if (result && transfer) finish(transfer->outcome(*result));
  }

  void look_whether_quiet() {
    if (problem) return finish(*problem);
    const auto left = transfer->until_quiet();
    if (left.count() <= 0) return finish(transfer->quiet_error());
    quiet_timer.arm(monotonic_ns() + nanoseconds_of(left));
  }

  void fail_later(const Error& why) {
    problem = why;
    quiet_timer.arm(monotonic_ns());
  }

  void finish(Result<ApiReply> reply) {
    quiet_timer.cancel();
    problem.reset();
    if (transfer) curl_multi_remove_handle(multi, transfer->handle());
    transfer.reset();
    const Done call = std::exchange(done, nullptr);
    call(std::move(reply));
  }

  EventLoop& loop;
  const ApiServerAddress address;
  CURLM* const multi;  // keeps connections
  std::map<curl_socket_t, Socket> sockets;
  Timer curls_timer, quiet_timer;
  std::unique_ptr<ApiTransfer> transfer;  // under way
  std::optional<Error> problem;           // of a request that could not be begun
  Done done;
};

ApiClient::ApiClient(EventLoop& loop, ApiServerAddress address) : core_(std::make_unique<Core>(loop, std::move(address))) {}

ApiClient::~ApiClient() = default;

void ApiClient::send(ApiRequest request, ApiPatience patience, Done done, ApiTake take) {
  Core& core = *core_;
  core.done = std::move(done);
  if (core.multi == nullptr) return core.fail_later(error_format("libcurl cannot be used"));
  Result<std::unique_ptr<ApiTransfer>> made = ApiTransfer::make(core.address, std::move(request), patience, std::move(take));
  if (!made) return core.fail_later(made.error());
  core.transfer = std::move(*made);
  core.quiet_timer.arm(monotonic_ns() + nanoseconds_of(core.transfer->until_quiet()));
  curl_multi_add_handle(core.multi, core.transfer->handle());
}

}  // namespace nvshare::kubernetes
