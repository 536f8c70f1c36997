// Functions of a driver newer than entry_points.txt. What no list knows, and may touch memory or submit work by its name, is handed out as
// a stub (unknown_calls.S): its first call keeps all of the program's memory on the GPU from then on, so that whatever the driver does with
// an address is right; later calls go straight to the driver. Looking such a function up changes nothing, because runtimes look
// everything up.
//
// The same stubs stand before the calls by which a program opens a session of one of the driver's other libraries (video decoders and
// encoders, optical flow, OptiX): these submit work that no hook sees.
//
// Without locks, like everything here. Only after the driver was loaded, but for sessions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nvshare::interposer {

// What the first call of a stub does before the driver's function runs. `session`: of what; null: a function of a newer driver. False: it
// could not be done yet, and the next call asks again.
using UnknownCallAction = bool (*)(const char* name, const char* session);
void on_unknown_call(UnknownCallAction action);
// A session that was opened before there was an action: its name, and what it is of; null: none.
const char* session_opened_early(const char** session);

// In entry_points.txt. Calls nothing.
bool is_known_name(const char* name);
// Whether a driver's function of that name, which entry_points.txt lacks, may touch memory or submit work: all but what plainly asks a
// question, loads code, or belongs to an interface of its own (logs, profiling, debugging). Calls nothing.
bool is_risky_name(const char* name);

// What to hand out for the driver's function `name` at `address`: a stub, or the address itself.
void* guard_unknown(void* address, const char* name);  // the name is kept
// What a call of that name opens a session of ("the video decoder"); null: none. Calls nothing.
const char* session_opened_by(const char* name);
// The names of such calls, by number; null: no more.
const char* session_name(size_t number);
inline constexpr size_t kSessionNames = 5;
// The stub for it; `name` as above. A stub is its own.
void* guard_session(void* address, const char* name);
// A stub for a function of which not even the name is known.
void* guard_unnamed(void* address);

}  // namespace nvshare::interposer
