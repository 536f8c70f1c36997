#include "cli/convert/yaml.h"

#include <yaml.h>

#include <optional>

namespace nvshare::cli::convert {
namespace {

constexpr int kDepthMax = 100;

// libyaml counts characters, a text has bytes.
std::vector<size_t> character_starts(const std::string& text) {
  std::vector<size_t> starts;
  starts.reserve(text.size() + 1);
  for (size_t i = byte_order_mark(text); i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  }
  starts.push_back(text.size());
  return starts;
}

std::string text_of(const yaml_char_t* text) { return text == nullptr ? std::string() : reinterpret_cast<const char*>(text); }

class Reader {
 public:
  explicit Reader(const std::string& text) : starts_(character_starts(text)) {
    yaml_parser_initialize(&parser_);
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    const size_t skipped = byte_order_mark(text);  // libyaml takes it as part of the text once the encoding is set
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()) + skipped, text.size() - skipped);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }

  Result<std::vector<Document>> read() {
    std::vector<Document> documents;
    while (next() && event_.type != YAML_STREAM_END_EVENT) {
      if (event_.type != YAML_DOCUMENT_START_EVENT) continue;
      Document document;
      document.start = at(event_.start_mark);
      document.explicit_start = event_.data.document_start.implicit == 0;
      document.directives = event_.data.document_start.version_directive != nullptr ||
                            event_.data.document_start.tag_directives.start != event_.data.document_start.tag_directives.end;
      if (!next()) break;
      document.root = node(0);
      document.aliases = std::move(aliases_);
      aliases_.clear();
      if (document.root.kind != Node::Kind::kScalar || !document.root.value.empty()) documents.push_back(std::move(document));
    }
    if (problem_) return *problem_;
    return documents;
  }

 private:
  bool next() {
    if (problem_) return false;
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) != 0) return true;
    event_ = {};
    const bool reader = parser_.error == YAML_READER_ERROR;
    problem_ = error_format("line %zu: %s%s%s", (reader ? parser_.mark.line : parser_.problem_mark.line) + 1,
                            parser_.context != nullptr ? parser_.context : "", parser_.context != nullptr ? ": " : "",
                            parser_.problem != nullptr ? parser_.problem : "it is no YAML");
    return false;
  }

  size_t at(const yaml_mark_t& mark) const { return starts_[mark.index < starts_.size() ? mark.index : starts_.size() - 1]; }

  // The node that the current event begins; the event after it is not read.
  Node node(int depth) {
    Node made;
    made.start = at(event_.start_mark);
    made.end = at(event_.end_mark);
    made.line = event_.start_mark.line + 1;
    if (depth > kDepthMax) {
      problem_ = error_format("line %zu: nested more than %d times", made.line, kDepthMax);
      return made;
    }
    switch (event_.type) {
      case YAML_ALIAS_EVENT:
        made.kind = Node::Kind::kAlias;
        made.value = text_of(event_.data.alias.anchor);
        aliases_.insert(made.value);
        break;
      case YAML_SCALAR_EVENT:
        made.value.assign(reinterpret_cast<const char*>(event_.data.scalar.value), event_.data.scalar.length);
        made.anchor = text_of(event_.data.scalar.anchor);
        break;
      case YAML_SEQUENCE_START_EVENT:
        made.kind = Node::Kind::kSequence;
        made.anchor = text_of(event_.data.sequence_start.anchor);
        made.flow = event_.data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE;
        children(made, YAML_SEQUENCE_END_EVENT, depth);
        break;
      case YAML_MAPPING_START_EVENT:
        made.kind = Node::Kind::kMapping;
        made.anchor = text_of(event_.data.mapping_start.anchor);
        made.flow = event_.data.mapping_start.style == YAML_FLOW_MAPPING_STYLE;
        children(made, YAML_MAPPING_END_EVENT, depth);
        refuse_double_keys(made);
        break;
      case YAML_NO_EVENT:
      case YAML_STREAM_START_EVENT:
      case YAML_STREAM_END_EVENT:
      case YAML_DOCUMENT_START_EVENT:
      case YAML_DOCUMENT_END_EVENT:
      case YAML_SEQUENCE_END_EVENT:
      case YAML_MAPPING_END_EVENT:
        break;  // libyaml's grammar has none of these here
    }
    return made;
  }

  void children(Node& parent, yaml_event_type_t last, int depth) {
    while (next() && event_.type != last) parent.children.push_back(node(depth + 1));
    if (problem_) return;
    // Of a block the end that libyaml tells is the next token's place.
    if (parent.flow) {
      parent.end = at(event_.end_mark);
    } else if (!parent.children.empty()) {
      parent.end = parent.children.back().end;
    }
  }

  void refuse_double_keys(const Node& mapping) {
    std::set<std::string> seen;
    for (size_t i = 0; i + 1 < mapping.children.size() && !problem_; i += 2) {
      const Node& key = mapping.children[i];
      if (key.kind == Node::Kind::kScalar && !seen.insert(key.value).second)
        problem_ = error_format("line %zu: '%.100s' is there twice", key.line, key.value.c_str());
    }
  }

  std::vector<size_t> starts_;
  std::set<std::string> aliases_;
  std::optional<Error> problem_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
};

}  // namespace

const Node* Node::key_of(std::string_view key) const {
  if (kind != Kind::kMapping) return nullptr;
  for (size_t i = 0; i + 1 < children.size(); i += 2) {
    if (children[i].kind == Kind::kScalar && children[i].value == key) return &children[i];
  }
  return nullptr;
}

const Node* Node::find(std::string_view key) const {
  const Node* found = key_of(key);
  return found == nullptr ? nullptr : found + 1;
}

size_t byte_order_mark(const std::string& text) { return text.rfind("\xEF\xBB\xBF", 0) == 0 ? 3 : 0; }

Result<std::vector<Document>> read_documents(const std::string& text) { return Reader(text).read(); }

}  // namespace nvshare::cli::convert
