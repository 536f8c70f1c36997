// A map in the order of its keys, whose entries are found by hash: where thousands of clients are, each look-up among them costs a dozen
// misses of the processor's caches less, and each message and each line of a report makes some.
#pragma once

#include <map>
#include <unordered_map>
#include <utility>

namespace nvshare::scheduler {

template <typename Key, typename Value>
class HashedMap {
 public:
  using Map = std::map<Key, Value>;

  HashedMap() = default;
  HashedMap(const HashedMap&) = delete;
  HashedMap& operator=(const HashedMap&) = delete;

  // The entry of that key, and whether it was made for it.
  std::pair<Value*, bool> try_emplace(const Key& key) {
    if (Value* known = find(key)) return {known, false};
    Value* const value = &all_.try_emplace(key).first->second;
    by_hash_.emplace(key, value);
    return {value, true};
  }
  // Null: there is none.
  Value* find(const Key& key) {
    const auto at = by_hash_.find(key);
    return at == by_hash_.end() ? nullptr : at->second;
  }
  const Value* find(const Key& key) const { return const_cast<HashedMap*>(this)->find(key); }
  const Value& at(const Key& key) const { return *by_hash_.at(key); }
  void erase(const Key& key) {
    by_hash_.erase(key);
    all_.erase(key);
  }

  Map& in_order() { return all_; }  // to change values, not which there are
  const Map& in_order() const { return all_; }

 private:
  Map all_;
  std::unordered_map<Key, Value*> by_hash_;
};

}  // namespace nvshare::scheduler
