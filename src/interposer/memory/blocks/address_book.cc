#include "interposer/memory/blocks/address_book.h"

#include <algorithm>

namespace nvshare::interposer {

using cuda::CUdeviceptr;

namespace {

bool same(const cuda::CUmemLocation& a, const cuda::CUmemLocation& b) { return a.type == b.type && a.id == b.id; }

}  // namespace

cuda::CUmemAccess_flags Mapping::access_of(const cuda::CUmemLocation& location) const {
  for (const cuda::CUmemAccessDesc& each : access) {
    if (same(each.location, location)) return each.flags;
  }
  return cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

void Mapping::set_access(const cuda::CUmemAccessDesc& description) {
  for (cuda::CUmemAccessDesc& each : access) {
    if (!same(each.location, description.location)) continue;
    each.flags = description.flags;
    return;
  }
  access.push_back(description);
}

// ---- reservations ----

void AddressBook::add_reservation(CUdeviceptr base, size_t bytes) {
  auto place = std::lower_bound(reservations_.begin(), reservations_.end(), base,
                                [](const Reservation& each, CUdeviceptr address) { return each.base < address; });
  if (place != reservations_.end() && place->base == base) {
    place->bytes = bytes;
  } else {
    reservations_.insert(place, Reservation{base, bytes});
  }
}

void AddressBook::remove_reservation(CUdeviceptr base) {
  std::erase_if(reservations_, [&](const Reservation& each) { return each.base == base; });
}

const AddressBook::Reservation* AddressBook::reservation(CUdeviceptr address, size_t bytes) const {
  auto after = std::upper_bound(reservations_.begin(), reservations_.end(), address,
                                [](CUdeviceptr a, const Reservation& each) { return a < each.base; });
  if (after == reservations_.begin()) return nullptr;
  const Reservation& found = *(after - 1);
  size_t offset = address - found.base;
  return offset < found.bytes && bytes <= found.bytes - offset ? &found : nullptr;
}

// ---- mappings ----

size_t AddressBook::first_after(CUdeviceptr address) const {
  auto after =
      std::upper_bound(mappings_.begin(), mappings_.end(), address, [](CUdeviceptr a, const Mapping* each) { return a < each->base; });
  return static_cast<size_t>(after - mappings_.begin());
}

Mapping* AddressBook::find(CUdeviceptr address) const {
  size_t after = first_after(address);
  if (after == 0) return nullptr;
  Mapping* found = mappings_[after - 1];
  return address < found->end() ? found : nullptr;
}

std::vector<Mapping*> AddressBook::touched(CUdeviceptr address, size_t bytes) const {
  std::vector<Mapping*> result;
  if (Mapping* first = find(address); first != nullptr && bytes > 0) result.push_back(first);
  for (size_t index = first_after(address); index < mappings_.size() && mappings_[index]->base - address < bytes; ++index) {
    if (result.empty() || result.back() != mappings_[index]) result.push_back(mappings_[index]);
  }
  return result;
}

bool AddressBook::overlaps(CUdeviceptr address, size_t bytes) const {
  if (find(address) != nullptr) return true;
  size_t after = first_after(address);
  return after < mappings_.size() && mappings_[after]->base - address < bytes;
}

std::vector<Mapping*> AddressBook::cover(CUdeviceptr address, size_t bytes) const {
  std::vector<Mapping*> result;
  size_t covered = 0;
  while (covered < bytes) {
    Mapping* next = find(address + covered);
    if (next == nullptr || next->base != address + covered || next->bytes > bytes - covered) return {};
    result.push_back(next);
    covered += next->bytes;
  }
  return result;
}

void AddressBook::insert(Mapping* mapping) {
  mappings_.insert(mappings_.begin() + static_cast<ptrdiff_t>(first_after(mapping->base)), mapping);
  mapping->handle->mappings.push_back(mapping);
}

void AddressBook::erase(Mapping* mapping) {
  size_t after = first_after(mapping->base);
  mappings_.erase(mappings_.begin() + static_cast<ptrdiff_t>(after) - 1);
  std::erase(mapping->handle->mappings, mapping);
  delete mapping;
}

// ---- handles ----

void AddressBook::add_handle(ProgramHandle* handle) {
  auto place = std::lower_bound(handles_.begin(), handles_.end(), handle,
                                [](const ProgramHandle* a, const ProgramHandle* b) { return a->number < b->number; });
  handles_.insert(place, handle);
}

void AddressBook::remove_handle(ProgramHandle* handle) { std::erase(handles_, handle); }

ProgramHandle* AddressBook::handle(cuda::CUmemGenericAllocationHandle number) const {
  auto place = std::lower_bound(handles_.begin(), handles_.end(), number,
                                [](const ProgramHandle* each, cuda::CUmemGenericAllocationHandle n) { return each->number < n; });
  return place != handles_.end() && (*place)->number == number ? *place : nullptr;
}

}  // namespace nvshare::interposer
