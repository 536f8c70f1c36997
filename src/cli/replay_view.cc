#include "cli/replay_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/printable.h"
#include "cli/units.h"
#include "policy/overloaded.h"

namespace nvshare::cli {
namespace {

using nlohmann::json;
using replay::Answers;
using replay::Difference;
using replay::Replayed;

std::string bytes(policy::Bytes amount) { return format_bytes(static_cast<uint64_t>(std::max<policy::Bytes>(amount, 0))); }

std::string number(uint64_t count, const char* thing) {
  std::string digits = std::to_string(count);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return fmt::format("{} {}{}", digits, thing, count == 1 ? "" : "s");
}

// Seconds to the nanosecond, as the recording has it.
std::string seconds(policy::Duration ns) { return fmt::format("{}.{:09} s", ns / 1'000'000'000, ns % 1'000'000'000); }

// ---- what the policy answers ----

std::string contention(const policy::SendContention& a) {
  std::string text = fmt::format("client {} is told that {} wait for the GPU and {} for memory; a switch costs {}", a.client, a.waiters,
                                 a.memory_waiters, format_duration(a.swap_cost));
  if (a.limited) text += "; its time is billed";
  if (a.idle_release > 0) text += fmt::format("; once idle for {} it gives the GPU up", format_duration(a.idle_release));
  if (a.pause > 0) text += fmt::format("; once idle for {} it may pause", format_duration(a.pause));
  if (a.gang_runs) text += "; others of its gang run";
  if (a.held) text += "; without a scheduler it waits";
  return text;
}

std::string words_of(const policy::Action& action) {
  using namespace policy;
  return std::visit(
      Overloaded{
          [](const SendLock& a) {
            return fmt::format("client {} has the GPU (grant {}) with a budget of {} (number {})", a.client, a.grant, bytes(a.budget),
                               a.budget_sequence);
          },
          [](const SendDrop& a) {
            return fmt::format("client {} is to give the GPU up (grant {}){}{}", a.client, a.grant,
                               a.together ? fmt::format(", together with others (attempt {})", a.attempt) : std::string(),
                               a.tells_end ? ", and may say when its work is about to end" : "");
          },
          [](const SendKeep& a) { return fmt::format("client {} keeps the GPU after all (grant {})", a.client, a.grant); },
          [](const SendEvict& a) { return fmt::format("client {} is to move {} out (eviction {})", a.client, bytes(a.bytes), a.eviction); },
          [](const SendWait& a) { return fmt::format("client {} is to wait for memory (request {})", a.client, a.request); },
          [](const SendMemory& a) {
            return fmt::format("client {} {} memory (request {}): its budget is {} (number {})", a.client, a.granted ? "gets" : "gets no",
                               a.request, bytes(a.budget), a.budget_sequence);
          },
          [](const SendContention& a) { return contention(a); },
          [](const SendAskProgress& a) {
            return fmt::format("client {} is asked what it has done (question {}){}", a.client, a.question,
                               a.counts ? ", and is to count it" : "");
          },
          [](const SendCeiling& a) { return fmt::format("client {} can have {} at most", a.client, bytes(a.ceiling)); },
          [](const SendPrefetch& a) {
            return fmt::format("client {} is to bring memory in until it has {} (prefetch {})", a.client, bytes(a.budget), a.prefetch);
          },
          [](const Note& a) { return a.text; }},
      action);
}

std::string answers_text(const char* whose, const policy::Actions& actions) {
  if (actions.empty()) return fmt::format("  {:<10}  nothing\n", whose);
  std::string text;
  for (const policy::Action& action : actions) {
    text += fmt::format("  {:<10}  {}\n", text.empty() ? whose : "", words_of(action));
    text += fmt::format("  {:<10}  {}\n", "", scheduler::encode_answers({action}).front());
  }
  return text;
}

std::string wakes_text(const Difference& difference) {
  if (difference.wake_recorded == difference.wake_answered) return "";
  const auto text = [](const char* whose, const scheduler::Wake& wake) {
    return fmt::format("  {:<10}  asks to be woken {}\n", whose, wake ? "at " + seconds(*wake) : "by what happens next only");
  };
  return text("recorded", difference.wake_recorded) + text("this build", difference.wake_answered);
}

// ---- clients ----

std::string name_of(policy::ClientId client, const Answers& answers) {
  const auto named = answers.names().find(client);
  if (named == answers.names().end()) return fmt::format("client {}", client);
  const scheduler::TraceNames& names = named->second;
  return printable(fmt::format("client {}: {} (pid {}) of tenant {} '{}', on {}", client, names.program, names.pid, names.tenant,
                               names.tenant_name, names.gpu));
}

std::string client_text(const policy::ClientView& client, policy::Instant now) {
  std::string text =
      fmt::format("{} for {}", policy::name_of(client.state), format_duration(std::max<policy::Duration>(now - client.since, 0)));
  if (!client.waiting_for.empty()) text += fmt::format(" (for {})", client.waiting_for);
  text += fmt::format("; {} allocated, {} on the GPU, budget {}, context {}; priority {}, {}", bytes(client.memory.allocated),
                      bytes(client.memory.resident), bytes(client.budget), bytes(client.overhead), client.priority,
                      number(client.turns, "turn"));
  if (client.evicting) text += "; its memory moves out";
  if (client.held) text += "; its tenant is paused";
  return text;
}

std::string clients_text(const Replayed& replayed) {
  const Difference& difference = *replayed.answers.difference();
  std::string text;
  for (const policy::ClientId id : difference.clients) {
    text += fmt::format("  {:<10}  {}\n", text.empty() ? "before it" : "", name_of(id, replayed.answers));
    const policy::ClientView* found = nullptr;
    for (const policy::ClientView& client : replayed.before) {
      if (client.client == id) found = &client;
    }
    text += fmt::format("  {:<10}  {}\n", "", found != nullptr ? client_text(*found, difference.now) : "not known yet");
  }
  return text;
}

json client_json(const policy::ClientView& client, const Answers& answers) {
  json made = {{"client", client.client},
               {"gpu", client.gpu},
               {"tenant", client.tenant},
               {"priority", client.priority},
               {"state", policy::name_of(client.state)},
               {"since", client.since},
               {"waiting_for", client.waiting_for},
               {"held_up_by", client.held_up_by},
               {"allocated", client.memory.allocated},
               {"resident", client.memory.resident},
               {"unswappable", client.memory.unswappable},
               {"budget", client.budget},
               {"overhead", client.overhead},
               {"turns", client.turns},
               {"in_turn", client.in_turn},
               {"evicting", client.evicting}};
  const auto named = answers.names().find(client.client);
  if (named == answers.names().end()) return made;
  made["program"] = printable(named->second.program);
  made["pid"] = named->second.pid;
  made["tenant_name"] = printable(named->second.tenant_name);
  return made;
}

// ---- all of it ----

std::string event_json(const Difference& difference) {
  return scheduler::encode_trace(scheduler::TraceEvent{difference.now, difference.event});
}

std::string difference_text(const Replayed& replayed) {
  const Difference& difference = *replayed.answers.difference();
  std::string text = fmt::format("line {}, at {}, {} after its scheduler's first event: the answers differ\n", difference.line,
                                 seconds(difference.now), seconds(difference.into));
  const std::string event = event_json(difference);
  text += fmt::format("  {:<10}  {}\n  {:<10}  {}\n", "event", json::parse(event).at("event").get<std::string>(), "", event);
  text += answers_text("recorded", difference.recorded);
  text += answers_text("this build", difference.answered);
  return text + wakes_text(difference) + clients_text(replayed);
}

json arrays_of(const policy::Actions& actions) {
  json made = json::array();
  for (const std::string& action : scheduler::encode_answers(actions)) made.push_back(json::parse(action));
  return made;
}

std::string releases_text(const std::set<std::string>& releases) {
  if (releases.empty()) return "";
  std::vector<std::string> names;
  for (const std::string& release : releases) names.push_back(release.empty() ? "0.1.0" : printable(release));
  return fmt::format(", recorded by release {}", fmt::join(names, ", "));
}

}  // namespace

int exit_code_of(const Replayed& replayed) {
  if (replayed.answers.difference()) return kExitAnswerDiffers;
  return replayed.answers.compared() == 0 ? kExitNoAnswers : 0;
}

std::string replay_text(const Replayed& replayed, const std::string& file, const std::string& this_release) {
  const Answers& answers = replayed.answers;
  std::string text = fmt::format("{}: {} over {}{}, replayed by release {}\n", file, number(answers.events(), "event"),
                                 format_duration(answers.length()), releases_text(answers.releases()), this_release);
  if (answers.schedulers() > 1) text += fmt::format("{} wrote it, one after the other\n", number(answers.schedulers(), "scheduler"));
  if (replayed.incomplete > 0)
    text += fmt::format("{} left out, which a scheduler had not finished\n", number(replayed.incomplete, "line"));
  const uint64_t unanswered = answers.events() - answers.compared();
  if (answers.compared() > 0 && unanswered > 0)
    text += fmt::format("{} without recorded answers, from a scheduler before 0.3.0: not compared\n", number(unanswered, "event"));
  if (answers.difference()) return text + difference_text(replayed);
  if (answers.compared() > 0) return text + fmt::format("the same answers: {}\n", number(answers.actions(), "action"));
  if (answers.events() == 0) return text + "there is nothing to compare: it has no events\n";
  return text + "there is nothing to compare: answers are recorded by nvshare-scheduler --trace from release 0.3.0 on\n";
}

std::string replay_json(const Replayed& replayed, const std::string& file, const std::string& this_release) {
  const Answers& answers = replayed.answers;
  json made = {{"recording", file},
               {"releases", answers.releases()},
               {"this_release", this_release},
               {"schedulers", answers.schedulers()},
               {"events", answers.events()},
               {"compared", answers.compared()},
               {"actions", answers.actions()},
               {"length_ns", answers.length()},
               {"incomplete_lines", replayed.incomplete},
               {"answers", answers.difference()     ? "differ"
                           : answers.compared() > 0 ? "same"
                                                    : "not recorded"}};
  if (answers.difference()) {
    const Difference& difference = *answers.difference();
    json clients = json::array();
    for (const policy::ClientView& client : replayed.before) clients.push_back(client_json(client, answers));
    made["difference"] = {{"line", difference.line},
                          {"now", difference.now},
                          {"into_ns", difference.into},
                          {"event", json::parse(event_json(difference))},
                          {"recorded", arrays_of(difference.recorded)},
                          {"this_build", arrays_of(difference.answered)},
                          {"clients_before", std::move(clients)}};
    if (difference.wake_recorded != difference.wake_answered) {
      const auto wake_json = [](const scheduler::Wake& wake) { return wake ? json(*wake) : json(); };
      made["difference"]["wake_recorded"] = wake_json(difference.wake_recorded);
      made["difference"]["wake_this_build"] = wake_json(difference.wake_answered);
    }
  }
  return made.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace nvshare::cli
