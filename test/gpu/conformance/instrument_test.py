#!/usr/bin/env python3
"""The instrument's program on the stand-in GPU: what it writes down of small plans.

  instrument_test.py PROGRAM FOLDER-OF-THE-STAND-IN
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = None

PROGRAM, SIMGPU = sys.argv[1:3]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from checks import conformance  # noqa: E402
from checks import conformance_instrument as instrument  # noqa: E402
import recording  # noqa: E402


def said_of(*plans, verbose=True, gpus=1):
    """What the program prints for these plans, which one process makes one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan")
        with open(path, "w") as file:
            file.write("".join("= \n" + "".join(call + "\n" for call in calls) for calls in plans))
        environment = dict(os.environ, LD_LIBRARY_PATH=SIMGPU, SIMGPU_STATE=os.path.join(folder, "state"), SIMGPU_TIME_SCALE="0", SIMGPU_COUNT=str(gpus))
        said = subprocess.run([PROGRAM, "--plan", path, "--devices", str(gpus), *["--verbose"] * verbose], env=environment, capture_output=True, text=True, timeout=60, check=True)
    return said.stdout.splitlines()


def lines_of(*calls, gpus=1):
    """What comes back for a plan of these calls."""
    return [line[2:] for line in said_of(calls, gpus=gpus) if line.startswith("L ")]


def checked(lines):
    return [line.split()[1] for line in lines if line.startswith("~check")]


