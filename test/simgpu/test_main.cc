// The tests' main program: tests, or one role of a test with several processes.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <map>

#include "simgpu/testing.h"

namespace simgpu_testing {
namespace {

std::map<std::string, Role>& roles() {
  static std::map<std::string, Role> all;
  return all;
}

std::string read_word(int fd) {
  std::string word;
  char letter = 0;
  while (::read(fd, &letter, 1) == 1 && letter != '\n') word += letter;
  return word;
}

void write_word(int fd, const std::string& word) {
  const std::string line = word + "\n";
  if (write(fd, line.data(), line.size()) < 0) std::perror("simgpu test: write");
}

}  // namespace

bool add_role(const std::string& name, Role role) { return roles().emplace(name, std::move(role)).second; }
void say(const std::string& word) { write_word(4, word); }
std::string hear() { return read_word(3); }

Other::Other(const std::string& role, const std::vector<std::string>& settings) {
  int down[2];
  int up[2];
  if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) return;
  std::vector<std::string> environment = settings;
  for (char** each = environ; *each != nullptr; ++each) environment.emplace_back(*each);
  std::vector<char*> variables;
  for (std::string& each : environment) variables.push_back(each.data());
  variables.push_back(nullptr);
  std::string name = role;
  char program[] = "simgpu_test";
  char flag[] = "--role";
  char* arguments[] = {program, flag, name.data(), nullptr};
  pid_ = fork();
  if (pid_ == 0) {
    // Above the numbers that the role uses first: a pipe may itself be one of them.
    const int in = fcntl(down[0], F_DUPFD, 10);
    const int out = fcntl(up[1], F_DUPFD, 10);
    dup2(in, 3);
    dup2(out, 4);
    execve("/proc/self/exe", arguments, variables.data());
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  to_ = down[1];
  from_ = up[0];
}

Other::~Other() {
  if (pid_ > 0) {
    kill_now();
    wait();
  }
  close(from_);
  close(to_);
}

std::string Other::word() { return read_word(from_); }
void Other::tell(const std::string& word) { write_word(to_, word); }
void Other::kill_now() { kill(pid_, SIGKILL); }

int Other::wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace simgpu_testing

int main(int count, char** arguments) {
  if (count == 3 && std::string(arguments[1]) == "--role") return simgpu_testing::roles().at(arguments[2])();
  const std::string state = "/dev/shm/simgpu-test-" + std::to_string(getpid());
  setenv("SIMGPU_STATE", state.c_str(), 1);
  setenv("SIMGPU_MEMORY_MB", "64", 1);
  setenv("SIMGPU_CONTEXT_MB", "4", 1);
  testing::InitGoogleTest(&count, arguments);
  const int result = RUN_ALL_TESTS();
  unlink(state.c_str());
  return result;
}
