"""The harness itself, without any GPU: what it computes from records, and that no process outlives it."""
import argparse
import atexit
import json
import os
import pathlib
import shutil
import sys
import tarfile
import tempfile
import time
import types
import unittest

import run
from checks import calls, deaths, deaths_mps, interactive, mission, nvml_beside, programs, quota, servers, sharing_real, swap, trace
from harness import Config, Process, Result, Skip, archive_logs, run_check, wait_all


def config_in(folder):
    config = Config(argparse.Namespace(small=True, python=sys.executable, variants="told", seconds=1, turn=1, launcher="preload",
                                       library_log="info", out=folder, budget=60, root=folder, simgpu=""))
    atexit.register(shutil.rmtree, config.work, ignore_errors=True)
    return config


def with_gaps(*gaps):
    return types.SimpleNamespace(records=[{"event": "ready"}] + [{"event": "gap", "from": a, "to": b} for a, b in gaps])


class HandOffs(unittest.TestCase):
    def test_from_the_leavers_last_kernel_to_the_comers_first(self):
        leaver = with_gaps((1_000_000_000, 5_000_000_000), (8_000_000_000, 12_000_000_000))
        comer = with_gaps((500_000_000, 1_600_000_000), (4_500_000_000, 8_700_000_000))
        self.assertEqual([round(s, 3) for s in swap.hand_offs(leaver, comer)], [0.6, 0.7])

    def test_a_pause_of_its_own_is_no_hand_off(self):
        self.assertEqual(swap.hand_offs(with_gaps(), with_gaps((1, 2))), [])

    def test_the_first_movement_of_each_client_is_apart(self):
        moves = [{"client": 1, "n": 0}, {"client": 2, "n": 1}, {"client": 1, "n": 2}, {"client": 2, "n": 3}]
        first, rest = swap.split_first(moves)
        self.assertEqual(([m["n"] for m in first], [m["n"] for m in rest]), ([0, 1], [2, 3]))


