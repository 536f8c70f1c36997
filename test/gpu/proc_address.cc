// Asks cuGetProcAddress for every name, version and stream flavour it is told, and says which exported symbol's address came back.
// Standard input: one exported symbol name a line, then an empty line, then requests "NAME VERSION FLAGS", one a line.
// Standard output: for each symbol "S NAME library-file", for each request "R NAME VERSION FLAGS result symbol".
// Run once without and once with nvshare: the R lines must be the same, and the hooked symbols' S lines must name libnvshare.so.
#include <dlfcn.h>

#include <iostream>
#include <map>
#include <sstream>

#include "program.h"

int main() {
  using namespace gputest;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  require(driver().init(0), "cuInit");
  std::map<void*, std::string> names;
  std::string line;
  while (std::getline(std::cin, line) && !line.empty()) {
    void* address = dlsym(library, line.c_str());
    Dl_info info{};
    const bool known = address != nullptr && dladdr(address, &info) != 0;
    std::printf("S %s %s\n", line.c_str(), known ? info.dli_fname : "absent");
    if (address != nullptr) {
      names.emplace(address, line);
    }
  }
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string name;
    int version = 0;
    uint64_t flags = 0;
    words >> name >> version >> flags;
    void* address = nullptr;
    const CUresult result = driver().get_proc_address(name.c_str(), &address, version, flags, nullptr);
    const auto found = names.find(address);
    const char* symbol = address == nullptr ? "null" : found == names.end() ? "unknown" : found->second.c_str();
    std::printf("R %s %d %llu %d %s\n", name.c_str(), version, static_cast<unsigned long long>(flags), result, symbol);
  }
  return 0;
}