class WhatDiffers(unittest.TestCase):
    PLAN = ["cuCtxGetDevice oi", "cuMemAllocManaged +m:1:1:8 i:8 i:1", "cuGraphExecMemcpyNodeSetParams x:0 n:0 ~dst:1:0:0:4 memcpy3d:2:2:4:4:1:1 c:0"]
    NATIVE = ["cuCtxGetDevice 0 0", "cuMemAllocManaged 0 a512", "cuGraphExecMemcpyNodeSetParams 0"]

    def test_a_crash_where_the_driver_crashes_natively_is_known_by_its_stack(self):
        def crashed(sequence, top, *calls):
            outcome = instrument.Outcome()
            frames = ["/w/conformance(+0x1f139)[0x55]", "/lib/libc.so.6(+0x45330)[0x7f]", f"/l/libcuda.so.1(+{top})[0x7f]",
                      *(f"/l/libcuda.so.1({call})[0x7f]" for call in calls), "/w/lib/libnvshare.so(cuStreamSynchronize+0x1f)[0x7f]",
                      "/l/libcuda.so.1(cuFoo+0x1)[0x7f]"]
            outcome.take(["signal 11, address 0x28, process 7:", *frames, f"X {sequence} 5 cuMemcpyHtoDAsync_v2 11"])
            return outcome
        native = crashed(3, "0x2eb7d4", "+0xf53352", "cuStreamSynchronize+0x20")
        self.assertEqual(crashed(9, "0x2eb7df", "+0xf53352", "cuStreamSynchronize+0x20").crashed_as(native), {9})
        self.assertEqual(crashed(9, "0x2eb9df", "+0xf53352", "cuStreamSynchronize+0x20").crashed_as(native), set(), "another function")
        self.assertEqual(crashed(9, "0x2eb7d4", "+0xf53353", "cuStreamSynchronize+0x20").crashed_as(native), set(), "another way there")
        self.assertEqual(crashed(9, "0x2eb7d4", "+0xf53352", "cuStreamSynchronize+0x20").crashed_as(instrument.Outcome()), set(), "not natively")
        self.assertEqual(crashed(9, "0x2eb7d4", "+0x25d9e2", "cuCtxSynchronize+0x20").crashed_as(native), {9}, "waits as well")
        self.assertEqual(crashed(9, "0x2eb9d4", "+0x25d9e2", "cuCtxSynchronize+0x20").crashed_as(native), set(), "another function that waits")
        self.assertEqual(crashed(9, "0x2eb7d4", "+0x25d9e2", "cuMemFree_v2+0x20").crashed_as(native), set(), "does not wait")
        self.assertEqual(crashed(9, "0x2eb7d4", "+0x25d9e2", "cuEventSynchronize+0x20").crashed_as(native), set(), "waits for less")

    def test_what_crashes_natively_with_another_heap_is_the_drivers(self):
        class Natively(instrument.Instrument):
            def plans(self, sequences):
                return [["cuCtxGetDevice oi", "cuCtxGetDevice i:8"][:2 if sequence == 7 else 1] for sequence in sequences]

            def group(self, state, jobs, seconds):
                outcome = instrument.Outcome()
                outcome.take(said_of(self.read(jobs[0])))
                asked.append((state.name, "--other-heap" in jobs[0]))
                return [outcome]

            def read(self, job):
                lines = pathlib.Path(job[job.index("--plan") + 1]).read_text().splitlines()
                return [line for line in lines if not line.startswith("=")]

        asked = []
        with tempfile.TemporaryDirectory() as folder:
            config = types.SimpleNamespace(small=True, work=pathlib.Path(folder), program=lambda name: name, left=lambda: 100)
            natively = Natively(config, instrument.Options())
            self.assertEqual(natively.crashing_with_another_heap([3, 7]), {7})
            self.assertEqual(natively.crashing_with_another_heap([]), set())
        self.assertEqual(asked, [("native_other_heap", True)] * 2)

    def test_the_stack_of_a_crash_is_read_from_what_the_program_prints(self):
        plans = [["cuCtxGetDevice oi"], ["cuCtxGetDevice oi", "cuCtxGetDevice i:8"]]  # nothing is at address 8
        for verbose in (False, True):
            outcome = instrument.Outcome()
            outcome.take(said_of(*plans, verbose=verbose))
            self.assertEqual(outcome.crashed(), {1: "1 1 cuCtxGetDevice 11"})
            self.assertEqual(list(outcome.hashes), [0])
            self.assertTrue(outcome.sites[1].frames[-1].startswith("cuCtxGetDevice+0x"), outcome.sites[1].frames)
            self.assertEqual(outcome.crashed_as(outcome), {1})

    def test_a_crash_is_where_it_happened_and_of_one_kind_wherever(self):
        found = conformance.differences(self.PLAN, self.NATIVE, ["crashed: 17 1 cuMemAllocManaged 11"])
        self.assertEqual([each[:3] for each in found], [(1, self.PLAN[1], self.NATIVE[1])])
        other = conformance.differences(self.PLAN, self.NATIVE, ["crashed: 3 0 cuMemAllocManaged 11"])
        self.assertEqual(conformance.kind_of(found[0]), conformance.kind_of(other[0]))
        tidying = conformance.differences(self.PLAN, self.NATIVE, ["crashed: 3 -1 - 11"])
        self.assertEqual(tidying[0][0], 2, "behind the last call")
        self.assertEqual(conformance.differences(self.PLAN, ["crashed: 0 1 cuMemAllocManaged 11"], self.NATIVE), [], "natively: nothing to compare with")

    def test_a_digest_tells_which_call_answered_otherwise_once(self):
        plan = ["cuMemAlloc_v2 +m:6:0:4096 i:4096", "cuMemAlloc_v2 +m:7:0:4096 i:4096", "cuMemFree_v2 -m:6"]
        outcome, other = conformance.Outcome(), conformance.Outcome()
        outcome.take(said_of(plan, verbose=False))
        other.take(said_of([plan[0], "cuMemAlloc_v2 +m:7:0:4096 i:0", plan[2]], verbose=False))
        self.assertEqual(conformance.digest_differences(plan, outcome.digests[0], outcome.digests[0]), [])
        found = conformance.digest_differences(plan, outcome.digests[0], other.digests[0])
        self.assertEqual(found, [(1, plan[1], "cuMemAlloc_v2 0", "cuMemAlloc_v2 1")])

    def test_a_digest_tells_of_values_as_well(self):
        found = conformance.digest_differences(["cuCtxGetDevice oi"], "0/1234 0/1", "0/4321 0/1")
        self.assertEqual(found, [(0, "cuCtxGetDevice oi", "cuCtxGetDevice 0 1234", "cuCtxGetDevice 0 4321")])

    @unittest.skipIf(tomllib is None, "Python 3.11 reads differences.toml")
    def test_a_row_may_ask_for_an_earlier_call(self):
        rows = conformance.read_differences()
        difference = (2, self.PLAN[2], self.NATIVE[2], "cuGraphExecMemcpyNodeSetParams 1")
        self.assertIsNotNone(conformance.explanation_of(difference, "alone", rows, self.PLAN))
        without = [self.PLAN[0], "cuMemAlloc_v2 +m:1:0:8 i:8", self.PLAN[2]]
        self.assertIsNone(conformance.explanation_of(difference, "alone", rows, without), "absent memory that is looked at would pass for it")


