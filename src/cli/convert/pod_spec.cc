#include "cli/convert/pod_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nvshare::cli::convert {
namespace {

// The entries of a mapping in {...}, as they are written, but for those that a conversion takes away.
std::string kept_entries(const Node& mapping, const std::string& text) {
  std::string kept;
  for (size_t i = 0; i + 1 < mapping.children.size(); i += 2) {
    const Node& key = mapping.children[i];
    if (is_gpu_resource(key.value)) continue;
    kept += (kept.empty() ? "" : ", ") + text.substr(key.start, mapping.children[i + 1].end - key.start);
  }
  return kept;
}

bool all_go(const Node& mapping) {
  for (size_t i = 0; i + 1 < mapping.children.size(); i += 2) {
    if (!is_gpu_resource(mapping.children[i].value)) return false;
  }
  return !mapping.children.empty();
}

bool any_goes(const Node& mapping) {
  for (size_t i = 0; i + 1 < mapping.children.size(); i += 2) {
    if (is_gpu_resource(mapping.children[i].value)) return true;
  }
  return false;
}

// Quoted, so that JSON stays JSON.
std::string flow_item(const Item& item) {
  std::string text;
  for (const auto& [key, value] : item) text += fmt::format("{}\"{}\": \"{}\"", text.empty() ? "" : ", ", key, value);
  return "{" + text + "}";
}

std::string block_item(const Item& item, const std::string& indent) {
  std::string text;
  for (const auto& [key, value] : item) text += fmt::format("{}{}{}: {}\n", indent, text.empty() ? "- " : "  ", key, value);
  return text;
}

// The dash of a block sequence's first item; npos: it does not begin a line.
size_t first_dash(const Node& sequence, const Edits& edits) {
  const size_t dash = sequence.children.empty() ? std::string::npos : edits.text().rfind('-', sequence.children[0].start);
  return dash != std::string::npos && edits.begins_line(dash) ? dash : std::string::npos;
}

void prepend(const Node& sequence, const Item& item, Edits& edits) {
  if (sequence.flow) return edits.insert(sequence.start + 1, flow_item(item) + (sequence.children.empty() ? "" : ", "));
  const size_t dash = first_dash(sequence, edits);
  edits.insert(edits.line_start(dash), block_item(item, edits.indent(dash)));
}

}  // namespace

bool PodSpec::failed() const {
  return std::any_of(remarks_.begin(), remarks_.end(), [](const Remark& one) { return one.failed; });
}

// What stands in one place and counts in another cannot be changed for one of them.
bool PodSpec::is_plain(const Node& node, const char* what) {
  if (node.kind == Node::Kind::kAlias) {
    remark(node, fmt::format("{} is the alias *{}: write it out", what, node.value), true);
    return false;
  }
  if (!node.anchor.empty() && document_.aliases.count(node.anchor) != 0) {
    remark(node, fmt::format("{} is used elsewhere as *{}: write it out", what, node.anchor), true);
    return false;
  }
  if (node.find("<<") != nullptr) {
    remark(node, fmt::format("{} takes in another mapping with '<<': write it out", what), true);
    return false;
  }
  return true;
}

// Null: it is not there, or (with a remark) not what it has to be.
const Node* PodSpec::looked_up(const Node& parent, const char* key, Node::Kind kind, const char* what) {
  const Node* node = parent.find(key);
  if (node == nullptr || (node->kind == Node::Kind::kScalar && (node->value.empty() || node->value == "null" || node->value == "~")))
    return nullptr;
  if (!is_plain(*node, key)) return nullptr;
  if (node->kind == kind) return node;
  remark(*node, fmt::format("{} is no {}", key, what), true);
  return nullptr;
}

void PodSpec::read(const Edits& text) {
  if (!is_plain(spec_, "spec")) return;
  read_list("initContainers");
  read_list("containers");
  name_requests();
  int64_t devices = 0;
  for (const Request& request : requests_) devices += request.ask.count;
  if (devices > 32) remark(spec_, fmt::format("its containers ask for {} GPUs; one claim has at most 32", devices), true);
  if (!requests_.empty()) look_for_places(text);
  const Node* scheduler = spec_.find("schedulerName");
  if (!requests_.empty() && scheduler != nullptr && scheduler->value == "hami-scheduler")
    remark(*scheduler,
           fmt::format("schedulerName: hami-scheduler {}: Kubernetes' own scheduler counts claims",
                       spec_.flow ? "is left: take it away" : "is taken away"),
           false);
}

