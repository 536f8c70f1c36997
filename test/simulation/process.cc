#include "process.h"

#include <algorithm>
#include <utility>

#include "run.h"

namespace nvshare::simulation {

Process::Process(Run& run, const ProgramPlan& plan)
    : run_(run), plan_(plan), random_(run.plan().seed * 1'000'003 + plan.number), work_(plan.gpus.size()) {
  for (size_t i = 0; i < plan.gpus.size(); ++i) clients_.push_back(std::make_unique<Client>(*this, i, plan.gpus[i]));
  for (const std::vector<Step>& steps : plan.threads) {
    Thread& thread = threads_.emplace_back();
    thread.number = threads_.size();
    thread.steps.assign(steps.begin(), steps.end());
    if (thread.number > 1) continue;
    for (size_t gpu = 0; gpu < plan.gpus.size(); ++gpu) thread.steps.push_front({Step::Kind::kGrow, plan.allocated, static_cast<int>(gpu)});
  }
}

Process::~Process() = default;

Duration Process::wake_time() {
  const Duration most = run_.plan().wake;
  return random_.chance(90) ? random_.between(0, most / 10) : random_.between(0, most);
}

void Process::later(Duration delay, std::function<void()> what) {
  run_.world().after(delay, [this, what = std::move(what)]() mutable {
    if (!alive_) return;
    if (stopped_) return deferred_.push_back(std::move(what));
    what();
  });
}

void Process::start() {
  pid_ = run_.node().start_process(plan_.tenant);
  alive_ = has_context_ = true;
  run_.world().tell("program {} starts, pid {}", plan_.number, pid_);
  for (const auto& client : clients_) client->start();
  for (Thread& thread : threads_) later(random_.between(0, 50) * kMs, [this, &thread] { go_on(thread); });
}

void Process::kill() {
  if (!alive_) return;
  run_.world().tell("program {} is killed", plan_.number);
  end(true);
}

void Process::end(bool killed) {
  alive_ = false;
  ended_ = true;
  // The kernel tears it down; its GPU memory may outlive its connections.
  const Duration teardown = random_.between(0, killed ? 1500 : 200) * kMs;
  const Duration close = random_.between(0, 50) * kMs;
  const Duration freed = killed ? teardown : std::min(teardown, close);
  run_.world().after(close, [this] {
    for (const auto& client : clients_) client->process_ended();
    run_.node().process_dies(pid_);
  });
  run_.world().after(freed, [this] {
    for (const auto& client : clients_) client->free_host();
  });
  run_.world().after(std::max(freed, children_end_ - run_.world().now()), [this] {
    for (const auto& client : clients_) client->free_all();
    has_context_ = false;
  });
  run_.world().after(std::max(teardown, close), [this] {
    is_gone_ = true;
    gone_in_ = run_.node().lives();
    run_.node().process_ended(pid_);
  });
}

void Process::fork(Duration lasts, bool holds) {
  if (!alive_ || stopped_) return;
  run_.world().tell("program {} has a child", plan_.number);
  children_end_ = std::max(children_end_, run_.world().now() + lasts);
  for (const auto& client : clients_) {
    if (holds) run_.node().hold(client->connection(), lasts);
  }
}

void Process::stop(Duration lasts) {
  if (!alive_ || stopped_) return;
  run_.world().tell("program {} is stopped", plan_.number);
  stopped_ = true;
  run_.world().after(lasts, [this] {
    if (!alive_) return;
    run_.world().tell("program {} goes on", plan_.number);
    stopped_ = false;
    answers_anew();
    for (auto& what : std::exchange(deferred_, {})) later(random_.between(0, 100) * kUs, std::move(what));
  });
}

void Process::answers_anew() { answers_since_ = run_.world().now(); }

void Process::cut() {
  for (const auto& client : clients_) client->cut();
}

void Process::release(Bytes bytes) {
  if (!alive_) return;
  later(wake_time(), [this, bytes] {
    run_.world().tell("program {} frees {} MiB", plan_.number, bytes / kMiB);
    for (const auto& client : clients_) client->release(bytes);
  });
}

void Process::hang(Duration lasts) {
  const Instant now = run_.world().now();
  if (!alive_ || work_ends(nullptr) <= now) return;
  run_.world().tell("the GPU hangs in what program {} has submitted", plan_.number);
  for (Work& work : work_) work.ends += work.ends > now ? lasts : 0;
  for (Thread& thread : threads_) thread.ends += thread.ends > now ? lasts : 0;
}

void Process::driver_short(Duration lasts) {
  for (const auto& client : clients_) client->driver_short(run_.world().now() + lasts);
}

// ---- the gate ----

void Process::open_gate(size_t gpu) {
  closed_ &= ~(1U << gpu);
  wake_gate();
}

void Process::wake_gate() {
  for (Thread& thread : threads_) {
    const bool waits =
        thread.state == Thread::State::kAtGate || thread.state == Thread::State::kSettling || thread.state == Thread::State::kMeeting;
    if (waits) wake(thread);
  }
}

void Process::client_changed() {
  for (Thread& thread : threads_) {
    if (thread.state == Thread::State::kGrowing || thread.state == Thread::State::kCharging) wake(thread);
  }
}

void Process::wake(Thread& thread) {
  if (std::exchange(thread.woken, true)) return;
  later(wake_time(), [this, &thread] {
    thread.woken = false;
    look(thread);
  });
}

void Process::look(Thread& thread) {
  if (thread.state != Thread::State::kDone && thread.state != Thread::State::kFree) go_on(thread);
}

// False: it waits, counted before it says so.
bool Process::pass_gate(Thread& thread) {
  if (thread.state != Thread::State::kAtGate) ++entries_;
  if (!gate_closed()) {
    leave_gate(thread);
    return true;
  }
  if (thread.state != Thread::State::kAtGate) {
    thread.state = Thread::State::kAtGate;
    ++waiting_;
  }
  for (size_t gpu = 0; gpu < clients_.size(); ++gpu) {
    if (!gate_closed(gpu)) continue;
    if (std::find(thread.waited_for.begin(), thread.waited_for.end(), gpu) == thread.waited_for.end()) thread.waited_for.push_back(gpu);
    clients_[gpu]->want_lock();
  }
  return false;
}

void Process::leave_gate(Thread& thread) {
  if (thread.state == Thread::State::kAtGate || thread.state == Thread::State::kSettling) --waiting_;
  thread.state = Thread::State::kFree;
  for (const size_t gpu : thread.waited_for) clients_[gpu]->used();
  thread.waited_for.clear();
}

bool Process::holds_other_gpu(const Client& client) const {
  return std::any_of(clients_.begin(), clients_.end(),
                     [&](const auto& other) { return other.get() != &client && turn::holds_lock(other->turn()); });
}

Instant Process::work_ends(const Client* only) const {
  Instant ends = 0;
  for (size_t gpu = 0; gpu < work_.size(); ++gpu) {
    if (only != nullptr && clients_[gpu].get() != only) continue;
    ends = std::max(ends, work_[gpu].linked ? turn::kNever : work_[gpu].ends);
  }
  return ends;
}

// ---- threads ----

void Process::go_on(Thread& thread) {
  if (thread.steps.empty()) {
    thread.state = Thread::State::kDone;
    return exit_if_done();
  }
  Step& step = thread.steps.front();
  switch (step.kind) {
    case Step::Kind::kRun:
      return run_step(thread, step);
    case Step::Kind::kPause:
      return step_done(thread, step.amount);
    case Step::Kind::kGrow:
      return allocate(thread, step);
    case Step::Kind::kShrink:
      clients_[static_cast<size_t>(step.gpu)]->release(step.amount);
      return step_done(thread, 10 * kUs);
    case Step::Kind::kMeet:
      return meet(thread, step);
    case Step::Kind::kCapture:
      return capture(thread, step);
    case Step::Kind::kReset:
      return reset(thread, step);
  }
}

void Process::step_done(Thread& thread, Duration then) {
  thread.steps.pop_front();
  thread.state = Thread::State::kFree;
  later(then, [this, &thread] { go_on(thread); });
}

void Process::submit(Client& client, Duration kernel, bool linked) {
  run_.checks().submits(*this, client);
  ++submissions_;
  longest_ = std::max(longest_, kernel);
  for (Work& work : work_) {
    if (!std::exchange(work.linked, false)) continue;
    work.ends = std::max(work.ends, run_.world().now()) + work.linked_for;
  }
  Work& work = work_[client.place()];
  if (linked) {
    work.linked = true;
    work.linked_for = kernel;
  } else {
    work.ends = std::max(work.ends, run_.world().now()) + kernel;
  }
}

void Process::run_step(Thread& thread, Step& step) {
  if (step.amount <= 0 && plan_.waits_seen) return wait_for_work(thread);
  if (!pass_gate(thread)) return;
  const auto gpu = static_cast<size_t>(step.gpu);
  const Instant now = run_.world().now();
  if (step.amount <= 0) {  // what it submitted is waited for
    const Instant ends = work_ends(clients_[gpu].get());
    if (ends > now && ends != turn::kNever) return later(ends - now, [this, &thread] { go_on(thread); });
    if (ends == turn::kNever) return later(kMs, [this, &thread] { go_on(thread); });
    return step_done(thread, random_.between(1, 200) * kUs);
  }
  const Duration kernel = std::min<Duration>(step.amount, random_.between(plan_.kernel / 4 + 1, plan_.kernel));
  step.amount -= kernel;
  const bool linked = step.amount > 0 && random_.chance(plan_.linked);
  submit(*clients_[gpu], kernel, linked);
  thread.ends = work_[gpu].ends;
  const bool bounded = clients_[gpu]->turn().watch.watched;
  const Duration ahead = bounded ? std::min(plan_.ahead, 20 * kMs) : plan_.ahead;
  const Duration behind = work_[gpu].ends - now - ahead;
  later(std::max(behind, Duration{0}) + random_.between(1, 100) * kUs, [this, &thread] { go_on(thread); });
}

// A call of the program's that the library sees return: it was for what the thread submitted, others' work may go on.
void Process::wait_for_work(Thread& thread) {
  const Instant now = run_.world().now();
  if (thread.ends > now) return later(thread.ends - now + wake_time(), [this, &thread] { go_on(thread); });
  // Who came is counted a moment later than the return.
  later(random_.chance(90) ? 0 : random_.between(0, 30) * kUs, [this, now] {
    if (now < waited_at_) return;
    waited_at_ = now;
    waited_after_ = entries_;
  });
  step_done(thread, random_.between(1, 200) * kUs);
}

// It begins with the gate open. In the middle of it calls on its own stream pass a closed one, and others wait there.
void Process::capture(Thread& thread, Step& step) {
  if (!thread.captures) {
    if (!pass_gate(thread)) return;
    if (synchronizing_ > 0) return later(random_.between(10, 500) * kUs, [this, &thread] { go_on(thread); });
    thread.captures = true;
    ++capturing_;
    run_.world().tell("program {} begins a capture", plan_.number);
  }
  if (step.amount > 0) {
    const bool passes = thread.state != Thread::State::kAtGate && random_.chance(70);
    if (!passes && !pass_gate(thread)) return;
    ++submissions_;
    const Duration next = std::min<Duration>(step.amount, random_.between(10, 20'000) * kUs);
    step.amount -= next;
    return later(next, [this, &thread] { go_on(thread); });
  }
  thread.captures = false;
  --capturing_;
  run_.world().tell("program {} ends a capture", plan_.number);
  step = {Step::Kind::kRun, random_.between(1, 50) * kMs, step.gpu};
  later(random_.between(1, 1000) * kUs, [this, &thread] { go_on(thread); });
}

// The end of a context waits for the GPU's work, and for the swap engine, which may be in the middle of something in it.
void Process::reset(Thread& thread, Step& step) {
  Client& client = *clients_[static_cast<size_t>(step.gpu)];
  const Instant now = run_.world().now();
  const Instant ends = work_ends(&client);
  if (ends > now) return later(ends == turn::kNever ? kMs : ends - now, [this, &thread] { go_on(thread); });
  if (!client.end_context()) return later(kMs, [this, &thread] { go_on(thread); });
  run_.world().tell("program {} has no context", plan_.number);
  has_context_ = false;
  later(step.amount, [this, &thread, &client] {
    run_.world().tell("program {} has a context again", plan_.number);
    has_context_ = true;
    client.begin_context();
    step_done(thread, random_.between(1, 100) * kUs);
  });
}

// A collective: each GPU's part runs until all have theirs.
void Process::meet(Thread& thread, Step& step) {
  if (!pass_gate(thread)) return;
  if (thread.met < clients_.size()) {
    const bool last = thread.met + 1 == clients_.size();
    submit(*clients_[thread.met], std::min<Duration>(step.amount, 50 * kMs), false);
    if (!last) {
      work_[thread.met].linked = true;
      work_[thread.met].linked_for = std::min<Duration>(step.amount, 50 * kMs);
    }
    ++thread.met;
    return later(random_.between(1, 3000) * kUs, [this, &thread] { go_on(thread); });
  }
  const Instant ends = work_ends(nullptr);
  const Instant now = run_.world().now();
  if (ends > now) return later(ends == turn::kNever ? kMs : ends - now, [this, &thread] { go_on(thread); });
  thread.met = 0;
  step.amount -= 50 * kMs;
  if (step.amount > 0) return later(random_.between(1, 500) * kUs, [this, &thread] { go_on(thread); });
  step_done(thread, random_.between(1, 200) * kUs);
}

// ---- memory ----

// False: it waits, or was refused.
bool Process::charge(Thread& thread, Client& client) {
  using Answer = turn::Headroom::Answer;
  if (thread.charged) return true;
  const Answer answer = client.turn().headroom.answer;
  const auto wait = [&] {
    thread.state = Thread::State::kCharging;
    // A look now and then, for the end of patience where there is no scheduler.
    later(500 * kMs, [this, &thread] {
      if (thread.state == Thread::State::kCharging) wake(thread);
    });
    return false;
  };
  if (!thread.asked) {
    if (client.can_charge(thread.allocates)) return thread.charged = true;
    if (answer != Answer::kNone) return wait();  // of another thread
    thread.asked = true;
    run_.moment(*this, Moment::kAsksHeadroom);
    client.take(turn::HeadroomWanted{static_cast<uint64_t>(thread.allocates)});
    return wait();
  }
  const bool alone = !client.turn().connected && run_.world().now() - client.turn().disconnected_at > 2 * kSec;
  if (answer == Answer::kAsked && !alone) return wait();
  thread.asked = false;
  thread.charged = answer == Answer::kCharged;
  client.take(turn::HeadroomEnded{});
  if (!thread.charged) refuse(thread, client);
  return thread.charged;
}

void Process::allocate(Thread& thread, Step& step) {
  Client& client = *clients_[static_cast<size_t>(step.gpu)];
  thread.allocates = step.amount;
  if (!client.registered() && client.id() == 0) return later(kMs, [this, &thread] { go_on(thread); });  // its first moments
  if (!charge(thread, client)) return;
  if (thread.state == Thread::State::kGrowing) return grow(thread, client);
  const Client::Room room = client.allocate(step.amount);
  if (room != Client::Room::kShort) thread.short_since = 0;
  switch (room) {
    case Client::Room::kGot:
      return allocated(thread);
    case Client::Room::kNever:
      client.refund(thread.allocates);
      return refuse(thread, client);
    case Client::Room::kGrow:
      leave_gate(thread);
      thread.state = Thread::State::kGrowing;
      return grow(thread, client);
    case Client::Room::kWait:
      if (thread.state != Thread::State::kSettling && thread.state != Thread::State::kAtGate) {
        thread.state = Thread::State::kSettling;
        ++waiting_;
      }
      return later(2 * kMs, [this, &thread] {
        if (thread.state == Thread::State::kSettling) wake(thread);
      });
    case Client::Room::kShort:
      return driver_has_none(thread, client);
    case Client::Room::kJoin:
      pass_gate(thread);
      return later(10 * kMs, [this, &thread] {
        if (thread.state == Thread::State::kAtGate) wake(thread);
      });
  }
}

// A neighbour's memory may take a moment to come free. The thread waits within the gate.
void Process::driver_has_none(Thread& thread, Client& client) {
  constexpr Duration kPatience = 2 * kSec;
  leave_gate(thread);
  const Instant now = run_.world().now();
  if (thread.short_since == 0) thread.short_since = now;
  if (now - thread.short_since < kPatience) return later(2 * kMs, [this, &thread] { go_on(thread); });
  thread.short_since = 0;
  client.refund(thread.allocates);
  refuse(thread, client);
}

void Process::grow(Thread& thread, Client& client) {
  using Answer = turn::Growth::Answer;
  const Answer answer = client.turn().growth.answer;
  const auto again = [&] {
    thread.state = Thread::State::kFree;
    later(100 * kUs, [this, &thread] { go_on(thread); });
  };
  if (!thread.asked) {
    if (turn::lost_turn(client.turn())) return again();
    if (answer != Answer::kNone) return;
    if (client.covers(thread.allocates)) return again();
    thread.asked = true;
    run_.moment(*this, Moment::kGrows);
    client.take(turn::GrowthWanted{static_cast<uint64_t>(thread.allocates)});
    return;
  }
  const bool lost = turn::lost_turn(client.turn());
  if (answer == Answer::kAsked && !lost && !client.grow_alone(thread.allocates)) {
    if (!client.turn().connected) {
      later(500 * kMs, [this, &thread] {
        if (thread.state == Thread::State::kGrowing) wake(thread);
      });
    }
    return;
  }
  const Answer end = client.turn().growth.answer;
  thread.asked = false;
  client.take(turn::GrowthEnded{});
  if (end != Answer::kRefused) return again();
  client.refund(thread.allocates);
  refuse(thread, client);
}

void Process::allocated(Thread& thread) {
  leave_gate(thread);
  thread.charged = false;
  run_.world().tell("program {} has {} MiB more", plan_.number, thread.allocates / kMiB);
  step_done(thread, random_.between(1, 100) * kUs);
}

// Out of memory: it goes on without.
void Process::refuse(Thread& thread, Client&) {
  leave_gate(thread);
  thread.charged = false;
  run_.world().tell("program {} is refused {} MiB", plan_.number, thread.allocates / kMiB);
  step_done(thread, random_.between(1, 100) * kUs);
}

void Process::exit_if_done() {
  const bool done =
      std::all_of(threads_.begin(), threads_.end(), [](const Thread& thread) { return thread.state == Thread::State::kDone; });
  if (!done || !alive_) return;
  run_.world().tell("program {} exits", plan_.number);
  end(false);
}

std::string Process::describe() const {
  constexpr const char* kStates[] = {"free", "at the gate", "growing", "charging", "settling", "meeting", "done"};
  std::string text = fmt::format("  program {}{}{}, gate {:#x}, {} wait:", plan_.number, alive_ ? "" : " (ended)",
                                 stopped_ ? " (stopped)" : "", closed_, waiting_);
  for (const Thread& thread : threads_)
    text += fmt::format(" thread {} {} ({} steps left)", thread.number, kStates[static_cast<int>(thread.state)], thread.steps.size());
  text += "\n";
  for (const auto& client : clients_) text += client->describe();
  return text;
}

}  // namespace nvshare::simulation
