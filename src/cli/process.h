// Child processes: started with an environment of their own, sent the signals that we get, waited for. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/environment.h"

namespace nvshare::cli {

struct Spawn {
  std::vector<std::string> argv;  // argv[0] is looked up in our PATH
  Environment environment;
  int output = -1;                 // becomes its standard output and error; -1: it has ours
  bool no_input = false;           // its standard input is /dev/null
  bool dies_with_us = false;       // it is killed when the calling thread ends
  bool own_session = false;        // away from our terminal
  const sigset_t* mask = nullptr;  // its signal mask; null: ours
};

// Returns once the program runs; the error says why it does not. The caller waits for the process.
Result<pid_t> spawn(const Spawn& spawn);

// As a shell tells it: the exit status, or 128 + the signal's number. `wait_status` as waitpid gives it.
int exit_code_of(int wait_status);

// What else is to be done again and again while a program runs.
struct Meanwhile {
  std::function<int64_t()> act;  // in how many milliseconds again
  int64_t first_ms = 0;
};

// Starts argv[0] (looked up in the environment's PATH) in our process group with our terminal, waits for its end and returns its wait
// status. HUP, INT, QUIT, TERM, USR1 and USR2 that somebody sends to us meanwhile are passed on; those that the terminal sends reach the
// program without us. The error says why it could not be started.
Result<int> run_and_forward_signals(const std::vector<std::string>& argv, const Environment& environment, const Meanwhile& meanwhile = {});

}  // namespace nvshare::cli
