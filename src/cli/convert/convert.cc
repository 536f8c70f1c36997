#include "cli/convert/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "cli/convert/yaml.h"

namespace nvshare::cli::convert {
namespace {

// Where an object of a kind has its pod; empty: it has none.
std::vector<const char*> pod_path(const std::string& kind) {
  if (kind == "Pod") return {"spec"};
  if (kind == "PodTemplate") return {"template", "spec"};
  if (kind == "CronJob") return {"spec", "jobTemplate", "spec", "template", "spec"};
  constexpr std::array kTemplated = {"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job"};
  if (std::find(kTemplated.begin(), kTemplated.end(), kind) != kTemplated.end()) return {"spec", "template", "spec"};
  return {};
}

std::string scalar_at(const Node& object, std::initializer_list<const char*> path) {
  const Node* node = &object;
  for (const char* key : path) {
    node = node->find(key);
    if (node == nullptr) return {};
  }
  return node->kind == Node::Kind::kScalar ? node->value : std::string();
}

std::string quoted(const std::string& name) {
  const bool plain = name.find_first_not_of("0123456789.") != std::string::npos && name.find_first_of(":#{}[]'\"") == std::string::npos;
  return plain ? name : "\"" + name + "\"";
}

// A template's text after its name.
std::string template_rest(const std::string& name_space, const std::vector<Request>& requests, const Options& options) {
  std::string text;
  if (!name_space.empty()) text += fmt::format("  namespace: {}\n", quoted(name_space));
  text += "spec:\n  spec:\n    devices:\n      requests:\n";
  for (const Request& request : requests) {
    text += fmt::format("        - name: {}\n          exactly:\n            deviceClassName: {}\n", quoted(request.name),
                        options.device_class);
    if (request.ask.count > 1) text += fmt::format("            count: {}\n", request.ask.count);
    if (!request.ask.memory && !request.ask.cores) continue;
    text += "            capacity:\n              requests:\n";
    if (request.ask.memory) text += fmt::format("                memory: {}\n", mebibytes(*request.ask.memory));
    if (request.ask.cores) text += fmt::format("                cores: \"{}\"\n", *request.ask.cores);
  }
  return text;
}

class Conversion {
 public:
  Conversion(const std::string& text, const Options& options) : options_(options), edits_(text) {}

  void run(const std::vector<Document>& documents) {
    for (const Document& document : documents) note_names(document.root);
    for (const Document& document : documents) {
      added_.clear();
      object(document, document.root);
      look_for_others(document.root, "");
      put_templates_before(document);
    }
  }

  Converted finish() {
    Converted made;
    made.text = edits_.apply();
    made.templates = count_;
    std::stable_sort(remarks_.begin(), remarks_.end(), [](const Remark& a, const Remark& b) { return a.line < b.line; });
    made.failed = std::any_of(remarks_.begin(), remarks_.end(), [](const Remark& one) { return one.failed; });
    made.remarks = std::move(remarks_);
    return made;
  }

 private:
  void note_names(const Node& object) {
    if (scalar_at(object, {"kind"}) == "ResourceClaimTemplate")
      names_[scalar_at(object, {"metadata", "namespace"}) + "/" + scalar_at(object, {"metadata", "name"})] = "of the manifest itself";
  }

  void object(const Document& document, const Node& root) {
    const std::string kind = scalar_at(root, {"kind"});
    if (kind == "List" || kind == "PodList" || kind == "DeploymentList") {
      const Node* items = root.find("items");
      for (size_t i = 0; items != nullptr && i < items->children.size(); ++i) object(document, items->children[i]);
      return;
    }
    const Node* spec = &root;
    const std::vector<const char*> path = pod_path(kind);
    for (size_t i = 0; i < path.size() && spec != nullptr; ++i) {
      if (i + 1 == path.size()) note_annotations(*spec);
      spec = spec->find(path[i]);
    }
    if (path.empty() || spec == nullptr) return;
    std::string name = scalar_at(root, {"metadata", "name"});
    if (name.empty()) name = scalar_at(root, {"metadata", "generateName"});
    while (!name.empty() && (name.back() == '-' || name.back() == '.')) name.pop_back();
    const std::string who = kind + " " + (name.empty() ? "without a name" : name) + ": ";
    PodSpec pod(document, *spec, options_);
    pod.read(edits_);
    seen_.insert(pod.seen().begin(), pod.seen().end());
    if (!pod.failed() && !pod.requests().empty()) {
      const std::string name_space = scalar_at(root, {"metadata", "namespace"});
      if (!is_object_name(name) || (!name_space.empty() && !is_object_name(name_space))) {
        remarks_.push_back(
            {root.line, who + "metadata.name is needed, and its namespace has to be a name; the claim template takes both", true});
      } else {
        pod.rewrite(template_for(name, name_space, pod.requests()), edits_);
      }
    }
    for (const Remark& one : pod.remarks()) remarks_.push_back({one.line, who + one.text, one.failed});
  }

