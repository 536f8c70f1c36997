"""A plan as a C program that stands alone: `cc program.c -ldl -I<cuda>/include && ./a.out` prints each call and its code."""

NAMES = ["ptx", '"/nowhere/at/all"', '"no image"', '"sim_mix"', '"nothing_of_that_name"', '"/nowhere/at/all"', '"cuMemAlloc"']
TYPES = {"s": "CUstream", "e": "CUevent", "c": "CUcontext", "g": "CUgraph", "x": "CUgraphExec", "n": "CUgraphNode",
         "h": "CUmemGenericAllocationHandle", "r": "CUdeviceptr", "p": "CUmemoryPool", "a": "CUarray", "y": "CUmipmappedArray", "l": "CUmodule",
         "b": "CUlibrary", "k": "CUkernel", "u": "CUfunction", "t": "CUtexObject", "o": "CUsurfObject", "q": "CUtexref", "w": "CUuserObject",
         "z": "CUlinkState", "m": "CUdeviceptr"}
KERNELS = ["sim_noop", "sim_fill", "sim_mix", "sim_add"]

HEAD = r"""#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void* driver;
static void* symbol(const char* name) {
  void* found = dlsym(driver, name);
  if (found == NULL) { printf("no %s\n", name); exit(1); }
  return found;
}
#define CALL(name, ...) printf("%s %d\n", #name, ((int (*)())symbol(#name))(__VA_ARGS__))
static unsigned char in[1 << 24], out[1 << 24], unknown[1 << 24] __attribute__((aligned(4096)));
static unsigned char regions[24 << 20] __attribute__((aligned(4096)));
static unsigned long long o[16], counter;
static unsigned char bytes[512];
static void count(void* what) { ++*(unsigned long long*)what; }
static void callback(CUstream s, CUresult r, void* what) { (void)s; (void)r; count(what); }
static CUfunction kernels[4];
"""
START = r"""  driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  CUcontext c0, c1 = NULL;
  CALL(cuInit, 0);
  CALL(cuDevicePrimaryCtxRetain, &c0, 0);
  CALL(cuCtxSetCurrent, c0);
"""
MODULE = r"""  CUmodule module;  /* ptx: the text of test/gpu/kernels_ptx.h */
  CALL(cuModuleLoadData, &module, ptx);
"""


def literal(text):
    value = int(text)
    return str(value) if -(1 << 31) <= value < (1 << 31) else f"{value}LL"


