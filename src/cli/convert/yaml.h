// YAML documents as trees whose nodes know their place in the text, so that a change touches nothing else. Reads with libyaml.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nvshare::cli::convert {

struct Node {
  enum class Kind { kScalar, kSequence, kMapping, kAlias };
  Kind kind = Kind::kScalar;
  size_t start = 0;  // byte of the text
  size_t end = 0;    // the byte after the last one
  size_t line = 1;
  bool flow = false;           // {...} or [...]
  std::string value;           // of a scalar; of an alias, its anchor
  std::string anchor;          // empty: none
  std::vector<Node> children;  // of a mapping: key, value, key, value...

  // The value of that key; null: it is not there, or this is no mapping.
  const Node* find(std::string_view key) const;
  const Node* key_of(std::string_view key) const;
};

struct Document {
  size_t start = 0;  // of its "---" or directives; else of its first node
  bool explicit_start = false;
  bool directives = false;
  Node root;
  std::set<std::string> aliases;  // the anchors that are used
};

// Bytes before the text's first character: 0 or 3.
size_t byte_order_mark(const std::string& text);

// All documents of a text; empty ones are left out. Errors name the line: no YAML, a key twice in one mapping, nested too deeply.
Result<std::vector<Document>> read_documents(const std::string& text);

}  // namespace nvshare::cli::convert
