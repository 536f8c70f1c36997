// One pod specification in a manifest: its containers' GPU resources become requests of one claim.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/convert/edits.h"
#include "cli/convert/gpu_ask.h"
#include "cli/convert/yaml.h"

namespace nvshare::cli::convert {

struct Request {
  std::string name;
  GpuAsk ask;
};

struct Remark {
  size_t line = 0;
  std::string text;
  bool failed = false;  // something that asks for a GPU is left as it was
};

// Keys and values of a new item of a list.
using Item = std::vector<std::pair<const char*, std::string>>;

class PodSpec {
 public:
  PodSpec(const Document& document, const Node& spec, const Options& options) : document_(document), spec_(spec), options_(options) {}

  // What its containers ask for, and whether there is a place for claims. A remark that failed: nothing of this pod is to be changed.
  void read(const Edits& text);
  const std::vector<Request>& requests() const { return requests_; }
  const std::vector<Remark>& remarks() const { return remarks_; }
  bool failed() const;
  // Keys of resources that were looked at, by place.
  const std::set<size_t>& seen() const { return seen_; }

  // Its containers then have parts of a claim that `claim_template` makes. Only if it has requests and did not fail.
  void rewrite(const std::string& claim_template, Edits& edits);

 private:
  struct Container {
    const Node* node;
    std::string name;
    bool init;  // and it ends before others begin
    GpuAsk ask;
    std::string request;
  };

  const Node* looked_up(const Node& parent, const char* key, Node::Kind kind, const char* what);
  bool is_plain(const Node& node, const char* what);
  void read_list(const char* key);
  void read_container(const Node& node, bool init);
  void look_for_places(const Edits& text);
  void look_for_place(const Node& mapping, const char* what, const char* sequence, const Edits& text);
  void name_requests();
  std::string free_claim_name() const;
  void rewrite_container(const Container& container, const std::string& claim, Edits& edits);
  void rewrite_block(const Node& resources, const Item& item, Edits& edits);
  void rewrite_flow(const Node& resources, const Item& item, Edits& edits);
  void remove_line(const Node& key, Edits& edits);
  void remark(const Node& node, std::string text, bool failed) { remarks_.push_back({node.line, std::move(text), failed}); }

  const Document& document_;
  const Node& spec_;
  const Options& options_;
  std::vector<Container> containers_;
  std::vector<Request> requests_;
  std::vector<Remark> remarks_;
  std::set<size_t> seen_;
};

}  // namespace nvshare::cli::convert
