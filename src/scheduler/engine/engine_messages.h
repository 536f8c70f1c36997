// What registered clients say: a function for each message of protocol::ClientMessages. Engine::dispatch decodes and calls them.
#pragma once

#include "protocol/directions.h"
#include "scheduler/engine/engine.h"

namespace nvshare::scheduler {

struct Engine::Incoming {
  Engine& engine;
  Client& client;
  const policy::Instant now;
  Descriptors& descriptors;

  void operator()(const protocol::ReqLock& message) const;
  void operator()(const protocol::LockReleased& message) const;
  void operator()(const protocol::LockPaused& message) const;
  void operator()(const protocol::LockResumed& message) const;
  void operator()(const protocol::Drained& message) const;
  void operator()(const protocol::EndsSoon& message) const;
  void operator()(const protocol::MemUpdate& message) const;
  void operator()(const protocol::SwapProgress& message) const;
  void operator()(const protocol::AskWhyWaiting& message) const;
  void operator()(const protocol::Progress& message) const;
  void operator()(const protocol::About& message) const;
  void operator()(const protocol::KeepsMemory& message) const;
  void operator()(const protocol::Import& message) const;
  void operator()(const protocol::Exported& message) const;
  void operator()(const protocol::ImportClosed& message) const;
  void operator()(const protocol::ExportEnded& message) const;
  void operator()(const protocol::ArenaRequest& message) const;
  void operator()(const protocol::ArenaReturned& message) const;
  void operator()(const protocol::ArenaShrunk& message) const;
  void operator()(const protocol::ArenaHeld& message) const;
  void operator()(const protocol::AskHeadroom& message) const;
  void operator()(const protocol::HeadroomReturned& message) const;
  void operator()(const protocol::HeadroomTaken& message) const;

 private:
  bool is_of_this_epoch(const protocol::Grant& grant) const { return grant.epoch == engine.policy_.epoch(); }
};

}  // namespace nvshare::scheduler