  // Annotations by which HAMi chooses GPUs.
  void note_annotations(const Node& owner) {
    const Node* metadata = owner.find("metadata");
    const Node* annotations = metadata == nullptr ? nullptr : metadata->find("annotations");
    if (annotations == nullptr || annotations->kind != Node::Kind::kMapping) return;
    for (size_t i = 0; i + 1 < annotations->children.size(); i += 2) {
      const Node& key = annotations->children[i];
      if (key.value.rfind("hami.io/", 0) == 0 || key.value.rfind("nvidia.com/use-gpu", 0) == 0 ||
          key.value.rfind("nvidia.com/nouse-gpu", 0) == 0)
        remarks_.push_back({key.line, key.value + " is not carried over: a claim selects GPUs by CEL (selectors)", false});
    }
  }

  // The name of a template of these requests; it is made where there is none.
  std::string template_for(const std::string& owner, const std::string& name_space, const std::vector<Request>& requests) {
    const std::string rest = template_rest(name_space, requests, options_);
    const std::string wanted = owner.substr(0, 240) + "-gpu";
    for (int number = 1;; ++number) {
      std::string name = number == 1 ? wanted : fmt::format("{}-{}", wanted, number);
      const auto [at, added] = names_.emplace(name_space + "/" + name, rest);
      if (!added && at->second != rest) continue;
      if (added) {
        added_ += fmt::format("{}apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata:\n  name: {}\n{}",
                              added_.empty() ? "" : "---\n", quoted(name), rest);
        ++count_;
      }
      return name;
    }
  }

  // GPU resources where no pod was looked for.
  void look_for_others(const Node& node, const std::string& above) {
    for (size_t i = 0; i < node.children.size(); ++i) {
      const Node& child = node.children[i];
      const bool key = node.kind == Node::Kind::kMapping && i % 2 == 0;
      if (key && is_gpu_resource(child.value) && seen_.count(child.start) == 0)
        remarks_.push_back(
            {child.line, fmt::format("{} in {}: no pod of a kind that is known here; it is left as it was", child.value, above), true});
      if (key && is_gpu_resource(child.value.substr(std::min(child.value.find('.') + 1, child.value.size()))) &&
          (child.value.rfind("requests.", 0) == 0 || child.value.rfind("limits.", 0) == 0))
        remarks_.push_back(
            {child.line,
             fmt::format("{} is not carried over: a quota of claims is '{}.deviceclass.resource.k8s.io/devices', which counts "
                         "devices, not shares",
                         child.value, options_.device_class),
             false});
      if (!key) look_for_others(child, node.kind == Node::Kind::kMapping ? node.children[i - 1].value : above);
    }
  }

  void put_templates_before(const Document& document) {
    if (added_.empty()) return;
    std::string what = document.explicit_start ? "---\n" + added_ : added_ + "---\n";
    if (document.directives) what += "...\n";
    edits_.insert(edits_.line_start(document.start), what);
  }

  const Options& options_;
  Edits edits_;
  std::vector<Remark> remarks_;
  std::map<std::string, std::string> names_;  // namespace/name -> what comes after the name
  std::set<size_t> seen_;
  std::string added_;  // for the document that is looked at
  int count_ = 0;
};

}  // namespace

Result<Converted> convert(const std::string& text, const Options& options) {
  auto documents = read_documents(text);
  if (!documents) return documents.error();
  for (const Document& document : *documents) {
    if (scalar_at(document.root, {"kind"}).empty())
      return error_format("line %zu: no manifest begins here: an object of Kubernetes has a kind", document.root.line);
  }
  Conversion conversion(text, options);
  conversion.run(*documents);
  Converted made = conversion.finish();
  // Values that end otherwise without their neighbour, such as a tag alone.
  if (const auto again = read_documents(made.text); !again)
    return error_format("would be no YAML once it is converted (%.120s); write what is there in quotes", again.error().text);
  return made;
}

}  // namespace nvshare::cli::convert