void PodSpec::look_for_places(const Edits& text) {
  look_for_place(spec_, "spec", "resourceClaims", text);
  for (const Container& container : containers_) look_for_place(*container.node->find("resources"), "resources", "claims", text);
}

void PodSpec::look_for_place(const Node& mapping, const char* what, const char* sequence, const Edits& text) {
  const Node* list = looked_up(mapping, sequence, Node::Kind::kSequence, "list");
  if (list != nullptr && !list->flow && first_dash(*list, text) == std::string::npos)
    remark(*list, fmt::format("{}: write its items in lines of their own", sequence), true);
  if (list == nullptr && !mapping.flow && !text.begins_line(mapping.children[0].start))
    remark(mapping, fmt::format("{}: write it in lines of its own", what), true);
}

void PodSpec::read_list(const char* key) {
  const Node* list = looked_up(spec_, key, Node::Kind::kSequence, "list");
  if (list == nullptr) return;
  for (const Node& node : list->children) {
    if (node.kind != Node::Kind::kMapping) {
      is_plain(node, "a container");
      continue;
    }
    const Node* restart = node.find("restartPolicy");
    read_container(node, std::string_view(key) == "initContainers" && (restart == nullptr || restart->value != "Always"));
  }
}

void PodSpec::read_container(const Node& node, bool init) {
  const Node* resources = is_plain(node, "a container") ? looked_up(node, "resources", Node::Kind::kMapping, "mapping") : nullptr;
  if (resources == nullptr) return;
  const Node* name = node.find("name");
  Container made{&node, name == nullptr ? std::string() : name->value, init, {}, {}};
  std::map<std::string, std::string> asked;
  for (const char* part : {"limits", "requests"}) {
    const Node* amounts = looked_up(*resources, part, Node::Kind::kMapping, "mapping");
    for (size_t i = 0; amounts != nullptr && i + 1 < amounts->children.size(); i += 2) {
      const Node& key = amounts->children[i];
      const Node& value = amounts->children[i + 1];
      if (!is_gpu_resource(key.value)) continue;
      seen_.insert(key.start);
      if (!is_plain(value, key.value.c_str())) continue;
      const auto [at, added] = asked.emplace(key.value, value.kind == Node::Kind::kScalar ? value.value : std::string("{{"));
      if (!added && at->second != value.value)
        remark(key, fmt::format("{} is {} in limits and {} in requests; accepted: the same in both", key.value, at->second, value.value),
               true);
    }
  }
  if (asked.empty()) return;
  const std::string who = "container " + (made.name.empty() ? "without a name" : made.name) + ": ";
  auto ask = read_ask(asked, options_);
  if (!ask) return remark(*resources, who + ask.error().text, true);
  for (const std::string& note : ask->notes) remark(*resources, who + note, false);
  made.ask = std::move(*ask);
  if (made.ask.count == 0) return;
  if (!is_container_name(made.name)) return remark(node, who + "its name is needed; accepted: a-z, 0-9 and -, at most 63 characters", true);
  containers_.push_back(std::move(made));
}

// An init container has ended when the others begin: it uses what one of them has, where that is enough.
void PodSpec::name_requests() {
  for (Container& container : containers_) {
    if (container.init) continue;
    container.request = container.name;
    requests_.push_back({container.name, container.ask});
  }
  for (Container& container : containers_) {
    if (!container.init) continue;
    const auto enough =
        std::find_if(requests_.begin(), requests_.end(), [&](const Request& one) { return container.ask.fits_in(one.ask); });
    if (enough != requests_.end()) {
      container.request = enough->name;
      continue;
    }
    container.request = container.name;
    requests_.push_back({container.name, container.ask});
    remark(*container.node,
           fmt::format(
               "container {}: an init container that asks for more than each other container: the claim holds its part until the pod ends",
               container.name),
           false);
  }
}

std::string PodSpec::free_claim_name() const {
  const Node* claims = spec_.find("resourceClaims");
  for (const char* name : {"gpu", "nvshare-gpu", "nvshare-gpu-share"}) {
    const bool taken = claims != nullptr && std::any_of(claims->children.begin(), claims->children.end(), [&](const Node& claim) {
                         const Node* own = claim.find("name");
                         return own != nullptr && own->value == name;
                       });
    if (!taken) return name;
  }
  return "converted-gpu";
}

