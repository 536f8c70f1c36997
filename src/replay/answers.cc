#include "replay/answers.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "policy/overloaded.h"

namespace nvshare::replay {
namespace {

policy::Actions without_notes(policy::Actions actions) {
  const auto is_note = [](const policy::Action& action) { return std::holds_alternative<policy::Note>(action); };
  actions.erase(std::remove_if(actions.begin(), actions.end(), is_note), actions.end());
  return actions;
}

template <typename Of>
constexpr bool kNamesAClient = requires(const Of& of) {
  of.client;
};

template <typename Variant>
std::optional<policy::ClientId> client_of(const Variant& what) {
  return std::visit(
      []<typename Of>(const Of& of) -> std::optional<policy::ClientId> {
        if constexpr (kNamesAClient<Of>) return of.client;
        return std::nullopt;
      },
      what);
}

// Those of `some` that are not in `others`, which are as often there as here.
void add_missing(const policy::Actions& some, const policy::Actions& others, std::set<policy::ClientId>& clients) {
  std::vector<std::string> left = scheduler::encode_answers(others);
  const std::vector<std::string> texts = scheduler::encode_answers(some);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto same = std::find(left.begin(), left.end(), texts[i]);
    if (same != left.end()) {
      left.erase(same);
    } else if (const auto client = client_of(some[i])) {
      clients.insert(*client);
    }
  }
}

std::set<policy::ClientId> clients_of(const Difference& difference) {
  std::set<policy::ClientId> clients;
  if (const auto client = client_of(difference.event)) clients.insert(*client);
  add_missing(difference.recorded, difference.answered, clients);
  add_missing(difference.answered, difference.recorded, clients);
  return clients;
}

bool are_same(const policy::Actions& recorded, const policy::Actions& answered) {
  if (recorded.size() != answered.size()) return false;
  return recorded.empty() || scheduler::encode_answers(recorded) == scheduler::encode_answers(answered);
}

}  // namespace

void Answers::begin(const scheduler::TraceStart& start) {
  length_ = length();
  first_ = now_ = 0;
  any_event_ = false;
  state_ = policy::make_state(*start.config);
  has_answers_ = start.has_answers;
  has_wakes_ = start.has_wakes;
  wake_.reset();
  names_.clear();
  ++schedulers_;
  releases_.insert(start.release);
}

bool Answers::take(size_t line, const scheduler::TraceEvent& traced) {
  if (!std::exchange(any_event_, true)) first_ = traced.now;
  now_ = traced.now;
  ++events_;
  policy::Actions answered = without_notes(policy::step(*state_, traced.event, traced.now));
  if (!has_answers_) return true;
  ++compared_;
  if (has_wakes_ && traced.wake) wake_ = *traced.wake;
  const scheduler::Wake wake = has_wakes_ ? policy::next_deadline(*state_) : std::nullopt;
  if (are_same(traced.answers, answered) && wake == wake_) {
    actions_ += answered.size();
    return true;
  }
  difference_ = Difference{line, traced.now, now_ - first_, traced.event, traced.answers, std::move(answered), wake_, wake, {}};
  difference_->clients = clients_of(*difference_);
  return false;
}

Result<bool> Answers::add(const Recording::Line& line) {
  const auto* start = std::get_if<scheduler::TraceStart>(&line.is);
  if (start != nullptr && start->config) {
    begin(*start);
    return true;
  }
  if (start != nullptr || std::holds_alternative<scheduler::TraceSighting>(line.is))
    return error_format("this is what a scheduler remembers of its last minute, not a recording of events");
  if (!state_) return error_format("an event comes before the settings: this is not the beginning of a recording");
  if (const auto* names = std::get_if<scheduler::TraceNames>(&line.is)) {
    names_[names->client] = *names;
    return true;
  }
  return take(line.number, std::get<scheduler::TraceEvent>(line.is));
}

std::vector<policy::ClientView> Answers::views(const std::set<policy::ClientId>& clients, policy::Instant now) const {
  std::vector<policy::ClientView> views;
  for (const policy::GpuView& gpu : policy::view(*state_, now)) {
    for (const policy::ClientView& client : gpu.clients) {
      if (clients.count(client.client) > 0) views.push_back(client);
    }
  }
  return views;
}

namespace {

// Up to `end`, which is not read; 0: all of it.
Result<Replayed> replay_until(const std::string& file, size_t end) {
  std::ifstream stream(file);
  if (!stream) return error_format("%s; nvshare-scheduler --trace FILE makes a recording", std::strerror(errno));
  Recording recording(stream);
  Replayed replayed;
  while (true) {
    auto line = recording.next();
    if (!line) return line.error();
    if (!*line || (**line).number == end) break;
    const auto same = replayed.answers.add(**line);
    if (!same) return error_format("line %zu: %s; accepted is what nvshare-scheduler --trace wrote", (**line).number, same.error().text);
    if (!*same) break;
  }
  if (stream.bad()) return error_format("it cannot be read: %s; nvshare-scheduler --trace FILE makes a recording", std::strerror(errno));
  replayed.incomplete = recording.incomplete();
  return replayed;
}

}  // namespace

Result<Replayed> replay(const std::string& file) {
  auto replayed = replay_until(file, 0);
  if (!replayed || !replayed->answers.difference()) return replayed;
  const Difference& difference = *replayed->answers.difference();
  auto before = replay_until(file, difference.line);
  if (before && before->answers.schedulers() == replayed->answers.schedulers())
    replayed->before = before->answers.views(difference.clients, difference.now);
  return replayed;
}

}  // namespace nvshare::replay