class WhatIsCompared(unittest.TestCase):
    def test_memory_that_was_written_is_compared(self):
        self.assertEqual(checked(lines_of("cuMemAlloc_v2 +m:6:0:4096 i:4096", "cuMemsetD8_v2 dst:6:0:1:4096 i:7 i:4096")), ["m6"])

    def test_memory_of_which_a_plan_knows_only_a_part_is_not_compared(self):
        """The second allocation is not made, because its place is taken; what is written afterwards is a part of the first one only."""
        lines = lines_of("cuMemAlloc_v2 +m:6:0:8192 i:8192", "cuMemAlloc_v2 +m:6:0:4096 i:4096", "cuMemsetD8_v2 dst:6:0:1:4096 i:7 i:4096")
        self.assertEqual(lines[1], "cuMemAlloc_v2 -")
        self.assertEqual(checked(lines), [])


    def test_a_texture_reference_names_memory_only_as_long_as_that_is_there(self):
        """What lies at the address afterwards depends on where a driver puts the next allocation."""
        bound = ("cuMemAlloc_v2 +m:6:0:4096 i:4096", "cuTexRefCreate +q:0", "cuTexRefSetAddress_v2 oq q:0 ptr:6:512 i:1024",
                 "cuTexRefGetAddress_v2 op q:0")
        again = ("cuMemFree_v2 -m:6", "cuMemAlloc_v2 +m:7:0:4096 i:4096", "cuTexRefGetAddress_v2 op q:0")
        lines = lines_of(*bound, *again)
        self.assertEqual([line for line in lines if line.startswith("cuTexRefGetAddress")],
                         ["cuTexRefGetAddress_v2 0 m6+512", "cuTexRefGetAddress_v2 0 ?"])


class WhatIsGone(unittest.TestCase):
    MADE = ("cuCtxCreate_v2 +c:2 i:0 i:0", "cuMemAlloc_v2 +m:3:0:4096 i:4096")
    ASKED = ("cuCtxSetCurrent c:0", "cuPointerGetAttribute oattr:2 i:2 lost:3:0", "cuMemFree_v2 lost:3:0")

    def test_a_context_ends_when_it_was_detached_from_as_often_as_attached_to(self):
        lines = lines_of(*self.MADE, "cuCtxAttach oh i:0", "cuCtxDetach c:2", "cuMemsetD8_v2 dst:3:0:1:4096 i:1 i:4096", "cuMemFree_v2 lost:3:0", "cuCtxDetach c:2", *self.ASKED)
        self.assertEqual(lines[2:10], ["cuCtxAttach 0", "cuCtxDetach 0", "cuMemsetD8_v2 0", "cuMemFree_v2 -", "cuCtxDetach 0", "cuCtxSetCurrent 0", "cuPointerGetAttribute 1", "cuMemFree_v2 1"])
        self.assertEqual(checked(lines), [])

    def test_what_went_with_its_context_is_named_until_something_may_have_its_address(self):
        self.assertEqual(lines_of(*self.MADE, "cuCtxDestroy_v2 -c:2", *self.ASKED)[2:6], ["cuCtxDestroy_v2 0", "cuCtxSetCurrent 0", "cuPointerGetAttribute 1", "cuMemFree_v2 1"])
        for between in ("cuMemAlloc_v2 +m:4:0:4096 i:4096", "cuCtxCreate_v2 +c:3 i:0 i:0"):
            lines = lines_of(*self.MADE, "cuCtxDestroy_v2 -c:2", "cuCtxSetCurrent c:0", between, *self.ASKED)
            self.assertEqual(lines[6:8], ["cuPointerGetAttribute -", "cuMemFree_v2 -"])

    def test_what_was_freed_in_stream_order_is_not_named(self):
        """A driver may crash."""
        freed = ("cuMemAlloc_v2 +m:3:0:4096 i:4096", "cuMemFreeAsync -m:3 s:-1", "cuStreamSynchronize s:-1")
        self.assertEqual(lines_of(*freed, "cuMemFree_v2 freed:3:0", "cuMemFree_v2 freed:3:0:1")[2:5], ["cuStreamSynchronize 0", "cuMemFree_v2 -", "cuMemFree_v2 1"])

    def test_contexts_are_left_as_often_attached_to_as_they_were(self):
        lines = lines_of("cuCtxDetach c:0", "cuCtxAttach oh i:0", "cuCtxAttach oh i:0", "cuCtxDetach c:0", *self.MADE, "cuCtxAttach oh i:0", "cuCtxDestroy_v2 -c:2", "cuCtxDetach c:0")
        self.assertEqual([line for line in lines if "cuCtx" in line], ["cuCtxDetach -", "cuCtxAttach 0", "cuCtxAttach 0", "cuCtxDetach 0", "cuCtxCreate_v2 0", "cuCtxAttach 0",
                                                                       "cuCtxDestroy_v2 -", "cuCtxDetach -", "~cuCtxSetCurrent 0", "~cuCtxSynchronize 0", "~cuCtxSynchronize 0",
                                                                       "~cuCtxSynchronize 0", "~cuCtxDetach 0", "~cuCtxDetach 0", "~cuCtxDestroy_v2 0"])

    def test_a_free_in_a_capture_that_allows_it_frees_once(self):
        lines = lines_of("cuMemAlloc_v2 +m:3:0:4096 i:4096", "cuStreamCreate +s:0 i:1", "cuStreamBeginCapture_v2 s:0 i:2", "cuMemFree_v2 -m:3", "cuMemFree_v2 freed:3:0",
                         "cuMemGetAddressRange_v2 op oq freed:3:0", "cuStreamEndCapture s:0 +g:0")
        self.assertEqual(lines[3:7], ["cuMemFree_v2 0", "cuMemFree_v2 1", "cuMemGetAddressRange_v2 500", "cuStreamEndCapture 0"])


