// Modules, functions and launches.
#include "simgpu/launch.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "simgpu/capture.h"
#include "simgpu/config.h"
#include "simgpu/context.h"

namespace simgpu {
namespace {

// Computing holds off unmapping, so it goes in pieces.
constexpr uint64_t kPieceWords = 512 * 1024;

// Behind CUmodule and CUlibrary. Never deleted.
struct Module {
  std::atomic<bool> alive{true};
  std::atomic<int> device{kAnyDevice};  // a module's; a library has none
};

// Those of no device first.
std::span<Function> functions() {
  static std::vector<Function>* const kFunctions = [] {
    auto* all = new std::vector<Function>;
    for (int device = kAnyDevice; device < kMaxDevices; ++device) {
      for (const KernelDefinition& kernel : kernels()) all->push_back({&kernel, device});
    }
    return all;
  }();
  return *kFunctions;
}

Function& function_of(const KernelDefinition& kernel, int device) {
  const size_t count = kernels().size();
  return functions()[static_cast<size_t>(device - kAnyDevice) * count + static_cast<size_t>(&kernel - kernels().data())];
}

Function* to_function(const void* handle) {
  for (Function& function : functions()) {
    if (&function == handle) return &function;
  }
  return nullptr;
}

CUresult load(CUmodule* out, const void* image) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!charge_context(*context, config().lazy_modules ? 0 : config().module_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  Module* module = Kept<Module>::make();
  module->device.store(context->device);
  *out = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}

CUresult load_library(CUlibrary* out) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = t_thread.current();
  if (context != nullptr && !charge_context(*context, config().lazy_modules ? 0 : config().module_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUlibrary>(Kept<Module>::make());
  return CUDA_SUCCESS;
}

template <typename Handle>
CUresult find(Handle* out, void* module, const char* name) {
  if (const CUresult result = enter_process()) return result;
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!static_cast<Module*>(module)->alive.load()) return CUDA_ERROR_INVALID_HANDLE;
  Function* function = find_function(name);
  if (function == nullptr) return CUDA_ERROR_NOT_FOUND;
  *out = reinterpret_cast<Handle>(&function_of(*function->kernel, static_cast<Module*>(module)->device.load()));
  return CUDA_SUCCESS;
}

CUresult unload(void* module) {
  if (const CUresult result = enter_process()) return result;
  if (module == nullptr || !static_cast<Module*>(module)->alive.exchange(false)) return CUDA_ERROR_INVALID_HANDLE;
  return CUDA_SUCCESS;
}

CUresult parameter_info(const void* handle, size_t index, size_t* offset, size_t* size) {
  if (const CUresult result = enter_process()) return result;
  const Function* function = to_function(handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (index >= function->kernel->parameters || offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *offset = index * sizeof(uint64_t);
  if (size != nullptr) *size = sizeof(uint64_t);
  return CUDA_SUCCESS;
}

CUresult name_of_function(const char** out, const void* handle) {
  if (const CUresult result = enter_process()) return result;
  const Function* function = to_function(handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *out = function->kernel->name;
  return CUDA_SUCCESS;
}

CUresult attribute_of(int* out, unsigned attribute) {
  if (const CUresult result = enter_process()) return result;
  constexpr int kOfSmallKernel[] = {1024, 0, 0, 0, 14, 60, 90};  // threads, memory of three kinds, registers, PTX and binary version
  *out = attribute < std::size(kOfSmallKernel) ? kOfSmallKernel[attribute] : 0;
  return CUDA_SUCCESS;
}

// Modules that are loaded lazily take their memory now.
bool ready_to_launch(Stream& stream) {
  if (stream.capture.load() != nullptr) return true;
  Context& context = *stream.context;
  if (!config().lazy_modules || config().module_bytes == 0 || context.modules_charged.exchange(true)) return charge_context(context, 0);
  if (charge_context(context, config().module_bytes)) return true;
  context.modules_charged.store(false);
  return false;
}

CUresult launch(CUfunction handle, CUstream stream_handle, Default null_means, void** parameters, void** extra) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(stream_handle, null_means, &stream)) return result;
  const Function* function = to_function(handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // Measured on two H200s: a launch fails in a stream of another device.
  if (function->device != kAnyDevice && function->device != stream->context->device) return CUDA_ERROR_INVALID_HANDLE;
  WorkPtr work = make_kernel(*function, parameters, extra, stream->context);
  if (!work) return CUDA_ERROR_INVALID_VALUE;
  if (!ready_to_launch(*stream)) return CUDA_ERROR_OUT_OF_MEMORY;
  return submit(*stream, Submission::kKernel, std::move(work));
}

double duration_of(const KernelDefinition& kernel, const uint64_t* arguments, const std::vector<Span>& spans) {
  if (kernel.duration != kNoParameter) return static_cast<double>(arguments[kernel.duration]);
  double bytes = 0;
  for (const Span& span : spans) bytes += static_cast<double>(span.bytes) * (span.write ? 2 : 1);
  return bytes / (config().link_bytes_per_s * ratio::kDeviceMemory) * 1e9;
}

}  // namespace

Function* find_function(const char* name) {
  for (Function& function : functions()) {
    if (std::strcmp(function.kernel->name, name) == 0) return &function;
  }
  return nullptr;
}

WorkPtr make_kernel(const Function& function, void** parameters, void** extra, Context* context) {
  const KernelDefinition& kernel = *function.kernel;
  if (kernel.parameters == 0) {
    static const auto* const kNoop = new WorkPtr(std::make_shared<KernelWork>(kernel, std::array<uint64_t, kMaxParameters>{}, nullptr));
    return *kNoop;  // there is only one kernel without parameters
  }
  std::array<uint64_t, kMaxParameters> arguments{};
  if (parameters != nullptr) {
    for (size_t i = 0; i < kernel.parameters; ++i) std::memcpy(&arguments[i], parameters[i], sizeof(uint64_t));
  } else if (extra != nullptr) {
    const void* buffer = nullptr;
    size_t size = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
      if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t*>(extra[1]);
    }
    if (buffer == nullptr || size < kernel.parameters * sizeof(uint64_t)) return nullptr;
    std::memcpy(arguments.data(), buffer, kernel.parameters * sizeof(uint64_t));
  } else {
    return nullptr;
  }
  return std::make_shared<KernelWork>(kernel, arguments, context);
}

void KernelWork::spans(std::vector<Span>& out) const {
  for (const KernelSpan& span : kernel_.spans) {
    const uint64_t bytes = span.words == kOneWord ? sizeof(uint64_t) : arguments_[span.words] * (span.bytes ? 1 : sizeof(uint64_t));
    out.push_back({arguments_[span.pointer], bytes, span.write});
  }
  if (kernel_.more_spans != nullptr) kernel_.more_spans(arguments_.data(), out);
}

void KernelWork::run(Execution& execution) const {
  if (instant()) return;
  const Faults& faults = Machine::get().faults();
  while (faults.hang_kernel.load(std::memory_order_relaxed) != 0) sleep_until_ns(now_ns() + 5000000);
  std::vector<Span> needed;
  spans(needed);
  if (!execution.prepare(needed, CUDA_ERROR_ILLEGAL_ADDRESS, kernel_.name)) return;
  Context& where = context_ != nullptr && context_->alive.load() ? *context_ : execution.context;
  if (const uint64_t foreign = out_of_reach(where, needed); foreign != 0) {
    execution.fault(CUDA_ERROR_ILLEGAL_ADDRESS, "%s uses %llx, another device's memory to which device %d has no access", kernel_.name,
                    static_cast<unsigned long long>(foreign), where.device);
    return;
  }
  for (bool first = true; kernel_.waits != nullptr && kernel_.waits(arguments_.data(), first); first = false)
    sleep_until_ns(now_ns() + 200'000);
  const uint64_t total = kernel_.words == kNoParameter || kernel_.compute == nullptr ? 0 : arguments_[kernel_.words];
  for (uint64_t first = 0; first < total; first += kPieceWords) {
    AddressSpace::Reading reading(here().memory);
    for (const Span& span : needed) {
      const uint64_t bad = reading.first_bad(span.address, span.bytes, span.write);
      if (bad == 0) continue;
      execution.fault(CUDA_ERROR_ILLEGAL_ADDRESS, "%s lost its memory at %llx", kernel_.name, static_cast<unsigned long long>(bad));
      return;
    }
    kernel_.compute(arguments_.data(), {first, std::min(kPieceWords, total - first)});
  }
  execution.occupy(Engine::kCompute, duration_of(kernel_, arguments_.data(), needed));
  AddressSpace::Reading reading(here().memory);
  for (const Span& span : needed) {
    if (reading.first_bad(span.address, span.bytes, span.write) == 0) continue;
    execution.fault(CUDA_ERROR_ILLEGAL_ADDRESS, "%s had its memory unmapped while it ran", kernel_.name);
    return;
  }
}

SIM_API CUresult cuModuleLoad(CUmodule* out, const char* file) {
  if (file != nullptr && access(file, R_OK) != 0) return CUDA_ERROR_FILE_NOT_FOUND;
  return load(out, file);
}
SIM_API CUresult cuModuleLoadData(CUmodule* out, const void* image) { return load(out, image); }
SIM_API CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, CUjit_option*, void**) { return load(out, image); }
SIM_API CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) {
  constexpr uint32_t kWrapper = 0x466243b1, kImage = 0xba55ed50;  // what such images begin with
  uint32_t magic = kImage;
  if (image != nullptr) std::memcpy(&magic, image, sizeof magic);
  return magic != kWrapper && magic != kImage ? CUDA_ERROR_INVALID_IMAGE : load(out, image);
}
SIM_API CUresult cuModuleUnload(CUmodule module) { return unload(module); }
SIM_API CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) { return find(out, module, name); }
SIM_API CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule module) {
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *count = static_cast<unsigned>(kernels().size());
  return CUDA_SUCCESS;
}
SIM_API CUresult cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, CUmodule, const char*) { return CUDA_ERROR_NOT_FOUND; }
SIM_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryLoadData(CUlibrary* out, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  return load_library(out);
}
SIM_API CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* file, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                                       unsigned) {
  if (file != nullptr && access(file, R_OK) != 0) return CUDA_ERROR_FILE_NOT_FOUND;
  return load_library(out);
}
SIM_API CUresult cuLibraryUnload(CUlibrary library) { return unload(library); }
SIM_API CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary library, const char* name) { return find(out, library, name); }
SIM_API CUresult cuLibraryGetModule(CUmodule* out, CUlibrary library) {
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *out = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
SIM_API CUresult cuKernelGetFunction(CUfunction* out, CUkernel kernel) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  const Function* function = to_function(kernel);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *out = reinterpret_cast<CUfunction>(&function_of(*function->kernel, context->device));
  return CUDA_SUCCESS;
}
SIM_API CUresult cuKernelGetName(const char** out, CUkernel kernel) { return name_of_function(out, kernel); }
SIM_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  return parameter_info(kernel, index, offset, size);
}
SIM_API CUresult cuKernelGetAttribute(int* out, CUfunction_attribute attribute, CUkernel, CUdevice) { return attribute_of(out, attribute); }
SIM_API CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) { return enter_process(); }

