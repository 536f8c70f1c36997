// Calls whose other half is made by a second process (partner.h): memory, memory handles, pools and events that go from one to the other.
// And calls of several steps that the program makes alone: green contexts.
#include "ops.h"

namespace conformance {

extern const std::vector<Op> kPartnerOps;
const std::vector<Op> kPartnerOps = {
    {"cuIpcOpenMemHandle_v2", "src partner:0", kIpc, 24},
    {"cuIpcOpenMemHandle_v2", "dst partner:1", kIpc, 24},
    {"cuIpcOpenMemHandle_v2", "$+j ptr:plain|pitch:0 partner:2", kIpc, 24},
    {"cuIpcOpenMemHandle_v2", "$j keptsrc partner:3", kIpc, 30},
    {"cuIpcOpenMemHandle_v2", "$j keptdst partner:4", kIpc, 30},
    {"cuIpcCloseMemHandle", "$-j partner:5", kIpc, 9},
    {"cuIpcOpenMemHandle_v2", "$+m:ipc partner:6", kIpc, 30},
    {"cuIpcCloseMemHandle", "srcof:ipc partner:7", kIpc, 24},
    {"cuIpcCloseMemHandle", "$-m:ipc partner:8", kIpc, 15},
    {"cuMemExportToShareableHandle", "$h partner:9", kIpc | kVmm, 24},
    {"cuMemImportFromShareableHandle", "$+h partner:10", kIpc | kVmm, 24},
    {"cuMemPoolImportPointer", "srcof:pool partner:11", kIpc | kAsync, 30},
    {"cuIpcOpenEventHandle", "$e partner:12", kIpc, 12},
    {"cuInit", "partner:13", kIpc, 2},
    {"cuMemExportToShareableHandle", "$+h partner:16", kIpc | kVmm, 5},
    {"cuGreenCtxCreate", "$+c:green d partner:14", kGreen, 20},
    {"cuGreenCtxDestroy", "$-c:green partner:15", kGreen, 8},
};

}  // namespace conformance