class TheSecondProcess(unittest.TestCase):
    """What goes from one process to another (partner.h)."""

    def test_reads_and_writes_what_it_opens(self):
        lines = lines_of("cuMemAlloc_v2 +m:6:0:4096 i:4096", "cuMemsetD8_v2 dst:6:0:1:4096 i:7 i:4096", "cuIpcOpenMemHandle_v2 src:6:0:4096 partner:0:1",
                         "cuIpcOpenMemHandle_v2 dst:6:1024:0:512 partner:1:5", "cuMemcpyDtoH_v2 hout:4096 src:6:0:4096 i:4096", "cuIpcOpenMemHandle_v2 +j:0 ptr:6:0 partner:2:1",
                         "cuIpcOpenMemHandle_v2 j:0 src:6:0:4096 partner:3:1", "cuMemFree_v2 -m:6", "cuIpcOpenMemHandle_v2 j:0 src:6:0:4096 partner:3:1")
        sum_before, sum_after = lines[2].split()[-1], lines[4].split()[-1]
        self.assertEqual(lines[2], f"cuIpcOpenMemHandle_v2 0 partner 0 0 0 {sum_before}")
        self.assertEqual(lines[3:6], ["cuIpcOpenMemHandle_v2 0 partner 0 0 0 0", f"cuMemcpyDtoH_v2 0 {sum_after}", "cuIpcOpenMemHandle_v2 0 partner 0"])
        self.assertNotEqual(sum_before, sum_after)
        self.assertEqual(lines[6:9], [f"cuIpcOpenMemHandle_v2 0 partner 0 {sum_after}", "cuMemFree_v2 0", "cuIpcOpenMemHandle_v2 -"])

    def test_hands_over_memory_of_its_own(self):
        lines = lines_of("cuIpcOpenMemHandle_v2 +m:4:8:4096 partner:6:3", "cuMemcpyDtoH_v2 hout:4096 src:4:0:4096 i:4096", "cuIpcCloseMemHandle src:4:0:4096 partner:7:1",
                         "cuMemsetD8_v2 dst:4:0:1:4096 i:9 i:4096", "cuIpcCloseMemHandle src:4:0:4096 partner:7:1", "cuIpcCloseMemHandle -m:4 partner:8:1")
        first, second = lines[1].split()[-1], lines[4].split()[-1]
        self.assertEqual(lines, ["cuIpcOpenMemHandle_v2 0 partner 0 0 0 0 0", f"cuMemcpyDtoH_v2 0 {first}", f"cuIpcCloseMemHandle 0 partner 0 {first}", "cuMemsetD8_v2 0",
                                 f"cuIpcCloseMemHandle 0 partner 0 {second}", "cuIpcCloseMemHandle 0 partner 0"] + lines[6:])
        self.assertNotEqual(first, second)

    def test_takes_handles_pools_and_events(self):
        handles = lines_of("cuMemCreate +h:0:0 i:2097152 prop:0:1:1:1 i:0", "cuMemExportToShareableHandle h:0 partner:9:1", "cuMemImportFromShareableHandle +h:1:0 partner:10:8",
                           "cuMemExportToShareableHandle h:1 partner:9:1")
        self.assertEqual(handles[1], "cuMemExportToShareableHandle 0 partner 0 0 0 0 0 0 0 0 unwritten")
        self.assertEqual(handles[2], "cuMemImportFromShareableHandle 0 partner 0 0 0 0 0 0 0 0 0 0 0")
        self.assertRegex(handles[3], "^cuMemExportToShareableHandle 0 partner 0 0 0 0 0 0 0 0 [0-9a-f]+$")
        pools = lines_of("cuMemPoolCreate +p:1 poolprops:0:1:0", "cuMemAllocFromPoolAsync +m:3:3:4096 i:4096 p:1 s:-1", "cuMemsetD8_v2 dst:3:0:1:4096 i:7 i:4096",
                         "cuMemPoolImportPointer src:3:0:4096 partner:11:1")
        self.assertRegex(pools[3], "^cuMemPoolImportPointer 0 partner 0 0 0 0 0 0 [0-9a-f]+$")
        events = lines_of("cuEventCreate +e:0 i:6", "cuEventRecord e:0 s:-1", "cuIpcOpenEventHandle e:0 partner:12:1", "cuEventCreate +e:1 i:0", "cuIpcOpenEventHandle e:1 partner:12:1")
        self.assertEqual(events[2], "cuIpcOpenEventHandle 0 partner 0 0 0 0")
        self.assertNotEqual(events[4].split()[1], "0")

    def test_a_process_without_a_context_hands_over_a_handle(self):
        codes = ("0 0 0 0 0 0", "0 0 0 0 0", "0 0 0")  # it maps it; exports it twice, and imports it; only hands it over
        for seed, its in enumerate(codes):
            lines = lines_of(f"cuMemExportToShareableHandle +h:0:0 partner:16:{seed}", "cuMemAddressReserve +r:0 i:8388608 i:0 i:0 i:0", "cuMemMap at:0:0 i:2097152 i:0 h:0 i:0 ~bind:3:7:2097152:0:0",
                             "cuMemSetAccess ptr:3:0 i:2097152 access:0:3:1 i:1", "cuMemsetD8_v2 dst:3:0:1:2097152 i:7 i:2097152")
            self.assertEqual(lines[0], f"cuMemExportToShareableHandle 0 partner {its} 0")
            self.assertEqual([line.split()[1] for line in lines[1:5]], ["0"] * 4)
            self.assertEqual(checked(lines), ["m3"])

    def test_what_a_context_opened_goes_with_it(self):
        lines = lines_of("cuIpcOpenMemHandle_v2 +m:2:8:27312 partner:6:779", "cuDevicePrimaryCtxReset_v2 i:0", "cuCtxSetCurrent c:1",
                         "cuMemcpyDtoH_v2 hout:1000 src:2:0:1000 i:1000", gpus=2)
        self.assertEqual([line.split()[1] for line in lines[:4]], ["0", "0", "0", "1"])

    def test_what_was_freed_in_stream_order_is_named_once_it_was_waited_for(self):
        lines = lines_of("cuStreamCreate +s:0 i:1", "cuStreamCreate +s:1 i:1", "cuMemAlloc_v2 +m:0:0:216 i:216", "cuMemFreeAsync -m:0 s:0", "cuMemFree_v2 freed:0:0:2",
                         "cuStreamSynchronize s:1", "cuMemFree_v2 freed:0:0:2", "cuStreamSynchronize s:0", "cuMemFree_v2 freed:0:0:2")
        self.assertEqual([line.split()[1] for line in lines[4:9]], ["-", "0", "-", "0", "1"])

    def test_what_lies_where_other_memory_may_be_freed_still_is_not_named(self):
        """Seen on an H200: a pool's memory lay where memory was that another stream had freed, and was told of that."""
        freed = ("cuStreamCreate +s:0 i:1", "cuMemAlloc_v2 +m:1:0:216 i:216", "cuMemFreeAsync -m:1 s:-1", "cuMemAllocAsync +m:0:2:216 i:216 s:0", "cuMemFreeAsync -m:0 s:0",
                 "cuStreamSynchronize s:0")
        self.assertEqual(lines_of(*freed, "cuMemFree_v2 freed:0:0:2", "cuCtxSynchronize", "cuMemFree_v2 freed:0:0:2")[6:9],
                         ["cuMemFree_v2 -", "cuCtxSynchronize 0", "cuMemFree_v2 1"])

    def test_a_capture_that_failed_is_told_before_memory_of_a_pool(self):
        lines = lines_of("cuMemAllocAsync +m:3:2:4096 i:4096 s:-1", "cuStreamCreate +s:0 i:1", "cuMemsetD8Async dst:3:0:1:4096 i:1 i:4096 s:0", "cuStreamBeginCapture_v2 s:0 i:0", "cuPointerSetAttribute word:1 i:6 ptr:3:0",
                         "cuStreamBatchMemOp_v2 ~dst:3:2292:0:4 s:0 i:1 memop:2:236092 i:0")
        self.assertEqual([line.split()[1] for line in lines[4:6]], ["900", "901"])

    def test_an_array_may_lie_where_memory_was(self):
        lines = lines_of("cuMemAlloc_v2 +m:0:0:216 i:216", "cuMemFree_v2 -m:0", "cuMipmappedArrayCreate +y:0 array3ddesc:64:32:0:32:4:0 i:1", "cuMemFree_v2 freed:0:0")
        self.assertEqual([line.split()[1] for line in lines[:4]], ["0", "0", "0", "-"])

    def test_a_green_context_has_what_it_opened(self):
        lines = lines_of("cuGreenCtxCreate +c:2:1 i:0 partner:14:879", "cuCtxSetCurrent c:2", "cuIpcOpenMemHandle_v2 +m:4:8:464 partner:6:555", "cuMemGetAddressRange_v2 op oq ptr:4:0")
        self.assertEqual(lines[3], "cuMemGetAddressRange_v2 0 m4+0 464")

    def test_a_forked_child_has_no_driver(self):
        self.assertEqual(lines_of("cuInit partner:13:1")[0], "cuInit 0 partner 3 3 3 3 3 3")


