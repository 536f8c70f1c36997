#include "plan.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ops.h"
#include "structs.h"

namespace conformance {
namespace {

struct Named {
  Kind kind;
  const char* name;
};
constexpr Named kNames[] = {
    {Kind::kInt, "i"},           {Kind::kFloat, "flt"},
    {Kind::kNull, "null"},       {Kind::kDst, "dst"},
    {Kind::kSrc, "src"},         {Kind::kPtr, "ptr"},
    {Kind::kFreed, "freed"},     {Kind::kHostPtr, "hostp"},
    {Kind::kRegion, "region"},   {Kind::kHostIn, "hin"},
    {Kind::kHostOut, "hout"},    {Kind::kBind, "bind"},
    {Kind::kAt, "at"},           {Kind::kFunction, "fn"},
    {Kind::kParams, "kp"},       {Kind::kDeps, "deps"},
    {Kind::kDepCount, "ndeps"},  {Kind::kName, "name"},
    {Kind::kOutInt, "oi"},       {Kind::kOutWord, "oq"},
    {Kind::kOutPointer, "op"},   {Kind::kOutHandle, "oh"},
    {Kind::kOutText, "oz"},      {Kind::kOutString, "os"},
    {Kind::kOutBytes, "ox"},     {Kind::kOutAttribute, "oattr"},
    {Kind::kPartner, "partner"}, {Kind::kLost, "lost"},
};

[[noreturn]] void no_call(std::string_view text) {
  std::fprintf(stderr, "conformance: '%.*s' is no call\n", static_cast<int>(text.size()), text.data());
  std::exit(2);
}

std::string_view next_word(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view word = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return word;
}

void take_kind(Arg& arg, std::string_view name, std::string_view whole) {
  for (const Named& named : kNames) {
    if (name == named.name) {
      arg.kind = named.kind;
      return;
    }
  }
  if (const int shape = shape_of(name); shape >= 0) {
    arg.kind = Kind::kStruct;
    arg.shape = static_cast<uint8_t>(shape);
  } else if (name.size() == 2 && (name[0] == '+' || name[0] == '-')) {
    arg.kind = name[0] == '+' ? Kind::kNew : Kind::kGone;
    arg.letter = name[1];
  } else if (name.size() == 1) {
    arg.kind = Kind::kHandle;
    arg.letter = name[0];
  } else {
    no_call(whole);
  }
}

const char* name_of(Kind kind) {
  for (const Named& named : kNames) {
    if (named.kind == kind) {
      return named.name;
    }
  }
  return "?";
}

}  // namespace

std::string text_of(const Call& call) {
  std::string text;
  if (call.thread != 0) {
    text = "@" + std::to_string(call.thread) + " ";
  }
  text += ops()[static_cast<size_t>(call.op)].symbol;
  for (const Arg& arg : call.args) {
    text += arg.hidden ? " ~" : " ";
    if (arg.kind == Kind::kHandle) {
      text += arg.letter;
    } else if (arg.kind == Kind::kNew || arg.kind == Kind::kGone) {
      text += arg.kind == Kind::kNew ? '+' : '-';
      text += arg.letter;
    } else {
      text += arg.kind == Kind::kStruct ? shape_name(arg.shape) : name_of(arg.kind);
    }
    for (int i = 0; i < arg.count; ++i) {
      text += ":" + std::to_string(arg.v[i]);
    }
  }
  return text;
}

Call call_of(std::string_view text) {
  const std::string_view whole = text;
  Call call;
  if (!text.empty() && text[0] == '@') {
    call.thread = std::atoi(std::string(next_word(text, ' ').substr(1)).c_str());
  }
  call.op = op_of(next_word(text, ' '));
  if (call.op < 0) {
    no_call(whole);
  }
  while (!text.empty()) {
    std::string_view word = next_word(text, ' ');
    Arg arg;
    if (word.size() > 1 && word[0] == '~') {
      arg.hidden = true;
      word.remove_prefix(1);
    }
    take_kind(arg, next_word(word, ':'), whole);
    while (!word.empty() && arg.count < 8) {
      arg.v[arg.count++] = std::strtoll(std::string(next_word(word, ':')).c_str(), nullptr, 10);
    }
    call.args.push_back(arg);
  }
  return call;
}

}  // namespace conformance
