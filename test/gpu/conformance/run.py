#!/usr/bin/env python3
"""The same calls natively and under nvshare (README.md). Prints the differences and writes conformance.json into --out.

  run.py --budget 580 --out DIR                 all states, on a real GPU
  run.py --states alone,switching --seed 7
  run.py --record FILE --sequences 2000         what the driver answers, for test/simgpu/recorded
  run.py --probe --budget 30                    where the time goes, on a GPU that is new

Ends --budget seconds after its start, and soon after SIGTERM or SIGINT, with what there is until then; results are written as they come.
"""
import argparse
import io
import pathlib
import resource
import shutil
import sys
import tarfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import journal as journals  # noqa: E402
import probe as probes  # noqa: E402
import recording  # noqa: E402
from c_program import c_program  # noqa: E402
from checks import conformance as checks  # noqa: E402
from harness import Config, Process, Result, archive_logs  # noqa: E402


def parse_arguments():
    repo = pathlib.Path(__file__).resolve().parent.parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=560, help="seconds in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--states", default=",".join(checks.STATES), help=f"of {', '.join(checks.STATES)}")
    parser.add_argument("--calls", type=int, default=100, help="calls of a sequence, about")
    parser.add_argument("--cold-calls", type=int, default=0, help="of a sequence about what comes before the first turn; 0: a third of --calls")
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence")
    parser.add_argument("--count", type=int, default=40000, help="at most so many sequences")
    parser.add_argument("--volume", default="", metavar="NATIVE,EACH,FRESH",
                        help="so many calls natively and in each other state, and so many fresh processes in first_turn, as far as the budget goes")
    parser.add_argument("--devices", type=int, default=1, help="GPUs that the calls use, 1 or 2")
    parser.add_argument("--processes", type=int, default=8, help="at once")
    parser.add_argument("--examined", type=int, default=160, help="differing sequences of each state that are looked at line by line")
    parser.add_argument("--patience", type=int, default=0, help="a call that takes longer hangs, seconds; default: 10, with --small 30")
    parser.add_argument("--probe", nargs="?", const="native", default="", metavar="STATE",
                        help="one process, few sequences (--sequences, 20), 30 s at most: seconds per sequence and the slowest entry points")
    parser.add_argument("--beside", type=int, default=0, help="--probe: so many other processes run meanwhile")
    parser.add_argument("--no-crash-search", action="store_true", help="trust --known")
    parser.add_argument("--known", default="", help="entry points with which the driver crashes; default: crashing.txt beside this file")
    parser.add_argument("--without", default="", help="entry points that are not called, separated by commas")
    parser.add_argument("--tame", default="", help="entry points that get right arguments only")
    parser.add_argument("--record", default="", help="write what the driver answers into this file (.gz), and compare nothing")
    parser.add_argument("--sequences", type=int, default=0, help="--record, --probe: how many (2000, 20)")
    parser.add_argument("--root", default="", help="where bin/, lib/ and test/ (or gpu/) are; default: dist, then build/release")
    parser.add_argument("--simgpu", default="", help="folder of the stand-in GPU's libraries")
    parser.add_argument("--small", action="store_true", help="small sizes, for the stand-in GPU")
    parser.add_argument("--out", default=str(repo / "bench" / "results" / "latest"))
    parser.add_argument("--library-log", default="warning")
    parser.set_defaults(python=sys.executable, variants="", seconds=0, turn=1, launcher="preload")
    args = parser.parse_args()
    args.patience = args.patience or (30 if args.small else 10)
    args.sequences = args.sequences or (20 if args.probe else 2000)
    args.budget = min(args.budget, 30) if args.probe else args.budget
    try:
        args.volume = tuple(int(number) for number in args.volume.split(",")) if args.volume else ()
    except ValueError:
        args.volume = (0,)
    if args.volume and (len(args.volume) != 3 or min(args.volume) < 1):
        parser.error("--volume: three numbers of 1 and more, such as 2000000,200000,500")
    return args


def print_result(result, out):
    """C programs of what differs go into one archive."""
    figures, programs = result.figures, {}
    for name, row in figures.get("states", {}).items():
        print(f"{name}: {row}"[:600])
    covered = figures.get("coverage", {})
    print("coverage: " + ", ".join(f"{key} {value}" for key, value in covered.items() if isinstance(value, int)))
    for key in ("left_out", "explained", "not_seen_again", "otherwise_once", "left_behind_natively", "crashed_natively"):
        print(f"{key}: {figures.get(key)}")
    for title, rows in (("DIFFERENCE", figures.get("differences", [])), ("not the same natively", figures.get("racy_natively", []))):
        for row in rows:
            print(f"\n{title} {row['kind'][0]} in {row.get('state', 'native')}, {row['count']} times, first in sequence {row['sequence']}: {row['native']!r} natively, "
                  f"{row['nvshare']!r} otherwise")
            for line in row.get("shrunk", []):
                print(f"    {line}")
            if row.get("shrunk"):
                name = f"{row['kind'][0].partition('(')[0].lstrip('~')}-{len(programs)}.c"
                programs[name] = c_program(row["shrunk"]).encode()
                print(f"    as a C program: {name}")
    if programs:
        with tarfile.open(out / "programs.tar.gz", "w:gz") as archive:
            for name, text in programs.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text))