class WhatSequencesLeave(unittest.TestCase):
    def test_pages_that_were_registered_are_no_longer(self):
        listed = subprocess.run([PROGRAM, "--list", "--count", "500"], capture_output=True, text=True, timeout=60, check=True).stdout
        call = re.search(r"^cuMemHostRegister_v2 .*region:.*", listed, re.MULTILINE)[0]
        said = [line[2:] for line in said_of([call], [call]) if "Host" in line and line.startswith("L ")]
        self.assertEqual([line.split()[-1] for line in said], ["0"] * 4, said)

    def test_a_primary_context_that_is_gone_is_not_made_again(self):
        calls = ["cuGreenCtxCreate oq null i:0 i:1", "cuDevicePrimaryCtxRetain oh i:0"]
        self.assertNotIn("-", [line.split()[1] for line in lines_of(*calls)[:2]])
        for end in ("cuDevicePrimaryCtxReset i:0", "cuDevicePrimaryCtxRelease i:0"):
            lines = lines_of("cuMemAlloc_v2 +m:0:0:64 i:64", end, *calls)
            self.assertEqual([line.split()[1] for line in lines[1:4]], ["0", "-", "-"])

    def test_no_memory_is_made_where_a_primary_context_s_was(self):
        lines = lines_of("cuMemAlloc_v2 +m:0:0:4096 i:4096", "cuCtxSetCurrent c:1", "cuDevicePrimaryCtxRelease i:0", "cuMemAlloc_v2 +m:1:0:4096 i:4096", gpus=2)
        self.assertEqual([line.split()[1] for line in lines[:4]], ["0", "0", "0", "-"])

    def test_copies_that_block_are_made_while_a_stream_captures(self):
        lines = lines_of("cuMemAlloc_v2 +m:0:0:4096 i:4096", "cuStreamCreate +s:0 i:1", "cuMemsetD8Async dst:0:0:1:4096 i:1 i:4096 s:0", "cuStreamBeginCapture_v2 s:0 i:0",
                         "cuMemsetD8_v2 dst:0:0:1:4096 i:2 i:4096", "cuMemsetD8_v2 dst:0:0:1:4096 i:3 i:4096", "cuStreamEndCapture s:0 +g:0")
        self.assertEqual([line.split()[1] for line in lines[:7]], ["0"] * 7)

    def test_a_capture_that_failed_is_over_once_it_was_ended(self):
        lines = lines_of("cuStreamCreate +s:0 i:1", "cuStreamBeginCapture_v2 s:0 i:0", "cuMemAlloc_v2 +m:0:0:4096 i:4096", "cuStreamEndCapture s:0 +g:0",
                         "cuStreamBeginCapture_v2 s:0 i:0", "cuStreamEndCapture s:0 +g:0")
        self.assertEqual([line.split()[1] for line in lines[:6]], ["0", "0", "900", "901", "0", "0"])

    def test_a_graph_stays_while_a_stream_captures_into_it(self):
        lines = lines_of("cuGraphCreate +g:0 i:0", "cuStreamCreate +s:0 i:1", "cuStreamBeginCaptureToGraph s:0 g:0 null null i:0 i:2", "cuGraphDestroy -g:0",
                         "cuStreamEndCapture s:0 +g:1", "cuGraphDestroy -g:0")
        self.assertEqual([line.split()[1] for line in lines[:6]], ["0", "0", "0", "-", "0", "0"])

    def test_a_sequence_finds_its_process_as_it_began(self):
        """Else two runs differ in which a driver crashed at different sequences."""
        said = said_of(["cuCtxGetFlags oi"], ["cuCtxSetFlags i:1"], ["cuCtxGetFlags oi"], ["cuDevicePrimaryCtxReset i:0"],
                       ["cuLaunchKernel fn:0 i:4 i:1 i:1 i:64 i:1 i:1 i:0 s:-1 kp:0:0:39 null"])
        lines = [line for line in said if line.startswith(("L cuCtxGetFlags", "L cuLaunchKernel"))]
        self.assertEqual(lines[0], lines[1])
        self.assertEqual(lines[2], "L cuLaunchKernel 0")
        self.assertEqual([line for line in said if line.startswith("P")], ["P 1", "P 3"])


