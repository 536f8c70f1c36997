// Memory nodes of graphs. An allocation has its address from the node's making to the end of the process. Its memory is taken from the
// device at the first launch and stays with the graphs, also between an allocation's free and the next launch, until it is trimmed.
#pragma once

#include "simgpu/core.h"

namespace simgpu {

struct GraphAllocation {
  uint64_t base = 0;
  uint64_t bytes = 0;  // as asked for
  uint64_t owned = 0;
  int device = 0;
  // Guarded by the list of all allocations.
  bool mapped = false;  // has memory
  bool live = false;    // allocated and not freed
  int launches = 0;     // of graphs that hold its node, queued or running
};

// Null: no address range is left.
std::shared_ptr<GraphAllocation> reserve_graph_allocation(int device, uint64_t bytes);
WorkPtr make_graph_allocation(std::shared_ptr<GraphAllocation> allocation);
WorkPtr make_graph_free(uint64_t address);
// Memory of a graph's allocation node begins there. Nothing else is freed by a node, or in a capture.
bool is_graph_allocation(uint64_t address);
// Of a memory allocation node's work; null for other work.
const GraphAllocation* allocation_of(const Work& work);

// At a launch: memory for every allocation of it, or out of memory; not allowed while one of them is still allocated.
CUresult begin_graph_launch(const std::vector<WorkPtr>& work);
void graph_launch_ended(const std::vector<WorkPtr>& work);
void graph_allocation_freed(GraphAllocation& allocation);
void trim_graph_memory(int device);

}  // namespace simgpu
