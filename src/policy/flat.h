// Ordered indexes without a node for each entry: a step changes several of them, and with thousands of clients the nodes on the way to an
// entry, each in another place of memory, were most of what it cost.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace nvshare::policy {

// The first of so many, in their order, that does not come before something. Without a branch for each look, which no processor could
// predict.
template <typename Entry, typename Before>
const Entry* first_not(const Entry* entries, size_t count, Before before) {
  while (count > 1) {
    const size_t half = count / 2;
    entries += half & (size_t{0} - static_cast<size_t>(before(entries[half - 1])));
    count -= half;
  }
  return entries + static_cast<size_t>(count == 1 && before(*entries));
}

template <typename Key>
bool precedes(const Key& a, const Key& b) {
  return a < b;
}
template <std::integral First, std::integral Second>
bool precedes(const std::pair<First, Second>& a, const std::pair<First, Second>& b) {
  const bool before = a.first < b.first, same = a.first == b.first, second = a.second < b.second;
  return (before | (same & second)) != 0;
}

// Entries in the order of their keys, in blocks of a bounded size: a search looks at the first entry of some blocks and at one block, a
// change moves those of one block that stand behind it. It ends all iterators, and references to entries.
template <typename Key, typename Entry, const Key& (*key_of)(const Entry&)>
class FlatIndex {
  using Block = std::vector<Entry>;

 public:
  class Iterator {
   public:
    using iterator_category = std::bidirectional_iterator_tag;
    using value_type = Entry;
    using difference_type = std::ptrdiff_t;
    using pointer = const Entry*;
    using reference = const Entry&;

    Iterator() = default;
    const Entry& operator*() const { return checked()[at_]; }
    const Entry* operator->() const { return &checked()[at_]; }
    Iterator& operator++() {
      checked();
      if (++at_ == block_->size()) ++block_, at_ = 0;
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    Iterator& operator--() {
      checked();
      if (at_ == 0) --block_, at_ = block_->size();
      --at_;
      return *this;
    }
    Iterator operator--(int) {
      const Iterator before = *this;
      --*this;
      return before;
    }
    bool operator==(const Iterator&) const = default;

   private:
    friend class FlatIndex;
#ifdef NVSHARE_SANITIZED
    Iterator(const FlatIndex& of, const Block* block, size_t at) : block_(block), at_(at), of_(&of), changes_(of.changes_) {}
    const Block& checked() const {
      if (of_->changes_ != changes_) __builtin_trap();
      return *block_;
    }
#else
    Iterator(const FlatIndex&, const Block* block, size_t at) : block_(block), at_(at) {}
    const Block& checked() const { return *block_; }
#endif

    const Block* block_ = nullptr;
    size_t at_ = 0;
#ifdef NVSHARE_SANITIZED
    const FlatIndex* of_ = nullptr;
    size_t changes_ = 0;
#endif
  };
  using iterator = Iterator;
  using const_iterator = Iterator;
  using value_type = Entry;

  Iterator begin() const { return size_ == 0 ? end() : Iterator(*this, blocks_.data(), 0); }
  Iterator end() const { return Iterator(*this, blocks_.data() + blocks_.size(), 0); }
  auto rbegin() const { return std::reverse_iterator(end()); }
  auto rend() const { return std::reverse_iterator(begin()); }
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  Iterator lower_bound(const Key& key) const {
    return first_but(key, [&](const Entry& entry) { return precedes(key_of(entry), key); });
  }
  Iterator upper_bound(const Key& key) const {
    return first_but(key, [&](const Entry& entry) { return !precedes(key, key_of(entry)); });
  }
  Iterator find(const Key& key) const {
    const Iterator at = lower_bound(key);
    return at != end() && !(key < key_of(*at)) ? at : end();
  }
  bool contains(const Key& key) const { return find(key) != end(); }

  // False: there is one with this key, which stays as it is.
  bool insert(const Entry& entry) {
    if (blocks_.empty()) blocks_.emplace_back();
    size_t in = blocks_.size() - 1;
    if (Block& last = blocks_.back(); last.empty() || key_of(last.back()) < key_of(entry)) {  // as it is with numbers that are given out
      last.push_back(entry);
    } else {
      in = block_of(key_of(entry));
      Block& block = blocks_[in];
      const Entry* const at =
          first_not(block.data(), block.size(), [&](const Entry& other) { return precedes(key_of(other), key_of(entry)); });
      const auto place = at - block.data();
      if (place < std::ssize(block) && !precedes(key_of(entry), key_of(*at))) return false;
      block.insert(block.begin() + place, entry);
    }
    note_change(1);
    if (blocks_[in].size() > kMost) split(in);
    return true;
  }