@unittest.skipIf(tomllib is None, "no tomllib")
class Canaries(unittest.TestCase):
    def test_each_has_its_place_in_the_library(self):
        here = pathlib.Path(__file__).resolve().parent
        repo = here.parent.parent.parent
        rows = tomllib.loads((here / "canaries.toml").read_text())["canary"]
        self.assertEqual([row["name"] for row in rows if (repo / row["file"]).read_text().count(row["text"]) != 1], [])


class Volumes(unittest.TestCase):
    def test_each_state_makes_other_sequences_and_all_are_made_natively(self):
        options = conformance.Options(volume=(1000, 7000, 9), calls=100, processes=4)
        run = conformance.Comparing.__new__(conformance.Comparing)
        run.options, run.names = options, ["alone", "first_turn", "none"]
        parts = [run.part_of(name) for name in run.names]
        self.assertEqual([begin for begin, _ in parts], [0, parts[0][1], parts[0][1] + parts[1][1]])
        self.assertGreaterEqual(parts[0][1] * 4 * 93, 7000)
        self.assertGreaterEqual(run.volume_count(), 4 * sum(count for _, count in parts))
        self.assertGreaterEqual(2 * run.cold_count(), 9)


class Recordings(unittest.TestCase):
    def test_what_a_changed_node_writes_is_not_compared(self):
        """Nodes write at each launch, also where the memory was written as a whole between."""
        made = ["cuMemAlloc_v2 +m:0:0:64 i:64", "cuMemAlloc_v2 +m:1:0:64 i:64", "cuGraphAddMemsetNode +n:0:2 g:0 deps ndeps ~dst:0:0:1:64 memsetnode:0:1:1:64:1 c:0"]
        lacking = {"cuGraphNodeSetParams"}
        changed = "cuGraphNodeSetParams n:0 ~dst:1:0:1:64 ~c:0 nodeparams:2:0:97:1:64:1"
        fills = ["cuMemsetD8_v2 dst:0:0:1:64 i:1 i:64", "cuMemsetD8_v2 dst:1:0:1:64 i:1 i:64"]
        self.assertEqual(recording.without([*made, *fills], lacking)[1], set())
        self.assertEqual({"m0", "m1"} & recording.without([*made, changed, *fills], lacking)[1], set())
        self.assertEqual({"m0", "m1"} & recording.without([*made, changed, *fills, "cuGraphLaunch x:0 s:-1"], lacking)[1], {"m0", "m1"})

    def test_a_node_that_is_added_writes_nothing_yet(self):
        calls = ["cuMemAlloc_v2 +m:0:0:64 i:64", "cuMemcpyAtoD_v2 dst:0:0:0:16 a:0 i:16", "cuGraphAddMemsetNode +n:0:2 g:0 deps ndeps ~dst:0:0:1:64 memsetnode:0:1:1:64:1 c:0"]
        self.assertIn("m0", recording.without(calls, {"cuMemcpyAtoD_v2"})[1])