class Run:
    def __init__(self, args):
        self.args = args
        self.begin = time.monotonic()
        self.config = Config(args)
        self.result = Result("conformance", judge_times=False)
        self.journal = journals.Journal(self.begin + args.budget, self.save)
        self.ended = False
        self.options = checks.Options(
            seed=args.seed, calls=args.calls, devices=args.devices, first=args.first, count=args.count, processes=args.processes,
            patience=args.patience, states=[s for s in args.states.split(",") if s], tame=[s for s in args.tame.split(",") if s],
            without=[s for s in args.without.split(",") if s], examined=args.examined, budget=args.budget, known=args.known,
            crash_search=not args.no_crash_search, volume=args.volume, cold_calls=args.cold_calls)

    def save(self, reason):
        """What there is, into conformance.json; `reason`: why the run ends early. Called from the journal's thread as well."""
        out = self.config.out
        self.result.seconds = time.monotonic() - self.begin
        self.result.error = reason or self.result.error
        self.result.figure("run", self.journal.figures())
        (out / "conformance.json.new").write_text(checks.summary(self.result) + "\n")
        (out / "conformance.json.new").rename(out / "conformance.json")
        if reason:
            self.show()
            archive_logs(self.config, 16 << 10)

    def show(self):
        if self.ended:
            return
        self.ended = True
        if self.args.record or self.args.probe:
            return
        print_result(self.result, self.config.out)
        for requirement in self.result.requirements:
            row = f"{requirement['what']}: {requirement['measured']} {requirement['relation']} {requirement['bound']}"
            print(f"{'ok  ' if requirement['holds'] else 'FAIL'} {row}")
        sys.stdout.flush()

    def instrument(self):
        instrument = checks.Instrument(self.config, self.options)
        instrument.journal = self.journal
        instrument.deadline = self.begin + self.args.budget - 1
        if not self.config.small:
            instrument.take_known(pathlib.Path(self.args.known or checks.CRASHING))
        return instrument

    def work(self):
        """Whether there is nothing to complain of."""
        if self.args.probe:
            figures = self.result.figure("probe", probes.probe(self.instrument(), self.journal, self.args.probe, self.args.sequences, self.args.beside))
            print("\n".join(probes.lines_of(figures)), flush=True)
            return figures["sequences"] > 0
        if self.args.record:
            instrument = self.instrument()
            self.journal.enter("record")
            self.result.figure("left_out", {"tame": instrument.tame, "without": instrument.without})
            sequences, calls = recording.record(instrument, self.args.record, self.args.sequences, self.journal.say)
            checks.write_crashing(instrument)
            self.result.figure("recorded", {"sequences": sequences, "calls": calls})
            print(f"recorded {sequences} of {self.args.sequences} sequences, {calls} calls, in {self.args.record}, without {instrument.without}, "
                  f"tame {instrument.tame}", flush=True)
            return sequences > 0
        checks.compare_all(self.config, self.result, self.options, self.journal)
        return self.result.state == "PASS"

    def main(self):
        self.journal.catch_signals()
        good = False
        try:
            good = self.work()
        except Exception as error:  # what was found before it counts
            self.result.error = f"{type(error).__name__}: {error}"
            self.result.figures["traceback"] = traceback.format_exc().splitlines()[-8:]
            print(traceback.format_exc(), flush=True)
        self.journal.say(self.journal.progress())
        self.journal.enter("end")
        self.show()
        archive_logs(self.config, 64 << 10)
        self.journal.close()
        Process.end_all()
        shutil.rmtree(self.config.work, ignore_errors=True)
        return 0 if good and not self.result.error else 1


def main():
    args = parse_arguments()
    unknown = [s for s in [*args.states.split(","), args.probe] if s and s not in (*checks.STATES, "native", "native_fresh")]
    if unknown:
        print(f"no state {', '.join(unknown)}; there are: {', '.join(checks.STATES)}", file=sys.stderr)
        return 2
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # writing the core of a process with a GPU takes seconds
    sys.stdout.reconfigure(line_buffering=True)
    return Run(args).main()


if __name__ == "__main__":
    sys.exit(main())
