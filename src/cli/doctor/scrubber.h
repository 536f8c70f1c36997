// Takes out of a text what a stranger need not read: names of people, hosts, tenants and programs, addresses, and what looks like a key.
// Pure; used by one thread.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace nvshare::cli::doctor {

class Scrubber {
 public:
  // From now on `name` becomes `KIND-N`, a number for each, the same wherever it is. Empty names are passed over.
  void hide(const std::string& name, const std::string& kind);

  // Of any text. In running text names count as whole words of at least three characters that are no number.
  std::string text(std::string_view text) const;
  // Of one line of JSON: each string in it, keys apart. What is no JSON is taken as text.
  std::string json(const std::string& line) const;

 private:
  std::string replaced_names(std::string_view text) const;

  std::map<std::string, std::string> names_;
  std::map<std::string, int> numbers_;  // of each kind
};

}  // namespace nvshare::cli::doctor
