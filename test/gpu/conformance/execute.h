// Runs plans and writes down what came back.
//
// One line a call: `SYMBOL CODE outcome...`, or `SYMBOL -` where the call was not made because something that it needs is not there. What
// would be a race is waited for before (the stream that used the memory last); what nobody wrote is never compared.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ops.h"
#include "other_heap.h"
#include "partner.h"
#include "plan.h"
#include "structs.h"
#include "world.h"

namespace conformance {

using Generic = int (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t, float, float);

// Pointer attributes of which only the code is compared.
std::vector<int>& unshown_attributes();

struct Progress {  // in memory shared with the parent
  volatile uint64_t beat;
  volatile uint64_t sequence;
  volatile int call;
  volatile int op;
  volatile bool poisoned;
};
struct Counts {
  uint64_t success, failure;
};

// What a call does besides what its arguments say.
enum class Special : uint8_t {
  kNone,
  kSetAccess,
  kBeginCapture,
  kEndCapture,
  kGraphLaunch,
  kInstantiate,
  kAddNode,
  kSetNode,
  kDestroyNode,
  kClone,
  kUpdate,
  kContextCreate,
  kContextDestroy,
  kAttach,
  kDetach,
  kWrites,
  kWaits,
  kSetPool,
  kPeer,      // a GPU's memory is opened to another
  kOpenPool,  // or a pool's
  kPitch,
  kArrayWrite,
  kArrayMixes,
  kTexture,  // a texture reference is given an address
  kLasting,  // it changes what the process's later sequences would find
};

class Runner {
 public:
  // Loads the driver, opens the first `devices` GPUs, allocates `ballast` bytes on each.
  Runner(int devices, uint64_t ballast, Progress* progress, Counts* counts);
  ~Runner();

  int devices() const { return devices_; }
  void start_partner();
  // From now on the driver finds other memory where it has freed some, before each call about pools.
  void use_another_heap() { another_heap_ = true; }
  // Runs the plan and takes away what is left of it. The lines; false: the context is broken, or not as it was: nothing more can run.
  bool run(const Plan& plan, std::vector<std::string>& lines);
  const char* missing(int op) const {
    return functions_[static_cast<size_t>(op)] == nullptr ? ops()[static_cast<size_t>(op)].symbol : nullptr;
  }

 private:
  struct Made {  // a call that is being made
    uint64_t x[12] = {};
    int count = 0;
    float floats[2] = {};
    int float_count = 0;
    Refs refs;
    Storage storage;
    uint64_t outs[12] = {};
    alignas(64) unsigned char bytes[3][256] = {};  // so aligned for tensor maps
    int byte_count = 0;
    uint64_t attribute_values[4] = {};
    int attribute_ids[4] = {};
    void* attribute_places[4] = {};
    uint64_t params[4] = {};
    void* param_places[5] = {};
    uint64_t dependency = 0;
    bool has_stream = false;
    uint64_t stream = 0;
    int graph = -1, exec = -1, node = -1, child = -1;
    int dst = -1, src = -1, named = -1;
    bool unknown_source = false;
    bool wrong_pointer = false;  // it stands where a right one should
  };

  int call(const char* symbol, std::initializer_list<uint64_t> x);
  std::string make(const Call& call);
  std::string make_here(const Call& call);
  bool resolve(const Call& call, Made& made);
  bool resolve_one(const Call& call, const Arg& arg, Made& made, uint64_t& value);
  bool resolve_memory(const Arg& arg, Made& made, uint64_t& value);
  bool resolve_handle(const Arg& arg, Made& made, uint64_t& value);
  bool resolve_out(const Arg& arg, Made& made, uint64_t& value);
  bool resolve_params(const Arg& arg, Made& made, uint64_t& value);
  bool allowed(const Call& call, Made& made);
  bool may_attach(const Call& call, Special special);
  static int detached_from(const Call& call);
  bool ends_a_context(const Call& call);
  static int exchange_of(const Call& call);
  std::string make_exchange(const Call& call, Made& made);
  std::string make_bare(const Call& call, Made& made, const Request& request);
  int hand_over(const Call& call, Made& made, Request& request, int& descriptor);
  int take_over(Made& made, Exchange what, const Reply& reply, int descriptor);
  bool sum_is_known(const Call& call, const Made& made, Exchange what);
  void exchange_effect(const Call& call, Made& made, Exchange what);
  void end_kept(int64_t slot);
  void end_exchanges(std::vector<std::string>& lines, Exchange what);
  static std::string text_of(const Reply& reply);
  bool wait_for_owners(const Call& call, const Made& made);
  std::string outcome(const Call& call, const Made& made, int code, bool captured);
  std::string attribute_name(int which, uint64_t value, const Call& call);
  static void close_descriptors(const Call& call, const Made& made);
  void take_effect(const Call& call, Made& made, bool captured);
  void note_alias(int64_t slot, uint64_t handle);
  void make_objects(const Arg& arg, const Call& call, Made& made);
  bool only_primary_context();
  void end_objects(const Arg& arg, bool in_order);
  void data_effect(const Call& call, Made& made, bool captured);
  void special_effect(const Call& call, Made& made);
  bool is_capturing(uint64_t stream);
  bool has_context();
  int current_context();
  int primary_of(int context);
  std::string make_green(const Call& call, Made& made, bool ends);
  bool uses_alive(const std::vector<Use>& uses);
  void note(std::vector<Use>& uses, const Made& made);
  void check_all(std::vector<std::string>& lines);
  void clean_up(std::vector<std::string>& lines);
  void free_memory(std::vector<std::string>& lines);
  void part_gpus();
  void detach_all(std::vector<std::string>& lines);
  void end_threads();

  Partner partner_;             // first: it is forked before there is a driver
  bool partner_asked_ = false;  // by a plan
  World world_;
  Progress* const progress_;
  Counts* const counts_;
  void* library_ = nullptr;
  int devices_ = 0;
  std::vector<Generic> functions_;
  std::vector<Special> specials_;
  std::vector<bool> wants_context_;
  uint64_t kernels_[2][4] = {};
  uint64_t allocations_ = 0;
  bool cautious_ = false;
  bool another_heap_ = false;
  OtherHeap heap_;
  bool sticky_ = false;
  bool lasting_ = false;
  bool context_gone_ = false;  // the primary one, and all handles with it
  bool pool_set_ = false;
  bool peers_ = false, pool_opened_ = false;
  int64_t capturing_ = -1;       // the stream
  int64_t capturing_into_ = -1;  // the graph that was given, and may not go meanwhile
  std::vector<Use> captured_;
  bool capture_poisoned_ = false, capture_loose_ = false;

  struct Helper;
  std::unique_ptr<Helper> helpers_[3];
};

}  // namespace conformance