void PodSpec::rewrite(const std::string& claim_template, Edits& edits) {
  const std::string name = free_claim_name();
  const Item item = {{"name", name}, {"resourceClaimTemplateName", claim_template}};
  const Node* claims = looked_up(spec_, "resourceClaims", Node::Kind::kSequence, "list");
  if (claims != nullptr) {
    prepend(*claims, item, edits);
  } else if (spec_.flow) {
    edits.insert(spec_.start + 1, fmt::format("\"resourceClaims\": [{}], ", flow_item(item)));
  } else {
    const size_t first = spec_.children[0].start;
    const std::string indent = edits.indent(first);
    edits.insert(edits.line_start(first), indent + "resourceClaims:\n" + block_item(item, indent + "  "));
  }
  for (const Container& container : containers_) rewrite_container(container, name, edits);
  const Node* scheduler = spec_.key_of("schedulerName");
  if (scheduler != nullptr && scheduler[1].value == "hami-scheduler" && !spec_.flow) remove_line(*scheduler, edits);
}

void PodSpec::rewrite_container(const Container& container, const std::string& claim, Edits& edits) {
  const Node& resources = *container.node->find("resources");
  Item item = {{"name", claim}};
  if (requests_.size() > 1) item.emplace_back("request", container.request);
  if (resources.flow) {
    rewrite_flow(resources, item, edits);
  } else {
    rewrite_block(resources, item, edits);
  }
}

void PodSpec::remove_line(const Node& key, Edits& edits) {
  const Node& value = (&key)[1];
  const std::string comment = edits.comment_after(value.kind == Node::Kind::kScalar ? value.end : key.end);
  if (!comment.empty()) remark(key, fmt::format("the comment '{}' goes with its line", comment), false);
  edits.remove(edits.line_start(key.start), edits.next_line(key.end));
}

void PodSpec::rewrite_block(const Node& resources, const Item& item, Edits& edits) {
  const Node* claims = looked_up(resources, "claims", Node::Kind::kSequence, "list");
  if (claims == nullptr) {
    const size_t first = resources.children[0].start;
    const std::string indent = edits.indent(first);
    edits.insert(edits.line_start(first), indent + "claims:\n" + block_item(item, indent + "  "));
  } else {
    prepend(*claims, item, edits);
  }
  for (const char* part : {"limits", "requests"}) {
    const Node* key = resources.key_of(part);
    if (key == nullptr || key[1].kind != Node::Kind::kMapping || !any_goes(key[1])) continue;
    const Node& amounts = key[1];
    if (amounts.flow) {
      if (all_go(amounts)) {
        const std::string comment = edits.comment_after(amounts.end);
        if (!comment.empty()) remark(*key, fmt::format("the comment '{}' goes with its line", comment), false);
        edits.remove(edits.line_start(key->start), edits.next_line(amounts.end));
      } else {
        edits.replace(amounts.start, amounts.end, "{" + kept_entries(amounts, edits.text()) + "}");
      }
      continue;
    }
    if (all_go(amounts)) remove_line(*key, edits);
    for (size_t i = 0; i + 1 < amounts.children.size(); i += 2) {
      if (is_gpu_resource(amounts.children[i].value)) remove_line(amounts.children[i], edits);
    }
  }
}

void PodSpec::rewrite_flow(const Node& resources, const Item& item, Edits& edits) {
  const std::string& text = edits.text();
  std::string made;
  bool claimed = false;
  for (size_t i = 0; i + 1 < resources.children.size(); i += 2) {
    const Node& key = resources.children[i];
    const Node& value = resources.children[i + 1];
    const bool amounts = (key.value == "limits" || key.value == "requests") && value.kind == Node::Kind::kMapping && any_goes(value);
    if (amounts && all_go(value)) continue;
    std::string entry = text.substr(key.start, value.end - key.start);
    if (amounts) entry = text.substr(key.start, value.start - key.start) + "{" + kept_entries(value, text) + "}";
    if (key.value == "claims" && value.kind == Node::Kind::kSequence) {
      const std::string others = text.substr(value.start + 1, value.end - value.start - 2);
      entry = fmt::format("\"claims\": [{}{}{}]", flow_item(item), value.children.empty() ? "" : ", ", others);
      claimed = true;
    }
    made += (made.empty() ? "" : ", ") + entry;
  }
  if (!claimed) made = fmt::format("\"claims\": [{}]", flow_item(item)) + (made.empty() ? "" : ", ") + made;
  edits.replace(resources.start, resources.end, "{" + made + "}");
}

}  // namespace nvshare::cli::convert
