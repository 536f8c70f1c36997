// What of the policy's events and actions a viewer should see at once (admin::StatusReport::changes). Pure, thread-safe.
#pragma once

#include "policy/policy.h"

namespace nvshare::scheduler {

// A client comes, goes or asks for the lock, a turn begins or ends, a limit changes. Not what only moves figures on, however far.
bool is_visible(const policy::Event& event);
bool is_visible(const policy::Action& action);

// That of a step.
bool is_visible(const policy::Event& event, const policy::Actions& actions);

}  // namespace nvshare::scheduler
