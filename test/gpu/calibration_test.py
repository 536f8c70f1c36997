#!/usr/bin/env python3
"""Does `steady` find out how long its kernels are on a machine that stops it again and again?   calibration_test.py STEADY SIMGPU

The stand-in's kernels take 1 ns for each round, so kernels of 1 and 10 ms have about 10^6 and 10^7. With a single measure they came out
a fifth as long, or seven times too long: the shares measured with them then say nothing.
"""
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

TIMES = 24
FACTOR = 3  # on a machine that is slow all the time kernels take longer, which calibration rightly sees


def main():
    steady, simgpu = sys.argv[1:]
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    dice = random.Random(seed)
    program = subprocess.Popen([steady], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "LD_LIBRARY_PATH": simgpu})
    program.stdout.readline()
    ended = threading.Event()

    def stop_again_and_again():
        while not ended.is_set():
            time.sleep(dice.uniform(0, 0.01))
            program.send_signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0, 0.01))
            program.send_signal(signal.SIGCONT)

    disturber = threading.Thread(target=stop_again_and_again)
    disturber.start()
    found = []
    try:
        for _ in range(TIMES):
            program.stdin.write("calibrate 1000,10000\n")
            program.stdin.flush()
            found.append(json.loads(program.stdout.readline())["rounds"])
    finally:
        ended.set()
        disturber.join()
        program.stdin.close()
        program.wait(60)
    wrong = [each for each in found if not all(due / FACTOR < rounds < due * FACTOR for rounds, due in zip(each, (1e6, 1e7)))]
    print(f"rounds of 1 and 10 ms: {found}", flush=True)
    if wrong:
        sys.exit(f"{len(wrong)} of {TIMES} are wrong by a factor of {FACTOR} or more: {wrong}")


if __name__ == "__main__":
    main()