class Trace(unittest.TestCase):
    NAMES = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "GPU 0"}}, {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "train"}}]

    def slice(self, ts, dur, name="running", **more):
        return {"ph": "X", "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, **more}

    def test_what_is_wrong_is_found(self):
        good = [*self.NAMES, self.slice(0, 5), self.slice(5, 1, "swap out", args={"bytes": 7}), {"ph": "C", "name": "memory", "pid": 1, "ts": 3, "args": {"a": 1}}]
        self.assertEqual(trace.problems_of({"traceEvents": good}), [])
        for wrong in ([self.slice(4.5, 0.2)], [self.slice(-1, 5)], [self.slice(9, "5")], [{**self.slice(9, 1), "tid": 3}], [{**self.slice(9, 1), "ph": "Q"}],
                      [{"ph": "C", "name": "memory", "pid": 1, "ts": 3, "args": {"a": "1"}}], [{"ph": "M", "name": "colour", "pid": 1, "args": {}}]):
            self.assertEqual(len(trace.problems_of({"traceEvents": good + wrong})), 1, wrong)
        self.assertEqual(trace.problems_of([]), ["no list traceEvents"])

    def test_sums(self):
        found = trace.sums_of({"traceEvents": [self.slice(0, 5), self.slice(6, 1), self.slice(0, 5, "turn 3"), self.slice(5, 1, "swap out", args={"bytes": 7})]})
        self.assertEqual(found, {"turns": 1, "running": 6000, "swap out": 7})


class Mission(unittest.TestCase):
    def test_what_auto_owes(self):
        self.assertEqual([mission.due_of(limits) for limits in ((30, 40), (80, 80), (50, 100))], [[30, 40], [50, 50], [50, 50]])
        self.assertEqual(mission.due_of((97, 100)), [95, 5])

    def test_shares_of_the_work_between_two_times(self):
        marks = [[(0, 0), (100, 100)], [(0, 0), (50, 300), (100, 300)]]
        self.assertEqual(mission.steady_shares(marks, 0, 100), [25, 75])
        self.assertEqual(mission.steady_shares(marks, 50, 100), [100, 0])
        self.assertEqual(mission.steady_shares([[(0, 0)], [(0, 0)]], 0, 100), [0, 0])


class Quota(unittest.TestCase):
    MARKS = [[1000, 0], [2000, 100], [4000, 500], [5000, 500]]

    def test_work_between_marks(self):
        self.assertEqual([quota.done_at(self.MARKS, t) for t in (500, 1000, 1500, 3000, 4500, 9000)], [0, 0, 50, 300, 500, 500])
        self.assertEqual(quota.done_at([], 5), 0)

    def test_share_is_work_over_what_is_done_alone(self):
        self.assertAlmostEqual(quota.share(self.MARKS, 1000, 5000, 0.25), 50)
        self.assertAlmostEqual(quota.share(self.MARKS, 2000, 4000, 0.25), 80)

    def test_windows_are_whole_and_the_first_is_apart(self):
        marks = [[t, t // 2] for t in range(0, 10001, 10)]
        self.assertEqual([round(s, 3) for s in quota.windows(marks, 0, 9999, 2000, 1.0)], [50, 50, 50])

    def test_limits_past_100_are_scaled(self):
        self.assertEqual(quota.scaled([30, 60]), [30, 60])
        self.assertEqual([quota.cycle_due(30, 50, beside) for beside in (0, 1)], [30, 30])
        self.assertEqual([quota.cycle_due(30, 29.5, beside) for beside in (0, 1)], [29.5, None])
        self.assertEqual([round(s, 2) for s in quota.scaled([50, 60])], [45.45, 54.55])
        self.assertEqual([round(s, 2) for s in quota.scaled([40, 40, 40])], [33.33] * 3)

    def test_one_kernels_share(self):
        self.assertAlmostEqual(quota.kernels_share(300_000, 10_000_000_000), 3.0)

    def test_when_a_share_is_reached(self):
        marks = [[t, 0 if t <= 1000 else t - 1000] for t in range(0, 3001, 50)]
        self.assertEqual(quota.reaches_at(marks, 1000, 3000, 50, 200, 1.0), 1200)
        self.assertEqual(quota.reaches_at(marks, 500, 3000, 50, 200, 1.0), 1100)
        self.assertIsNone(quota.reaches_at(marks, 0, 1000, 50, 200, 1.0))

    def test_idle_is_what_neither_worked_nor_swapped(self):
        self.assertAlmostEqual(quota.idle_percent([27, 63], 8, 100), 2)
        self.assertEqual(quota.idle_percent([60, 60], 0, 100), 0)
        self.assertEqual(quota.busy_ns([(0, 10), (5, 20), (30, 40), (32, 35)]), 30)

    def test_turns_begin_after_pauses(self):
        marks = [[0, 0], [10, 1], [20, 2], [500_000_000, 3], [500_000_010, 4]]
        self.assertEqual(quota.turn_starts(marks), [500_000_000])

    def test_dmon(self):
        text = "#Time        gpu     sm    mem\n#HH:MM:SS    Idx      %      %\n 10:00:01      0     97     12\n 10:00:02      0      -      -\n"
        self.assertEqual(nvml_beside.dmon_samples(text), [{"second_of_day": 36001, "sm_percent": 97}])

    def test_pmon(self):
        text = ("#Time        gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command \n#HH:MM:SS    Idx           #    C/G      %\n"
                " 10:00:01      0      41210     C     48     12      -      -      -      -    steady         \n"
                " 10:00:02      0      41210     C     50     12      -      -      -      -    steady         \n"
                " 10:00:02      0      41211     C      -      -      -      -      -      -    steady         \n"
                " 10:00:03      0          -     -      -      -      -      -      -      -    -              \n")
        samples = nvml_beside.pmon_samples(text)
        self.assertEqual(samples[0], {"second_of_day": 36001, "pid": 41210, "sm_percent": 48})
        self.assertEqual(nvml_beside.mean_by_pid(samples), {41210: 49, 41211: 0})

    def test_nvml_of_a_report(self):
        compute = {"gpu": "G", "nvml_share": 24.5, "nvml_billed": 25.125, "nvml_differs": False}
        report = {"gpus": [{"uuid": "G", "nvml_span_ns": 9_500_000_000, "nvml_others": 1.5}],
                  "tenants": [{"name": "a", "compute": [compute]}, {"name": "b", "compute": [{**compute, "nvml_share": -1}]}]}
        self.assertEqual(nvml_beside.nvml_of(report), {"span_s": 9.5, "others": 1.5,
                                                 "tenants": {"a": {"nvml": 24.5, "billed": 25.12, "differs": False}}})
        self.assertEqual(nvml_beside.nvml_of({"gpus": [{"nvml_unknown": "no"}]}), {"unknown": "no"})
        self.assertIsNone(nvml_beside.nvml_of(None))

    def test_every_row_but_two_is_in_the_short_plan_and_unknown_ones_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            config = config_in(folder)
            plan = quota.Plan(config)
            self.assertEqual((plan.kind, tuple(plan.rows)), ("short", tuple(row for row in quota.ROWS if row not in ("cycles", "begins"))))
            config.small = False
            self.assertEqual({kind for kind, _ in quota.Plan(config).single}, {*quota.LENGTHS_US, "graph", "torch"})
            config.rows = "sums,suns"
            with self.assertRaisesRegex(Skip, "no row suns"):
                quota.Plan(config)

    def test_the_table_judges_times_only_on_a_gpu(self):
        for judged, state in ((True, "FAIL"), (False, "DONE")):
            result = Result("quota", judge_times=judged)
            table = quota.Table(result)
            table.within("one", 50, 52, 1.0)
            table.at_least("two", 99, 98)
            table.at_most("three", 1.0, 1.5)
            self.assertEqual([row["holds"] for row in table.rows], [False, True, True])
            self.assertEqual(result.state, state)


class RealLoads(unittest.TestCase):
    FOUND = {"alone": {}, "2 trainers": {way: {"trainers": [0.5, steps], "requests": 0} for way, steps in (("native", 0.4), ("auto", 0.5))},
             "4 servers": {way: {"trainers": [], "requests": 9, "p50_ms": 10, "p99_ms": late} for way, late in (("native", 20), ("auto", 30))}}

    def test_steps_over_alone_and_requests_as_one_list(self):
        answers = [{"done": 6, "seconds": 2.0, "took_ms": []}, {"done": 3, "seconds": 2.0, "took_ms": [5.0, 9.0, 1.0]}]
        self.assertEqual(sharing_real.summary(["train", "serve"], answers, {"train": 4}),
                         {"trainers": [0.75], "requests": 3, "p50_ms": 5.0, "p95_ms": 9.0, "p99_ms": 9.0})

    def test_a_mix_that_waits_longer_than_natively_is_named(self):
        result = Result("sharing")
        sharing_real.judge(result, self.FOUND)
        self.assertEqual([each["what"] for each in result.requirements if not each["holds"]], ["4 servers: requests, p99"])


class Symbols(unittest.TestCase):
    def test_stems(self):
        self.assertEqual([calls.stem(s) for s in ("cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2_ptsz", "cuInit", "cuMemcpy_ptds")],
                         ["cuMemAlloc", "cuMemcpyHtoDAsync", "cuInit", "cuMemcpy"])

    def test_exported_functions_of_a_library(self):
        maps = pathlib.Path("/proc/self/maps").read_text().split()
        libc = next(word for word in maps if "/libc.so" in word or "/libc-" in word)
        names = calls.exported_functions(libc)
        self.assertIn("malloc", names)
        self.assertNotIn("", names)


class Requirements(unittest.TestCase):
    def test_state(self):
        result = Result("x")
        self.assertEqual(result.state, "DONE")
        result.require("a", 1.0, "<=", 1.0)
        self.assertEqual(result.state, "PASS")
        result.require("b", None, ">=", 0)
        self.assertEqual(result.state, "FAIL")


class Bundles(unittest.TestCase):
    def test_apart_again(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = Result("launch_cost"), Result("probe")
            first.figure("ratio", 1.01)
            bundle = pathlib.Path(folder) / "all.json"
            run.write_whole(bundle, run.summary_of({"gpu": "one"}, [first, second]))
            self.assertEqual(run.split_bundle(bundle, "h200", pathlib.Path(folder)), ["h200-launch-cost.json", "h200-probe.json"])
            apart = json.loads((pathlib.Path(folder) / "h200-launch-cost.json").read_text())
            self.assertEqual((apart["figures"], apart["machine"]), ({"ratio": 1.01}, {"gpu": "one"}))


class Programs(unittest.TestCase):
    def test_three_by_three_the_last_filled_up(self):
        self.assertEqual(programs.groups_of(["a", "b", "c", "d"], False), [["a", "b", "c"], ["d", "a", "b"]])
        self.assertEqual(programs.groups_of(["a", "b"], True), [["a"] * 3, ["b"] * 3])
        self.assertEqual(programs.groups_of(["a"], False), [["a"] * 3])

    def test_equal_or_no_further_apart_than_two_solos(self):
        def row(shared, solo, **more):
            return {"shared": shared, "solo": solo, **more}

        values = {"shared_value": 1.5, "solo_value": 1.0, "again_value": 2.0}
        self.assertTrue(programs.judge(row("x", "x")))
        self.assertFalse(programs.judge(row("x", "y")))
        self.assertFalse(programs.judge(row("x", "y", again="y", **values)))
        self.assertTrue(programs.judge(row("x", "y", again="z", **values)))
        self.assertFalse(programs.judge(row("x", "y", again="z", **{**values, "shared_value": 3.5})))
        self.assertFalse(programs.judge(row("x", "y", again="z")))
        self.assertFalse(programs.judge({"solo": "x"}))

    def test_every_program_is_there(self):
        folder = pathlib.Path(__file__).resolve().parent / "programs"
        self.assertEqual([p.file for p in programs.PROGRAMS.values() if not (folder / p.file).is_file()], [])


class Spreads(unittest.TestCase):
    def test_middle_and_ends(self):
        found = calls.spread([1.03, 0.99, 1.01])
        self.assertEqual((found["lowest"], found["median"], found["highest"]), (0.99, 1.01, 1.03))


class Waits(unittest.TestCase):
    def test_beyond_what_it_takes_alone_and_the_95th_percentile(self):
        self.assertEqual(interactive.waits([350, 300, 1300], 300), [0.05, 0.0, 1.0])
        self.assertEqual(interactive.percentile_95(list(range(1, 101))), 95)
        self.assertEqual(interactive.percentile_95([3, 1, 2]), 3)
        self.assertIsNone(interactive.percentile_95([]))


class Strikes(unittest.TestCase):
    def killer(self, answers):
        """Jobs that end at once, with these answers; no scheduler has seen a turn of theirs."""
        def job(seed, _):
            return types.SimpleNamespace(name=f"job-{seed}", end=1.0, pid=seed, answer=answers[seed], expect_success=lambda _: None)

        jobs = types.SimpleNamespace(start=job, answer=lambda process: process.answer)
        return deaths.Killer(None, jobs, types.SimpleNamespace(last=None), {1: "a", 2: "b", 3: "c"}, 1)

    def test_a_job_with_another_result_is_named(self):
        killer = self.killer({1: "a", 2: "other", 3: "c"})
        killer.renew_the_ended()
        self.assertEqual((killer.finished, killer.wrong), (3, ["job-2"]))

    def test_only_who_had_a_turn_and_lives_is_a_victim(self):
        def job(pid, end):
            return types.SimpleNamespace(pid=pid, end=end)

        clients = [{"pid": 1, "turns": 0}, {"pid": 2, "turns": 3}, {"pid": 3, "turns": 1}]
        scheduler = types.SimpleNamespace(last={"clients": clients})
        self.assertEqual(deaths.swapping(scheduler, {7: job(1, None), 8: job(2, None), 9: job(3, 1.0)}), [8])


class Children(unittest.TestCase):
    def test_a_broken_check_leaves_no_process_and_its_figures(self):
        with tempfile.TemporaryDirectory() as folder:
            config = config_in(folder)
            started = []

            def check(cfg, result):
                started.append(Process(cfg, "sleeper", ["/bin/sh", "-c", "sleep 100 & echo '{\"event\": \"up\"}'; wait"]))
                started[0].wait_event("up", 10)
                result.figure("seen", 1)
                raise RuntimeError("broken")

            result = run_check(config, "broken", check)
            self.assertEqual((result.state, result.figures["seen"]), ("FAIL", 1))
            self.assertIn("broken", result.error)
            self.assertEqual(Process.alive, set())
            with self.assertRaises(ProcessLookupError):
                limit = time.monotonic() + 10
                while time.monotonic() < limit:  # the group goes when its last member is reaped
                    os.killpg(started[0].pid, 0)
                    time.sleep(0.02)
            archive_logs(config)
            with tarfile.open(pathlib.Path(folder) / "logs.tar.gz") as archive:
                self.assertTrue(any(name.endswith("sleeper.log") for name in archive.getnames()))

    def test_wait_all_reports_the_first_failure_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            config = config_in(folder)
            begin = time.monotonic()
            with self.assertRaisesRegex(RuntimeError, "bad ended with 7.*reason"):
                good = Process(config, "good", ["sleep", "100"])
                wait_all([good, Process(config, "bad", ["/bin/sh", "-c", "echo reason >&2; exit 7"])], 50)
            self.assertLess(time.monotonic() - begin, 40)
            Process.end_all()

    def test_skip(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run_check(config_in(folder), "skips", swap.swap_pair)
            self.assertEqual(result.state, "SKIP")
            self.assertRaises(Skip, config_in(folder).program, "probe")


class DeathsUnderMps(unittest.TestCase):
    def test_an_end_is_explained_by_a_strike_soon_before_and_its_error(self):
        words = "cuStreamSynchronize returned 806"
        self.assertTrue(deaths_mps.is_explained(100.0, 105.0, words, False))
        self.assertFalse(deaths_mps.is_explained(100.0, 115.0, words, False))
        self.assertFalse(deaths_mps.is_explained(None, 105.0, words, False))
        self.assertFalse(deaths_mps.is_explained(100.0, 105.0, "cuMemAlloc returned 2", False))
        self.assertFalse(deaths_mps.is_explained(100.0, 105.0, "cuLaunchKernel returned 999", False))
        self.assertTrue(deaths_mps.is_explained(100.0, 105.0, "cuLaunchKernel returned 999", True))


class Servers(unittest.TestCase):
    def test_a_schedule_that_knows_the_arrivals_waits_for_one_that_answers(self):
        self.assertEqual([round(end, 6) for end in servers.oracle([(0.0, 0), (0.1, 1)], 1, 0.2, 1.0)], [1.2, 2.4])

    def test_it_puts_out_whoever_is_asked_last(self):
        arrivals = [(0.0, 0), (10.0, 1), (20.0, 2), (30.0, 0), (40.0, 1)]
        ends = servers.oracle(arrivals, 2, 0.5, 1.0)  # for 2 goes 1, which is asked after 0
        self.assertEqual([round(end - at, 6) for (at, _), end in zip(arrivals, ends)], [1.5, 1.5, 1.5, 1.0, 1.5])

    def test_requests_of_one_server_wait_for_each_other(self):
        self.assertEqual(servers.oracle([(0.0, 0), (0.1, 0)], 2, 0.5, 1.0), [1.5, 2.5])

    def test_arrivals_are_the_seeds_and_popular_servers_have_more(self):
        shape = types.SimpleNamespace(servers=8, rate=5.0, lasts=100)
        found = servers.arrivals_of(shape, 3)
        self.assertEqual(found, servers.arrivals_of(shape, 3))
        self.assertEqual(found, sorted(found))
        counts = [sum(server == one for _, server in found) for one in range(8)]
        self.assertGreater(counts[0], 2 * counts[7])

    def test_what_came_in_for_a_request_is_that_client_s(self):
        moves = [{"client": 1, "out": False, "copied": 5, "t": 10}, {"client": 1, "out": True, "copied": 7, "t": 11},
                 {"client": 2, "out": False, "copied": 9, "t": 12}, {"client": 1, "out": False, "copied": 3, "t": 30}]
        self.assertEqual(servers.brought_in(moves, 1, 5, 20), 5)


if __name__ == "__main__":
    unittest.main()
