#include "loop/loop_thread.h"

#include <future>
#include <memory>

namespace nvshare {

LoopThread::LoopThread() : thread_([this] { loop_.run(); }) {}

LoopThread::~LoopThread() {
  post([this] { loop_.stop(); });
  thread_.join();
}

void LoopThread::call(const Callback& step) {
  if (std::this_thread::get_id() == thread_.get_id()) return step();
  const auto task = std::make_shared<std::packaged_task<void()>>(step);  // the loop's thread is still in it when the caller goes on
  std::future<void> done = task->get_future();
  post([task] { (*task)(); });
  done.get();
}

}  // namespace nvshare
