// Declares every entry point without its type: this file only takes addresses. The library is linked with -Bsymbolic, so they are this
// library's own, also when another library interposes the symbols.
#include "simgpu/entry_table.h"

#define SIM_ENTRY(symbol, base, version, per_thread) extern "C" int symbol();
#include "simgpu/entry_points.inc"
#undef SIM_ENTRY

namespace simgpu {

std::span<const EntryPoint> entry_points() {
  static constexpr EntryPoint kEntryPoints[] = {
#define SIM_ENTRY(symbol, base, version, per_thread) {#symbol, base, version, per_thread, &symbol},
#include "simgpu/entry_points.inc"
#undef SIM_ENTRY
  };
  return kEntryPoints;
}

[[gnu::weak]] std::span<const EntryPoint> more_entry_points() { return {}; }

}  // namespace simgpu
