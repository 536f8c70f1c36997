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

Answer nvsharectl(const std::string& arguments, const std::string& variables = "") {
  FILE* pipe = popen(
      ("env NVSHARE_RUNTIME_DIR=/nonexistent/nvshare " + variables + " " NVSHARECTL " " + arguments + " 2>&1 < /dev/null").c_str(), "r");
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

void expect_explained(const WrongUse& use) {
  const Answer answer = nvsharectl(use.arguments);
  EXPECT_EQ(answer.exit_code, use.exit_code) << use.arguments << ": " << answer.text;
  EXPECT_NE(answer.text.find(use.names), std::string::npos) << use.arguments << ": " << answer.text;
  EXPECT_NE(answer.text.find(use.offers), std::string::npos) << use.arguments << ": " << answer.text;
  const bool report = std::string(use.arguments).rfind("doctor nv", 0) == 0;  // a report of many lines
  if (!report) {
    EXPECT_EQ(answer.text.find('\n'), answer.text.size() - 1) << use.arguments << ": " << answer.text;
  }
  for (const char* internal : {"terminate", "what():", "std::", "errno", "CLI::", "Could not convert", "json.exception", "is required",
                               "required but received", "1 required", ".000000"}) {
    EXPECT_EQ(answer.text.find(internal), std::string::npos) << use.arguments << ": " << answer.text;
  }
}

TEST(WrongUses, EachAnswerNamesTheThingAndWhatIsAccepted) {
  const WrongUse uses[] = {
      {"", "no command is named", "accepted: "},
      {"staus", "'staus'", "did you mean 'status'?"},
      {"ps", "'ps'", "accepted: run, status"},
      {"--verbose", "'--verbose'", "accepted: --help"},
      {"status now", "'now'", "accepted: "},
      {"status --jsn", "'--jsn'", "did you mean '--json'?"},
      {"run --name '  ' true", "--name: '  ' is empty", "name that 'status' shows"},
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
      {"set", "nothing is named", "core=PERCENT"},
      {"set train", "'train'", "core=PERCENT"},
      {"set switch_time_min", "'switch_time_min'", "SETTING=VALUE"},
      {"set switch_time_min=5 switch_time_max=", "'switch_time_max='", "accepted of the scheduler: SETTING=VALUE"},
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
      {"pause", "tenant", "name or id"},
      {"pause train", "/nonexistent/nvshare", "scheduler", 1},
      {"resume", "tenant", "name or id"},
      {"pause train now", "'now'", "accepted: "},
      {"release", "tenant", "name or id"},
      {"release train now", "'now'", "accepted: "},
      {"release train", "/nonexistent/nvshare", "scheduler", 1},
      {"run --reserve lots true", "--reserve-memory", "accepted: bytes"},
      {"kill", "tenant", "name or id"},
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
      {"trace /nonexistent.json", "/nonexistent.json", "--output /nonexistent.json", 1},
      {"trace /dev/null", "/dev/null", "no program has used one", 1},
      {"replay", "nothing is named", "nvshare-scheduler --trace FILE"},
      {"replay /nonexistent/file", "/nonexistent/file", "nvshare-scheduler --trace FILE", 2},
      {"replay /", "/: it cannot be read", "nvshare-scheduler --trace FILE", 2},
      {"replay " NVSHARECTL, "line 1: ", "accepted is what nvshare-scheduler --trace wrote", 2},
      {"replay /dev/null --jsn", "'--jsn'", "did you mean '--json'?"},
      {"demo --jobs 1", "--jobs", "how many"},
      {"demo --jobs few", "--jobs", "how many"},
      {"doctor nvshare-no-such-program", "'nvshare-no-such-program'", "Check its name", 1},
      {"doctor --jso", "'--jso'", "did you mean '--json'?"},
      {"convert", "nothing is named", "manifests in YAML or JSON"},
      {"convert --cores 0 -", "--cores", "1 to 100"},
      {"convert --memory lots -", "--memory: 'lots'", "accepted: 1Mi to 1024Ti"},
      {"convert --memory-unit 0 -", "--memory-unit: '0'", "accepted: 1Mi to 1024Ti"},
      {"convert --device-class 'a b' -", "--device-class: 'a b'", "accepted: a name of a-z"},
      {"convert /nonexistent/manifest.yaml", "/nonexistent/manifest.yaml", "No such file", 1},
      {"convert /bin/true", "/bin/true line ", "manifests in YAML or JSON", 1},
      {"convert /proc/uptime", "/proc/uptime line 1: no manifest",
       "an object of Kubernetes has a kind; accepted: manifests in YAML or JSON", 1},
      {"convert /", "cannot read /", "Is a directory", 1},
      {"version --all", "'--all'", "accepted: --help"},
  };
  for (const WrongUse& use : uses) expect_explained(use);
}

// `variables` are set for nvsharectl; the arguments name what it is asked.
void expect_explained(const std::string& variables, const WrongUse& use) {
  const Answer answer = nvsharectl(std::string(use.arguments), variables);
  EXPECT_EQ(answer.exit_code, use.exit_code) << variables << ": " << answer.text;
  EXPECT_NE(answer.text.find(use.names), std::string::npos) << variables << ": " << answer.text;
  EXPECT_NE(answer.text.find(use.offers), std::string::npos) << variables << ": " << answer.text;
  EXPECT_EQ(answer.text.find('\n'), answer.text.size() - 1) << variables << ": " << answer.text;
}

TEST(WrongUses, OfVariables) {
  const std::string too_long = "NVSHARE_RUNTIME_DIR=/" + std::string(100, 'x');
  expect_explained("NVSHARE_RUNTIME_DIR=run", {"status", "NVSHARE_RUNTIME_DIR: 'run'", "accepted: one that begins with /", 1});
  expect_explained("NVSHARE_RUNTIME_DIR=run", {"run true", "NVSHARE_RUNTIME_DIR: 'run'", "accepted: one that begins with /", 126});
  expect_explained(too_long, {"status", "NVSHARE_RUNTIME_DIR: '/xxx", "accepted: at most 85 characters", 1});
  expect_explained(too_long, {"run true", "NVSHARE_RUNTIME_DIR: '/xxx", "accepted: at most 85 characters", 126});
  for (const char* library : {"/nonexistent.so", "/etc/passwd", "/tmp", "/dev/null", "''$PWD"})
    expect_explained(std::string("NVSHARE_LIBRARY=") + library,
                     {"run true", "NVSHARE_LIBRARY is '/", "accepted: the path of libnvshare.so", 126});
  expect_explained("NVSHARE_GPU_MEMORY_LIMIT=8", {"run true", "NVSHARE_GPU_MEMORY_LIMIT: '8'", "accepted: 1Mi to 1024Ti"});
  expect_explained("NVSHARE_GPU_MEMORY_LIMIT=8GBi", {"run true", "NVSHARE_GPU_MEMORY_LIMIT: '8GBi'", "accepted: bytes"});
  expect_explained("NVSHARE_TRUST_GROUP='a b'", {"run true", "NVSHARE_TRUST_GROUP: 'a b'", "accepted: 1 to 32 letters"});
}

TEST(WrongUses, AFullDiskIsNoSuccess) {
  for (const char* command : {"--help", "--version", "run --help", "version"}) {
    FILE* pipe = popen((std::string(NVSHARECTL " ") + command + " 2>&1 > /dev/full").c_str(), "r");
    std::array<char, 512> said{};
    const size_t length = fread(said.data(), 1, said.size() - 1, pipe);
    EXPECT_EQ(WEXITSTATUS(pclose(pipe)), 1) << command;
    EXPECT_EQ(std::string(said.data(), length), "nvsharectl: cannot write to standard output: No space left on device\n") << command;
  }
}

TEST(WrongUses, OfRun) {
  const WrongUse uses[] = {
      {"run --gpu-memory-limit 8GBi true", "--gpu-memory-limit: '8GBi'", "accepted: bytes"},
      {"run --gpu-memory-limit '' true", "--gpu-memory-limit: ''", "such as 8Gi"},
      {"run --gpu-memory-limit 8 true", "--gpu-memory-limit: '8'", "accepted: 1Mi to 1024Ti"},
      {"run --gpu-memory-limit 99999Ti true", "'99999Ti'", "accepted: 1Mi to 1024Ti"},
      {"run --reserve 5 true", "--reserve-memory: '5'", "accepted: 1Mi to 1024Ti"},
      {"run --gpu-memory-limit 8 Gi true", "'Gi'", "found in PATH", 127},
      {"run --gpu-core-limit 50% true", "'50%'", "1 to 100"},
      {"run --gpu-core-limit 1e2 true", "'1e2'", "1 to 100"},
      {"run --gpu-core-limit '' true", "--gpu-core-limit: ''", "1 to 100"},
      {"run --gpu-core-limit 60 --gpu-core-limit 70 true", "--gpu-core-limit is given 2 times", "accepted: once"},
      {"run --gpu-core-limit", "--gpu-core-limit", "a value is missing"},
      {"run --gpu=all --gpu=0 true", "--gpu is given 2 times", "accepted: once"},
      {"run --priority true true", "'true'", "-100 to 100"},
      {"run --priority 5.5 true", "'5.5'", "-100 to 100"},
      {"run --priority=-200 true", "'-200'", "-100 to 100"},
      {"run --name '' true", "--name", "'' is empty"},
      {"run --wait --timeout -5s true", "--timeout: '-5s'", "accepted: seconds"},
      {"run --wait --timeout soon true", "--timeout: 'soon'", "accepted: seconds"},
      {"run --wat true", "'--wat'", "did you mean '--wait'?"},
      {"run -wait true", "'-wait'", "did you mean '--wait'?"},
      {"run --no-gangs true", "'--no-gangs'", "did you mean '--no-gang'?"},
      {"run --json true", "'--json'", "accepted: --help"},
      {"run --after -- true", "--after", "a value is missing"},
      {"run --after job=last true", "--after: job: 'last'", "such as job=123"},
      {"run --after job= true", "--after: job: ''", "such as job=123"},
      {"run --after '' true", "--after", "'' is empty"},
      {"run --name -- true", "--name", "a value is missing"},
      {"run --quiet=maybe true", "--quiet", "maybe is not understood"},
      {"run --", "no program is named", "nvsharectl run -- python3 train.py"},
      {"run /tmp", "'/tmp' is a directory", "accepted: a program", 127},
      {"run /etc/passwd", "'/etc/passwd' is not executable", "name what runs it", 127},
      {"run ./nvshare-no-such-program", "'./nvshare-no-such-program'", "accepted: its path", 127},
      {"run -- nvshare-no-such-program --wait", "'nvshare-no-such-program'", "found in PATH", 127},
  };
  for (const WrongUse& use : uses) expect_explained(use);
}

TEST(WrongUses, OfStatusTopAndDemo) {
  const WrongUse uses[] = {
      {"status -j", "'-j'", "accepted: --help, --json"},
      {"status --JSON", "'--JSON'", "accepted: --help, --json"},
      {"status --json extra", "'extra'", "accepted: --help, --json"},
      {"status --watch", "'--watch'", "accepted: --help, --json"},
      {"status --gpu 0", "'--gpu'", "accepted: --help, --json"},
      {"status help", "'help'", "did you mean '--help'?"},
      {"top --onc", "'--onc'", "did you mean '--once'?"},
      {"top --col 80", "'--col'", "did you mean '--columns'?"},
      {"foo", "'foo'", "demo, --help; see"},  // which no command is like
      {"Status", "'Status'", "did you mean 'status'?"},
      {"--status", "'--status'", "accepted: --help"},
      {"--json status", "'--json'", "accepted: --help"},
      {"help", "'help'", "did you mean '--help'?"},
      {"nvidia-smi", "'nvidia-smi'", "accepted: run, status"},
      {"''", "''", "accepted: run, status"},
      {"version --json", "'--json'", "accepted: --help"},
      {"version now", "'now'", "accepted: --help"},
      {"top --interval 0", "'0'", "accepted: 0.1 to 3600"},
      {"top --interval -1", "'-1'", "accepted: 0.1 to 3600"},
      {"top --interval 1s", "'1s'", "accepted: 0.1 to 3600"},
      {"top --interval", "--interval", "a value is missing"},
      {"top --once --columns 20", "'20'", "accepted: 40 to 1000"},
      {"top --once --columns wide", "'wide'", "accepted: 40 to 1000"},
      {"top --onec", "'--onec'", "did you mean '--once'?"},
      {"top --no-colors --once", "'--no-colors'", "did you mean '--no-colour'?"},
      {"top -d 1", "'-d'", "accepted: --help, --interval"},
      {"top gpu0", "'gpu0'", "accepted: --help, --interval"},
      {"top", "/nonexistent/nvshare", "scheduler", 1},
      {"demo --jobs 9", "'9'", "accepted: 2 to 8"},
      {"demo --jobs 1.5", "'1.5'", "accepted: 2 to 8"},
      {"demo --jobs -4", "'-4'", "accepted: 2 to 8"},
      {"demo --jobs", "--jobs", "a value is missing"},
      {"demo --jbos 4", "'--jbos'", "did you mean '--jobs'?"},
      {"demo --no-pagin", "'--no-pagin'", "did you mean '--no-paging'?"},
      {"demo --standin", "'--standin'", "did you mean '--stand-in'?"},
      {"demo 4", "'4'", "accepted: --help, --jobs"},
  };
  for (const WrongUse& use : uses) expect_explained(use);
}

TEST(WrongUses, OfRecordingsAndManifests) {
  const WrongUse uses[] = {
      {"trace --last 61", "'61'", "accepted: 0.001 to 60"},
      {"trace --last -1", "'-1'", "accepted: 0.001 to 60"},
      {"trace --last minute", "'minute'", "accepted: 0.001 to 60"},
      {"trace -o", "--output", "a value is missing"},
      {"trace -o ''", "--output", "'' is empty"},
      {"trace ''", "recording", "'' is empty"},
      {"trace a b", "'b'", "accepted: --help, recording"},
      {"trace --ouput x", "'--ouput'", "did you mean '--output'?"},
      {"trace --json", "'--json'", "accepted: --help, recording"},
      {"trace /", "/: it cannot be read", "nvshare-scheduler --trace FILE", 1},
      {"trace /etc/passwd", "line 1: not a line of a trace: it is no JSON", "nvshare-scheduler --trace", 1},
      {"trace /dev/zero", "line 1: it has more than 64 MiB", "nvshare-scheduler --trace", 1},
      {"replay ''", "recording", "'' is empty"},
      {"replay a b", "'b'", "accepted: --help, recording"},
      {"replay -", "-: No such file", "nvshare-scheduler --trace FILE", 2},
      {"replay /etc/passwd", "line 1: not a line of a trace: it is no JSON", "nvshare-scheduler --trace", 2},
      {"replay --last 5 /dev/null", "'--last'", "accepted: --help, recording"},
      {"convert ''", "files", "'' is empty"},
      {"convert -o '' /dev/null", "--output", "'' is empty"},
      {"convert --output", "--output", "a value is missing"},
      {"convert -o /nonexistent/x /dev/null", "cannot write /nonexistent/x", "No such file", 1},
      {"convert -o / /dev/null", "cannot write /", "Is a directory", 1},
      {"convert --cores 101 -", "'101'", "accepted: 1 to 100"},
      {"convert --cores x -", "'x'", "accepted: 1 to 100"},
      {"convert --core 5 -", "'--core'", "did you mean '--cores'?"},
      {"convert --memory 5 -", "--memory: '5'", "accepted: 1Mi to 1024Ti"},
      {"convert --memory-unit 3Gb -", "--memory-unit: '3Gb'", "accepted: 1Mi to 1024Ti"},
      {"convert --device-class '' -", "--device-class: ''", "accepted: a name of a-z"},
      {"doctor ''", "program", "'' is empty"},
      {"doctor a b", "'b'", "accepted: --help, program"},
      {"doctor --fix", "'--fix'", "accepted: --help, program"},
      {"doctor --bundle", "--bundle", "a value is missing"},
      {"doctor --bundle ''", "--bundle", "'' is empty"},
      {"doctor --bundle /nonexistent/x", "/nonexistent/x", "accepted: the name of a new file", 1},
      {"doctor --bundle /tmp", "/tmp", "accepted: the name of a new file", 1},
  };
  for (const WrongUse& use : uses) expect_explained(use);
}

TEST(WrongUses, OfTenants) {
  const WrongUse uses[] = {
      {"set train core=", "'core='", "NAME=VALUE"},
      {"set train =50", "'=50'", "NAME=VALUE"},
      {"set train core=50%", "core: '50%'", "1 to 100"},
      {"set train ceiling=101", "ceiling: '101'", "1 to 100"},
      {"set train memory=8GBi", "memory: '8GBi'", "or none"},
      {"set train memory=-1", "memory: '-1'", "or none"},
      {"set train memory=8", "memory: '8'", "1Mi to 1024Ti"},
      {"set train memory 8Gi", "'memory'", "NAME=VALUE"},
      {"set train priority=101", "priority: '101'", "-100..100"},
      {"set train sharing=", "'sharing='", "NAME=VALUE"},
      {"set train paused=maybe", "paused: 'maybe'", "yes or no"},
      {"set train Core=50", "'Core'", "core=PERCENT"},
      {"set train gpu-core-limit=50", "'gpu-core-limit'", "core=PERCENT"},
      {"set train core=50 core=60", "core is given twice", "once"},
      {"set mps=on mps=off", "mps is given twice", "once"},
      {"set train core=50 mps=on", "'mps'", "core=PERCENT"},
      {"set core=50", "core needs a tenant", "nvsharectl set TENANT core=50"},
      {"set '' core=50", "core needs a tenant", "nvsharectl set TENANT core=50"},
      {"set --core 50 train", "'--core'", "accepted: --help"},
      {"set job= core=5", "job: ''", "such as job=123"},
      {"set job=99999999999 core=5", "'99999999999'", "such as job=123"},
      {"pause ''", "tenant", "'' is empty"},
      {"pause --all", "'--all'", "accepted: --help, tenant"},
      {"pause --tenant x", "'--tenant'", "did you mean 'tenant'?"},
      {"resume ''", "tenant", "'' is empty"},
      {"resume a b", "'b'", "accepted: --help, tenant"},
      {"resume train", "/nonexistent/nvshare", "scheduler", 1},
      {"release ''", "tenant", "'' is empty"},
      {"release --now x", "'--now'", "accepted: --help, tenant"},
      {"kill ''", "tenant", "'' is empty"},
      {"kill x y", "'y'", "accepted: --help, tenant"},
      {"kill -9 x", "'-9'", "accepted: --help, tenant, --signal"},
      {"kill x -9", "'-9'", "accepted: --help, tenant, --signal"},
      {"kill x --signal", "--signal", "a value is missing"},
      {"kill x --signal term", "'term'", "accepted: TERM"},
      {"kill x -s SEGV", "'SEGV'", "accepted: TERM"},
      {"kill --signal TERM", "tenant", "name or id"},
      {"logs -n", "--lines", "a value is missing"},
      {"logs -n -1", "'-1'", "accepted: 0 to 1000000"},
      {"logs -n 5.5", "'5.5'", "accepted: 0 to 1000000"},
      {"logs --line 5", "'--line'", "did you mean '--lines'?"},
      {"logs --since 1h", "'--since'", "accepted: --help, --lines"},
      {"logs train", "'train'", "accepted: --help, --lines"},
      {"logs", "/nonexistent/nvshare", "journalctl", 1},
  };
  for (const WrongUse& use : uses) expect_explained(use);
}

}  // namespace
}  // namespace nvshare::cli
