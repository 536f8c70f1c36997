// Wrong uses of nvsharectl: each answer is one line that names the thing, what is accepted, or what to do.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace nvshare::cli {
namespace {

struct Answer {
  int exit_code;
  std::string text;  // of both outputs
};

Answer nvsharectl(const std::string& arguments) {
  FILE* pipe = popen(("env NVSHARE_RUNTIME_DIR=/nonexistent/nvshare " NVSHARECTL " " + arguments + " 2>&1 < /dev/null").c_str(), "r");
  Answer answer;
  std::array<char, 4096> buffer{};
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) answer.text.append(buffer.data(), n);
  answer.exit_code = WEXITSTATUS(pclose(pipe));
  return answer;
}

struct WrongUse {
  const char* arguments;
  const char* names;   // the thing
  const char* offers;  // what is accepted, or what to do
  int exit_code = 125;
};

TEST(WrongUses, EachAnswerNamesTheThingAndWhatIsAccepted) {
  const WrongUse uses[] = {
      {"", "no command is named", "accepted: "},
      {"staus", "'staus'", "did you mean 'status'?"},
      {"ps", "'ps'", "accepted: run, status"},
      {"--verbose", "'--verbose'", "accepted: --help"},
      {"status now", "'now'", "accepted: "},
      {"status --jsn", "'--jsn'", "did you mean '--json'?"},
      {"run", "no program is named", "nvsharectl run -- python3 train.py"},
      {"run --gpu-core-limit 0 true", "--gpu-core-limit", "1 to 100"},
      {"run --gpu-core-limit 101 true", "--gpu-core-limit", "1 to 100"},
      {"run --gpu-core-limit half true", "--gpu-core-limit", "1 to 100"},
      {"run --trust-group a/b true", "--trust-group: 'a/b'", "1 to 32 letters"},
      {"run --trust-group '' true", "--trust-group: ''", "1 to 32 letters"},
      {"run --gpu-core-ceiling 0 true", "--gpu-core-ceiling", "1 to 100"},
      {"run --priority 1000 true", "--priority", "-100 to 100"},
      {"run --gpu-memory-limit lots true", "--gpu-memory-limit", "accepted: bytes"},
      {"run --gpu-memory-limit", "--gpu-memory-limit", "8Gi"},
      {"run --gpu-memory-limit=-1 true", "--gpu-memory-limit", "accepted: bytes"},
      {"run --name", "--name", "name that 'status' shows"},
      {"run --memory 8Gi true", "'--memory'", "--gpu-memory-limit"},
      {"run nvshare-no-such-program", "'nvshare-no-such-program'", "no program", 127},
      {"run -- docker run image", "docker", "LD_PRELOAD"},
      {"set", "changes", "core=PERCENT"},
      {"set train", "'train'", "core=PERCENT"},
      {"set train core", "'core'", "NAME=VALUE"},
      {"set train core=0", "core", "1 to 100"},
      {"set train ceiling=0", "ceiling", "1 to 100"},
      {"set train core=most", "core", "1 to 100"},
      {"set train memory=big", "memory", "memory=8Gi"},
      {"set train priority=high", "priority", "-100..100"},
      {"set train sharing=mps", "'mps'", "together, turns, auto or node"},
      {"set train cores=5", "'cores'", "core=PERCENT"},
      {"set job=x core=5", "job", "such as job=123"},
      {"set job=7 cores=5", "'cores'", "core=PERCENT"},
      {"set memory=8Gi", "memory", "nvsharectl set TENANT"},
      {"set train core=50", "/nonexistent/nvshare", "scheduler", 1},
      {"status", "/nonexistent/nvshare", "scheduler", 1},
      {"pause", "tenant", "its name or id"},
      {"pause train", "/nonexistent/nvshare", "scheduler", 1},
      {"resume", "tenant", "its name or id"},
      {"pause train now", "'now'", "accepted: "},
      {"release", "tenant", "its name or id"},
      {"release train now", "'now'", "accepted: "},
      {"release train", "/nonexistent/nvshare", "scheduler", 1},
      {"run --reserve lots true", "--reserve-memory", "accepted: bytes"},
      {"kill", "tenant", "its name or id"},
      {"kill train --signal now", "'now'", "accepted: TERM"},
      {"kill train", "/nonexistent/nvshare", "scheduler", 1},
      {"logs --lines many", "--lines", "the last so many lines"},
      {"run --after", "--after", "when this tenant has ended"},
      {"run --timeout 5s true", "--timeout", "--wait or --after TENANT"},
      {"top --once", "/nonexistent/nvshare", "scheduler", 1},
      {"top --interval 0", "--interval", "seconds between two looks"},
      {"top --once --columns 5", "--columns", "width of that picture"},
      {"trace", "/nonexistent/nvshare", "scheduler", 1},
      {"trace --last 0", "--last", "only so many seconds back"},
      {"trace /nonexistent/file", "/nonexistent/file", "nvshare-scheduler --trace FILE", 1},
      {"trace /dev/null", "/dev/null", "no program has used one", 1},
      {"replay", "recording", "nvshare-scheduler --trace FILE"},
      {"replay /nonexistent/file", "/nonexistent/file", "nvshare-scheduler --trace FILE", 2},
      {"replay /", "/: it cannot be read", "nvshare-scheduler --trace FILE", 2},
      {"replay " NVSHARECTL, "line 1: ", "accepted is what nvshare-scheduler --trace wrote", 2},
      {"replay /dev/null --jsn", "'--jsn'", "did you mean '--json'?"},
      {"demo --jobs 1", "--jobs", "how many"},
      {"demo --jobs few", "--jobs", "how many"},
      {"doctor nvshare-no-such-program", "'nvshare-no-such-program'", "Check its name", 1},
      {"doctor --jso", "'--jso'", "did you mean '--json'?"},
      {"convert", "files", "manifests in YAML or JSON"},
      {"convert --cores 0 -", "--cores", "1 to 100"},
      {"convert --memory lots -", "--memory: 'lots'", "accepted: 1Mi to 1024Ti"},
      {"convert --memory-unit 0 -", "--memory-unit: '0'", "accepted: 1Mi to 1024Ti"},
      {"convert --device-class 'a b' -", "--device-class: 'a b'", "accepted: a name of a-z"},
      {"convert /nonexistent/manifest.yaml", "/nonexistent/manifest.yaml", "No such file", 1},
      {"convert /bin/true", "/bin/true line ", "manifests in YAML or JSON", 1},
      {"convert /", "cannot read /", "Is a directory", 1},
      {"version --all", "'--all'", "accepted: --help"},
  };
  for (const WrongUse& use : uses) {
    const Answer answer = nvsharectl(use.arguments);
    EXPECT_EQ(answer.exit_code, use.exit_code) << use.arguments << ": " << answer.text;
    EXPECT_NE(answer.text.find(use.names), std::string::npos) << use.arguments << ": " << answer.text;
    EXPECT_NE(answer.text.find(use.offers), std::string::npos) << use.arguments << ": " << answer.text;
    const bool report = std::string(use.arguments).rfind("doctor nv", 0) == 0;  // a report of many lines
    if (!report) {
      EXPECT_EQ(answer.text.find('\n'), answer.text.size() - 1) << use.arguments << ": " << answer.text;
    }
    for (const char* internal : {"terminate", "what():", "std::", "errno", "CLI::", "Could not convert"}) {
      EXPECT_EQ(answer.text.find(internal), std::string::npos) << use.arguments << ": " << answer.text;
    }
  }
}

}  // namespace
}  // namespace nvshare::cli
