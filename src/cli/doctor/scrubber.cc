#include "cli/doctor/scrubber.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_nesting.h"

namespace nvshare::cli::doctor {
namespace {

using Json = nlohmann::json;

constexpr size_t kNameMin = 3;
constexpr size_t kOpaqueMin = 24;  // letters and digits in one piece: a key, a container's number
constexpr std::string_view kSecretWords[] = {"token",   "secret",        "passw",  "apikey",     "api_key",
                                             "api-key", "authorization", "bearer", "credential", "cookie"};
constexpr char kTaken[] = "[removed]";

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) { return is_letter(c) || c == '_' || c == '-' || c == '.'; }

bool is_number(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return is_digit(c) || c == '.' || c == '-'; });
}

bool names_a_secret(std::string_view piece) {
  std::string low(piece);
  std::transform(low.begin(), low.end(), low.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(std::begin(kSecretWords), std::end(kSecretWords),
                     [&](std::string_view word) { return low.find(word) != std::string::npos; });
}

// Four numbers with dots between them, or hexadecimal ones with three colons or two in a row. The loopback is everybody's.
bool is_address(std::string_view piece) {
  if (piece.starts_with("127.") || piece == "::1") return false;
  const auto dots = std::count(piece.begin(), piece.end(), '.'), colons = std::count(piece.begin(), piece.end(), ':');
  const std::string_view before_port = piece.substr(0, piece.find(':'));
  if (dots == 3 && colons <= 1 && !before_port.starts_with('.') && is_number(before_port) &&
      before_port.find('-') == std::string_view::npos)
    return true;
  const bool hexadecimal = std::all_of(piece.begin(), piece.end(),
                                       [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0 || c == ':' || c == '.'; });
  return hexadecimal && colons >= 2 && (colons >= 3 || piece.find("::") != std::string_view::npos);
}

bool is_mail(std::string_view piece) {
  const size_t at = piece.find('@');
  return at != std::string_view::npos && at > 0 && piece.find('.', at) != std::string_view::npos;
}

bool is_opaque(std::string_view piece) {
  const auto letters = std::count_if(piece.begin(), piece.end(), [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; });
  const auto digits = std::count_if(piece.begin(), piece.end(), is_digit);
  return static_cast<size_t>(letters + digits) >= kOpaqueMin && letters > 0 && digits > 0;
}

// /home/ann/data -> /home/user/data
std::string without_homes(std::string text) {
  for (const std::string_view home : {"/home/", "/Users/"}) {
    for (size_t at = text.find(home); at != std::string::npos; at = text.find(home, at + home.size())) {
      const size_t begin = at + home.size(), end = std::min(text.find_first_of("/ \t\r\n\"':,;", begin), text.size());
      text.replace(begin, end - begin, "user");
    }
  }
  return text;
}

// A word as it may be read by everybody. `secret`: the word before said that this one is; and whether this one says so of the next.
std::string shown(std::string_view word, bool& secret) {
  if (word.find_first_not_of("=:-") == std::string_view::npos) return std::string(word);  // between a name and its value
  if (names_a_secret(word)) {
    const size_t sign = word.find_first_of("=:");
    const bool value_follows = sign == std::string_view::npos || sign + 1 == word.size();
    secret = value_follows;
    return value_follows ? std::string(word) : std::string(word.substr(0, sign + 1)) + kTaken;
  }
  if (std::exchange(secret, false) || is_address(word) || is_mail(word) || is_opaque(word)) return kTaken;
  return std::string(word);
}

std::string without_secrets(std::string_view text) {
  constexpr std::string_view kBetween = " \t\r\n\"',;()[]{}<>/";
  std::string out;
  bool secret = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    if (end == at) {
      if (text[at] == '\n') secret = false;
      out += text[at++];
      continue;
    }
    out += shown(text.substr(at, end - at), secret);
    at = end;
  }
  return out;
}

}  // namespace

void Scrubber::hide(const std::string& name, const std::string& kind) {
  if (name.empty() || names_.count(name) != 0) return;
  names_[name] = kind + "-" + std::to_string(++numbers_[kind]);
}

std::string Scrubber::replaced_names(std::string_view text) const {
  std::string out(text);
  std::map<size_t, std::map<std::string, std::string>, std::greater<>> by_length;  // a name may be within another
  for (const auto& [name, replacement] : names_) {
    if (name.size() >= kNameMin && !is_number(name)) by_length[name.size()][name] = replacement;
  }
  for (const auto& [length, names] : by_length) {
    for (const auto& [name, replacement] : names) {
      for (size_t at = out.find(name); at != std::string::npos; at = out.find(name, at)) {
        const bool whole = (at == 0 || !is_name(out[at - 1]) || !is_name(name.front())) &&
                           (at + length == out.size() || !is_name(out[at + length]) || out[at + length] == '.' || !is_name(name.back()));
        if (whole) out.replace(at, length, replacement);
        at += whole ? replacement.size() : 1;
      }
    }
  }
  return out;
}

std::string Scrubber::text(std::string_view text) const { return without_secrets(without_homes(replaced_names(text))); }

std::string Scrubber::json(const std::string& line) const {
  if (nests_too_deep(line)) return text(line);
  Json value = Json::parse(line, nullptr, false);
  if (value.is_discarded()) return text(line);
  const auto scrub = [this](auto& self, Json& one) -> void {
    if (one.is_string()) {
      const std::string found = one.get<std::string>();
      const auto name = names_.find(found);
      // A trace's lines are JSON within JSON.
      one = name != names_.end() ? name->second : found.starts_with('{') ? json(found) : text(found);
    } else if (one.is_structured()) {
      for (Json& part : one) self(self, part);
    }
  };
  scrub(scrub, value);
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nvshare::cli::doctor