class Program:
    def __init__(self, plan):
        self.plan = plan
        self.objects = set()
        self.structs = 0
        self.uses_kernels = False

    def text(self):
        body = [self.statement(line) for line in self.plan]
        declared = sorted(name for name in self.objects if name not in ("c0", "c1", "p0"))
        lines = [HEAD]
        if self.uses_kernels or any("ptx" in statement for statement in body):
            lines.append('static const char ptx[] = "";  /* put the text of test/gpu/kernels_ptx.h here */\n')
        lines += ["int main(void) {", START]
        if self.uses_kernels:
            lines.append(MODULE)
            lines += [f'  CALL(cuModuleGetFunction, &kernels[{i}], module, "{name}");' for i, name in enumerate(KERNELS)]
        lines += [f"  {TYPES[name[0]]} {name} = 0;" for name in declared]
        if "p0" in self.objects:
            lines.append("  CUmemoryPool p0;\n  CALL(cuDeviceGetDefaultMemPool, &p0, 0);")
        return "\n".join(lines + body + ["  CALL(cuCtxSynchronize);", "  return 0;", "}"]) + "\n"

    def name(self, letter, slot):
        self.objects.add(letter + slot)
        return letter + slot

    def statement(self, line):
        words = line.split()
        note = ""
        if any(word.startswith("partner:") for word in words):
            return f"  /* with a second process (partner.h): {line} */\n"
        if words[0].startswith("@"):
            note = f"  /* in another thread, {words.pop(0)[1:]} */"
        refs = {"arrays": []}
        values, before, outs = [], [], 0
        for word in words[1:]:
            hidden = word.startswith("~")
            kind, *v = word.lstrip("~").split(":")
            value = self.value(kind, v, refs, before, outs)
            outs += kind in ("oi", "oq", "op", "oh", "os", "oattr")
            if value is not None and not hidden:
                values.append(value)
        call = ", ".join([words[0]] + values)
        return "".join(f"  {text}\n" for text in before) + f"  CALL({call});{note}"

    def value(self, kind, v, refs, before, outs):
        if kind == "i":
            return literal(v[0]) if abs(int(v[0])) < 1 << 31 else f"(size_t){literal(v[0])}"
        if kind == "flt":
            return f"{int(v[0]) / 1000}f"
        if kind in ("dst", "src", "ptr", "freed", "lost"):
            text = f"{self.name('m', v[0])} + {v[1]}" if v[1] != "0" else self.name("m", v[0])
            refs["src" if kind == "src" else "dst" if kind == "dst" else "ptr"] = text
            return text
        if kind == "bind":
            before.append(f"{self.name('m', v[0])} = {self.name('r', v[3])} + {int(v[4]) * (2 << 20)};")
            return None
        if kind == "at":
            return f"{self.name('r', v[0])} + {v[1]}"
        if kind in ("null", "deps"):
            return "NULL"
        if kind == "ndeps":
            return "(size_t)0"
        simple = {"hostp": "unknown", "hout": "out", "oattr": f"&o[{outs}]", "region": f"regions + {int(v[0] if v else 0) * (1 << 20)}"}
        if kind in simple:
            return simple[kind]
        if kind == "hin":
            before.append(f"memset(in, {int(v[0]) % 256}, {v[1]});")
            refs["hin"] = "in"
            return "in"
        if kind == "fn":
            self.uses_kernels = True
            refs["function"] = f"kernels[{v[0]}]"
            return refs["function"]
        if kind == "kp":
            self.structs += 1
            first, second = ("dst", "src") if v[0] == "3" else ("dst", None)
            words = [f"(unsigned long long)({refs.get(first, 0)})", f"(unsigned long long)({refs.get(second, 0)})" if second else v[1], v[1] if second else v[2]]
            before.append(f"unsigned long long words{self.structs}[] = {{{', '.join(words)}}};")
            before.append(f"void* params{self.structs}[] = {{&words{self.structs}[0], &words{self.structs}[1], &words{self.structs}[2]}};")
            refs["params"] = f"params{self.structs}"
            return refs["params"]
        if kind == "name":
            return {"100": "sizeof(ptx)", "101": "count", "102": "callback", "103": "&counter"}.get(v[0]) or NAMES[int(v[0])]
        if kind in ("oi", "oq", "op", "oh", "os"):
            return f"&o[{outs}]"
        if kind in ("oz", "ox"):
            return "bytes"
        if kind[0] in "+-" and len(kind) == 2:
            return ("&" if kind[0] == "+" else "") + self.name(kind[1], v[0])
        if len(kind) == 1:
            return self.handle(kind, v[0], refs)
        return self.struct(kind, v, refs, before)

    def handle(self, letter, slot, refs):
        if int(slot) < 0:
            return {"-2": "CU_STREAM_LEGACY", "-3": "CU_STREAM_PER_THREAD"}.get(slot, "NULL") if letter == "s" else "NULL"
        name = self.name(letter, slot)
        if letter == "a":
            refs["arrays"].append(name)
        refs[letter] = name
        return name

    def struct(self, kind, v, refs, before):
        self.structs += 1
        name = f"{kind}{self.structs}"
        numbers = [literal(x) for x in v]
        fields = {
            "memcpy2d": ("CUDA_MEMCPY2D", "copy"), "memcpy3d": ("CUDA_MEMCPY3D", "copy"), "memcpy3dpeer": ("CUDA_MEMCPY3D_PEER", "copy"),
        }
        if kind in fields:
            first, second = refs["arrays"][:1] or ["NULL"], refs["arrays"][-1:] or ["NULL"]
            ends = (f".srcMemoryType = {v[0]}, .srcDevice = {refs.get('src', 0)}, .srcArray = {first[0] if v[0] == '3' else 'NULL'}, .srcPitch = {v[2]}, "
                    f".dstMemoryType = {v[1]}, .dstDevice = {refs.get('dst', 0)}, .dstArray = {second[0] if v[1] == '3' else 'NULL'}, .dstPitch = {v[2]}, "
                    f".WidthInBytes = {v[3]}, .Height = {v[4]}")
            deep = f", .srcHeight = {v[4]}, .dstHeight = {v[4]}, .Depth = {v[5]}" if kind != "memcpy2d" else ""
            before.append(f"{fields[kind][0]} {name} = {{{ends}{deep}}};")
            return f"&{name}"
        made = {
            "prop": lambda: f"CUmemAllocationProp {name} = {{.type = {v[2]}, .requestedHandleTypes = {v[1]}, .location = {{{v[3]}, {{{v[0]}}}}}}};",
            "access": lambda: f"CUmemAccessDesc {name} = {{{{{v[2]}, {{{v[0]}}}}}, {v[1]}}};",
            "location": lambda: f"CUmemLocation {name} = {{{v[0]}, {{{v[1]}}}}};",
            "poolprops": lambda: f"CUmemPoolProps {name} = {{.allocType = 1, .handleTypes = {v[1]}, .location = {{1, {{{v[0]}}}}}, .maxSize = {v[2]}}};",
            "arraydesc": lambda: f"CUDA_ARRAY_DESCRIPTOR {name} = {{{', '.join(numbers)}}};",
            "array3ddesc": lambda: f"CUDA_ARRAY3D_DESCRIPTOR {name} = {{{', '.join(numbers)}}};",
            "texture": lambda: f"CUDA_TEXTURE_DESC {name} = {{.addressMode = {{{v[0]}, {v[0]}, {v[0]}}}, .filterMode = {v[1]}, .flags = {v[2]}}};",
            "word": lambda: f"unsigned long long {name} = {numbers[0]};",
            "tensor": lambda: f"{'cuuint64_t' if int(v[0]) < 2 else 'cuuint32_t'} {name}[] = {{{('16, 4', '64, 4', '8, 2', '1, 1')[int(v[0])]}}};",
            "memsetnode": lambda: (f"CUDA_MEMSET_NODE_PARAMS {name} = {{.dst = {refs.get('dst', 0)}, .pitch = {v[0]}, .value = {v[1]}, .elementSize = {v[2]}, "
                                   f".width = {v[3]}, .height = {v[4]}}};"),
            "hostnode": lambda: f"CUDA_HOST_NODE_PARAMS {name} = {{count, &counter}};",
            "kernelnode": lambda: (f"CUDA_KERNEL_NODE_PARAMS {name} = {{.func = {refs.get('function', 'NULL')}, .gridDimX = 2, .gridDimY = 1, .gridDimZ = 1, "
                                   f".blockDimX = 64, .blockDimY = 1, .blockDimZ = 1, .kernelParams = {refs.get('params', 'NULL')}}};"),
            "launchconfig": lambda: f"CUlaunchConfig {name} = {{{v[0]}, 1, 1, {v[1]}, 1, 1, 0, {refs.get('s', 'NULL')}}};",
            "resource": lambda: self.resource(name, v, refs),
            "batchdst": lambda: f"CUdeviceptr {name} = {refs.get('dst', 0)};",
            "batchsrc": lambda: f"CUdeviceptr {name} = {refs.get('src', 0)};",
            "batchsize": lambda: f"size_t {name} = {numbers[0]};",
            "batchindex": lambda: f"size_t {name} = 0;",
            "batchattrs": lambda: f"CUmemcpyAttributes {name} = {{.srcAccessOrder = {v[0]}}};",
            "memop": lambda: (f"CUstreamBatchMemOpParams {name} = {{.writeValue = {{.operation = {v[0]}, .address = {refs.get('dst', 0)}, "
                              f".value64 = {v[1]}}}}};"),
            "instantiate": lambda: f"CUDA_GRAPH_INSTANTIATE_PARAMS {name} = {{.flags = {v[0]}, .hUploadStream = {refs.get('s', 'NULL')}}};",
        }
        kernel_old = {"kernelnodeold": "kernelnode"}.get(kind, kind)
        if kernel_old in made:
            before.append(made[kernel_old]())
        else:
            before.append(f"unsigned char {name}[512] = {{0}};  /* {kind} {' '.join(v)} of structs.h; dst {refs.get('dst')}, src {refs.get('src')} */")
            return name
        return name if kind == "tensor" else f"&{name}"

    @staticmethod
    def resource(name, v, refs):
        inner = {"0": f".array = {{{(refs['arrays'] or ['NULL'])[0]}}}", "1": f".mipmap = {{{refs.get('y', 'NULL')}}}",
                 "2": f".linear = {{{refs.get('ptr', 0)}, {v[4]}, {v[5]}, {v[1]}}}",
                 "3": f".pitch2D = {{{refs.get('ptr', 0)}, {v[4]}, {v[5]}, {v[1]}, {v[2]}, {v[3]}}}"}[v[0]]
        return f"CUDA_RESOURCE_DESC {name} = {{.resType = {v[0]}, .res = {{{inner}}}}};"


def c_program(plan):
    return Program(plan).text()