  size_t erase(const Key& key) {
    const Iterator at = find(key);
    if (at == end()) return 0;
    erase(at);
    return 1;
  }
  void erase(Iterator at) {
    const auto in = at.block_ - blocks_.data();
    Block& block = blocks_[static_cast<size_t>(in)];
    block.erase(block.begin() + static_cast<std::ptrdiff_t>(at.at_));
    note_change(-1);
    if (block.empty() && blocks_.size() > 1) blocks_.erase(blocks_.begin() + in);
  }
  void clear() {
    blocks_.clear();
    note_change(-static_cast<std::ptrdiff_t>(size_));
  }

  friend bool operator==(const FlatIndex& a, const FlatIndex& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

 private:
  static constexpr size_t kMost = 2048 / sizeof(Entry);

  // Where an entry with the key stands, or would. There is one.
  size_t block_of(const Key& key) const {
    const auto behind =
        std::partition_point(blocks_.begin() + 1, blocks_.end(), [&](const Block& block) { return !(key < key_of(block.front())); });
    return static_cast<size_t>(behind - blocks_.begin()) - 1;
  }

  template <typename Before>
  Iterator first_but(const Key& key, Before before) const {
    if (size_ == 0) return end();
    const Block* const block = &blocks_[block_of(key)];
    const auto at = static_cast<size_t>(first_not(block->data(), block->size(), before) - block->data());
    return at == block->size() ? Iterator(*this, block + 1, 0) : Iterator(*this, block, at);
  }

  void split(size_t in) {
    const auto half = static_cast<std::ptrdiff_t>(blocks_[in].size() / 2);
    Block upper;
    upper.reserve(kMost + 1);
    upper.assign(blocks_[in].begin() + half, blocks_[in].end());
    blocks_[in].resize(static_cast<size_t>(half));
    blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(in) + 1, std::move(upper));
  }

  void note_change(std::ptrdiff_t more) {
    size_ += static_cast<size_t>(more);
#ifdef NVSHARE_SANITIZED
    ++changes_;
#endif
  }

  std::vector<Block> blocks_;  // none of them empty, unless it is the only one
  size_t size_ = 0;
#ifdef NVSHARE_SANITIZED
  size_t changes_ = 0;  // so that an iterator that outlives one is found
#endif
};

// Pointers by number, to be looked up: one place of memory, mostly.
template <typename Of>
class PointerTable {
 public:
  Of* find(uint64_t key) const {
    if (places_.empty()) return nullptr;
    return places_[place_of(key)].of;
  }
  bool contains(uint64_t key) const { return find(key) != nullptr; }
  size_t size() const { return size_; }
  void insert(uint64_t key, Of* of) {  // which it does not have
    if (2 * (size_ + 1) > places_.size()) grow();
    places_[place_of(key)] = {key, of};
    ++size_;
  }
  void erase(uint64_t key) {
    if (find(key) == nullptr) return;
    size_t gap = place_of(key);
    places_[gap] = {};
    --size_;
    for (size_t at = next(gap); places_[at].of != nullptr; at = next(at)) {  // who stands behind it may be found no more
      const size_t to = place_of(places_[at].key);
      if (to == at) continue;
      places_[to] = std::exchange(places_[at], {});
    }
  }

 private:
  struct Place {
    uint64_t key = 0;
    Of* of = nullptr;
  };

  size_t next(size_t at) const { return (at + 1) & (places_.size() - 1); }
  // Where the key stands, or may come to stand.
  size_t place_of(uint64_t key) const {
    size_t at = (key * 0x9e3779b97f4a7c15U >> 32) & (places_.size() - 1);
    while (places_[at].of != nullptr && places_[at].key != key) at = next(at);
    return at;
  }
  void grow() {
    std::vector<Place> former = std::exchange(places_, std::vector<Place>(std::max<size_t>(16, 2 * places_.size())));
    for (const Place& place : former) {
      if (place.of != nullptr) places_[place_of(place.key)] = place;
    }
  }

  std::vector<Place> places_;  // a power of two, at least twice as many as there are entries
  size_t size_ = 0;
};

template <typename Key>
constexpr const Key& itself(const Key& key) {
  return key;
}
template <typename Key, typename Value>
constexpr const Key& first_of_pair(const std::pair<Key, Value>& entry) {
  return entry.first;
}

template <typename Key>
using FlatSet = FlatIndex<Key, Key, itself<Key>>;

// Of what is small, such as pointers.
template <typename Key, typename Value>
class FlatMap : public FlatIndex<Key, std::pair<Key, Value>, first_of_pair<Key, Value>> {
 public:
  bool emplace(const Key& key, const Value& value) { return this->insert({key, value}); }
  const Value& at(const Key& key) const { return this->find(key)->second; }  // there is one
};

// Goes through the entries that there are, while `look` may change the index: what comes in behind the one that it looks at is passed over,
// the next one may not go.
template <typename Key, typename Value, typename Look>
void each_while_changing(const FlatMap<Key, Value>& index, Look look) {
  for (auto at = index.begin(); at != index.end();) {
    const Value value = at->second;
    if (++at == index.end()) return look(value);
    const Key next = at->first;
    look(value);
    at = index.find(next);
  }
}

}  // namespace nvshare::policy