SIM_API CUresult cuFuncGetName(const char** out, CUfunction function) { return name_of_function(out, function); }
SIM_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  return parameter_info(function, index, offset, size);
}
SIM_API CUresult cuFuncGetAttribute(int* out, CUfunction_attribute attribute, CUfunction) { return attribute_of(out, attribute); }
SIM_API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return enter_process(); }
SIM_API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return enter_process(); }
SIM_API CUresult cuFuncLoad(CUfunction) { return enter_process(); }
SIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
  *blocks = 2;
  return enter_process();
}
SIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction, int, size_t, unsigned) {
  *blocks = 2;
  return enter_process();
}

SIM_API CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream stream,
                                void** parameters, void** extra) {
  return launch(function, stream, Default::kLegacy, parameters, extra);
}
SIM_API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                     CUstream stream, void** parameters, void** extra) {
  return launch(function, stream, Default::kPerThread, parameters, extra);
}
SIM_API CUresult cuLaunchKernelEx(const CUlaunchConfig* settings, CUfunction function, void** parameters, void** extra) {
  if (settings == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(function, settings->hStream, Default::kLegacy, parameters, extra);
}
SIM_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* settings, CUfunction function, void** parameters, void** extra) {
  if (settings == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(function, settings->hStream, Default::kPerThread, parameters, extra);
}
SIM_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                           CUstream stream, void** parameters) {
  return launch(function, stream, Default::kLegacy, parameters, nullptr);
}
SIM_API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                                CUstream stream, void** parameters) {
  return launch(function, stream, Default::kPerThread, parameters, nullptr);
}

}  // namespace simgpu