class Plans(unittest.TestCase):
    def test_what_shows_the_known_defects_is_done(self):
        listed = subprocess.run([PROGRAM, "--list", "--count", "1500"], capture_output=True, text=True, timeout=60, check=True).stdout
        for call in (r"cuMemFree_v2 -m:(\d+)\ncuMemFree_v2 freed:\1:0", r"i:2\ncuMemFree_v2 -m:(\d+)\n(.* freed:.*\n)*cuMemFree_v2 freed:\1:0", r"cuMemExportToShareableHandle \+h:\d:0 partner:16:",
                     r"cuMemAlloc_v2 \+m:(\d+):0.*\n(.*\n)?cuMemFreeAsync -m:\1 s:(\d)\ncuStreamSynchronize s:\3\n(.* freed:.*\n)*cuMemFree_v2 freed:\1:0:2",
                     r"cuMemAllocAsync \+m:(\d+):2.*\n(.*\n)?cuMemFreeAsync -m:\1 s:(\d)\ncuStreamSynchronize s:\3\n(.* freed:.*\n)*cuMemFree_v2 freed:\1:0:2",
                     r"cuCtxDetach c:([23])\ncuMemsetD8_v2 .*\ncuCtxSynchronize\ncuCtxDetach c:\1\ncuCtxSetCurrent c:0\n.* lost:"):
            self.assertGreaterEqual(len(re.findall(call, listed)), 5, call)

    def test_tensor_maps_are_made_of_memory(self):
        made = lines_of("cuMemAlloc_v2 +m:0:0:4096 i:4096", "cuTensorMapEncodeTiled ox:128:0 i:7 i:2 ptr:0:0 tensor:0 tensor:1 tensor:2 tensor:3 i:0 i:0 i:0 i:0")
        self.assertIn(made[1].split()[1], ("0", "801"))  # the stand-in has none
        listed = subprocess.run([PROGRAM, "--list", "--count", "300"], capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertGreaterEqual(len(re.findall(r"cuTensorMapEncodeTiled ox:128:0 i:7 i:2 ptr:\d+:0 tensor:0 tensor:1 tensor:2 tensor:3", listed)), 5)

    def test_what_comes_before_the_first_turn_has_graphs_and_no_work(self):
        listed = subprocess.run([PROGRAM, "--list", "--first", "20000000", "--count", "20"], capture_output=True, text=True, timeout=60, check=True)
        beginnings = [plan.splitlines()[1:9] for plan in listed.stdout.split("= ")[1:]]
        self.assertTrue(any("GraphAddMem" in call for calls in beginnings for call in calls))
        self.assertEqual([call for calls in beginnings for call in calls if call.startswith(("cuMemcpy", "cuMemset", "cuLaunch", "cuGraphLaunch"))], [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
