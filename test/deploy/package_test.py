#!/usr/bin/env python3
"""Debian packages, the same as .rpm, and install.sh of the tarball, in a root folder of their own: what they put where, that the programs run from there, and
that nothing is left when they are removed. Run by ctest."""
import argparse
import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
ARGUMENTS = None


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, **options)
    if done.returncode != 0:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def files_below(folder, *left_out):
    return sorted(
        str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*")
        if (path.is_file() or path.is_symlink()) and not str(path.relative_to(folder)).startswith(left_out)
    )


MADE = {}  # folders of packages, by their kind


def packages_of(kind):
    """{name: file}; made once."""
    if kind not in MADE:
        MADE[kind] = pathlib.Path(tempfile.mkdtemp(prefix="nvshare-packages-"))
        run(TREE / "tools/make-packages.sh", f"--{kind}", ARGUMENTS.build, MADE[kind])
    return {re.match(r"(.*?)[-_]\d", path.name)[1]: path for path in MADE[kind].glob(f"*.{kind}")}


def tearDownModule():
    for folder in MADE.values():
        shutil.rmtree(folder)


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="nvshare-packages-"))
        cls.packages = packages_of("deb")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def fields(self, package):
        return run("dpkg-deb", "--field", self.packages[package])

    def dpkg(self, *words):
        root = self.folder / "root"
        for part in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log"):
            (root / part).mkdir(parents=True, exist_ok=True)
        (root / "var/lib/dpkg/status").touch()
        run("dpkg", f"--root={root}", "--force-not-root", "--force-script-chrootless", "--force-depends", f"--log={self.folder}/log", *words)
        return root

    def test_fields(self):
        optional = {"nvshare-kubernetes": ARGUMENTS.plugin, "nvshare-slurm": ARGUMENTS.slurm}
        self.assertEqual(set(self.packages), {"nvshare"} | {name for name, built in optional.items() if built})
        text = self.fields("nvshare")
        version = re.search(r"project\(nvshare VERSION (\S+)", (TREE / "CMakeLists.txt").read_text())[1]
        self.assertIn(f"Version: {version}\n", text)
        self.assertRegex(text, r"Depends: .*libc6 \(>= ")
        self.assertNotIn("libcuda", text)
        if ARGUMENTS.plugin:
            self.assertIn(f"nvshare (= {version})", self.fields("nvshare-kubernetes"))

    def test_installed_run_and_removed(self):
        root = self.dpkg("--install", self.packages["nvshare"])
        there = files_below(root, "var/")
        for file in ("usr/bin/nvshare", "usr/bin/nvsharectl", "usr/bin/nvshare-scheduler", "usr/lib/nvshare/libnvshare.so", "usr/lib/systemd/system/nvshare-scheduler.service",
                     "etc/nvshare/scheduler.toml", "usr/share/man/man1/nvsharectl.1.gz", "usr/share/man/man1/nvshare.1.gz", "usr/share/bash-completion/completions/nvsharectl",
                     "usr/share/bash-completion/completions/nvshare", "usr/share/fish/vendor_completions.d/nvshare.fish",
                     "usr/share/zsh/vendor-completions/_nvsharectl", "usr/share/fish/vendor_completions.d/nvsharectl.fish",
                     "usr/share/doc/nvshare/copyright", "usr/share/nvshare/jupyter/nvshare.py", "usr/lib/nvshare/simgpu/libcuda.so.1"):
            self.assertIn(file, there)
        documents = root / "usr/share/doc/nvshare/docs"
        missing = []
        for page in documents.glob("**/*.md"):
            for link in re.findall(r"\]\(([^)\s#]+)", page.read_text()):
                if "://" not in link and not (page.parent / link).resolve().exists():
                    missing.append(os.path.relpath(os.path.normpath(page.parent / link), documents.parent))
        # Of documents, all; source files, raw results and what the Kubernetes package has are elsewhere.
        self.assertEqual([link for link in missing if not link.startswith(("bench/results", "deploy/", "src/", "test/"))], [])
        unit = (root / "usr/lib/systemd/system/nvshare-scheduler.service").read_text()
        self.assertTrue((root / re.search(r"ExecStart=/(\S+)", unit)[1]).is_file())
        # From where they are they find each other.
        self.assertIn(str(root / "usr/lib/nvshare/libnvshare.so"), run(root / "usr/bin/nvsharectl", "version", env={"NVSHARE_RUNTIME_DIR": "/nonexistent"}))
        self.assertEqual(run(root / "usr/bin/nvshare", "--version"), run(root / "usr/bin/nvsharectl", "--version"))
        (root / "short").symlink_to(root / "usr/bin/nvshare")
        self.assertEqual(run(root / "short", "--help"), run(root / "usr/bin/nvsharectl", "run", "--help"))
        (root / "short").unlink()
        self.assertRegex(run(root / "usr/bin/nvshare-scheduler", "--version"), r"^\d+\.\d+\.\d+")
        # What the scheduler writes when it runs.
        (root / "run/nvshare").mkdir(parents=True)
        (root / "run/nvshare/tenants").write_text("{}")
        (root / "run/nvshare-locks").mkdir()
        for name in ("GPU-1.lock", "GPU-1.owner", "GPU-2.lock", "GPU-2.owner"):
            (root / "run/nvshare-locks" / name).touch()
        served = (root / "run/nvshare-locks/GPU-2.lock").open()  # by another scheduler
        fcntl.flock(served, fcntl.LOCK_EX)
        before = (root / "usr/lib/nvshare/libnvshare.so").stat().st_ino
        self.dpkg("--install", self.packages["nvshare"])  # an upgrade: another file, running programs keep theirs
        self.assertNotEqual(before, (root / "usr/lib/nvshare/libnvshare.so").stat().st_ino)
        self.dpkg("--remove", "nvshare")
        self.assertEqual(files_below(root, "var/"), ["etc/nvshare/scheduler.toml", "run/nvshare-locks/GPU-2.lock", "run/nvshare-locks/GPU-2.owner"])
        served.close()
        self.dpkg("--purge", "nvshare")
        self.assertEqual(files_below(root, "var/"), [])
        self.assertFalse((root / "etc/nvshare").exists())

    def test_it_says_where_nothing_starts_the_scheduler(self):
        folder = self.folder / "stand-ins"
        folder.mkdir()
        for program in ("deb-systemd-helper", "deb-systemd-invoke", "systemctl"):
            (folder / program).write_text("#!/bin/sh\n")
            (folder / program).chmod(0o755)
        for former, words in (("", "run nvshare-scheduler as root, at each boot"), ("0.1.0", "of the former release until it is restarted")):
            said = run("sh", TREE / "deploy/packaging/postinst", "configure", former, env={"PATH": f"{folder}:{os.environ['PATH']}"})
            self.assertEqual(words in said, not os.path.isdir("/run/systemd/system"), said)

    def test_kubernetes_package(self):
        if not ARGUMENTS.plugin:
            self.skipTest("nvshare-device-plugin is not built here")
        there = run("dpkg-deb", "--contents", self.packages["nvshare-kubernetes"])
        for file in ("./usr/bin/nvshare-device-plugin", "./usr/bin/nvshare-dra-driver", "./usr/share/doc/nvshare-kubernetes/helm/nvshare/Chart.yaml",
                     "./usr/share/doc/nvshare-kubernetes/helm/nvshare/files/rules.yml\n", "./usr/share/doc/nvshare-kubernetes/examples/share.yaml"):
            self.assertIn(file, there)

    def test_slurm_package(self):
        if not ARGUMENTS.slurm:
            self.skipTest("the plugin for Slurm is not built here")
        there = run("dpkg-deb", "--contents", self.packages["nvshare-slurm"])
        for file in ("./usr/lib/nvshare/nvshare_spank.so", "./usr/lib/nvshare/nvshare-slurm-step", "./usr/share/doc/nvshare-slurm/nvshare.conf", "./usr/share/doc/nvshare-slurm/slurm.md"):
            self.assertIn(file, there)
        self.assertNotIn("libstdc++", self.fields("nvshare-slurm"))

    def test_each_program_has_a_manual_page(self):
        folder = self.folder / "manuals"
        for package, deb in self.packages.items():
            (folder / package).mkdir(parents=True)
            run("dpkg-deb", "--extract", deb, folder / package)
            for program in (folder / package / "usr/bin").glob("*"):
                pages = list((folder / package / "usr/share/man").glob(f"man[18]/{program.name}.[18].gz"))
                self.assertEqual(len(pages), 1, f"{package}: {program.name}")
                text = run("gzip", "-dc", pages[0]).replace("\\-", "-")
                if program.name == "nvshare":  # the page of nvsharectl, which the next test reads
                    self.assertEqual(text, ".so man1/nvsharectl.1\n")
                    continue
                options = re.findall(r"^  (?:-\w,)?(--[a-z-]+)", run(ARGUMENTS.build / "bin" / program.name, "--help"), re.MULTILINE)
                self.assertGreater(len(options), 1, program.name)
                self.assertEqual([option for option in options if option not in text], [], program.name)
                for part in (f".SH NAME\n{program.name}", ".SH EXIT STATUS\n.TP\n.B 0\ndone"):
                    self.assertIn(part, text, program.name)
                if shutil.which("man"):
                    shown = subprocess.run(["man", "--warnings", "--local-file", str(pages[0])], capture_output=True, text=True, timeout=60,
                                           env={"PATH": os.environ["PATH"], "MANWIDTH": "80", "LANG": "C"})
                    self.assertEqual((shown.returncode, shown.stderr), (0, ""), program.name)

    def test_every_option_is_in_the_man_page_and_the_completions(self):
        share = self.folder / "pages"
        run(TREE / "tools/command-pages.py", share, ARGUMENTS.build / "bin/nvsharectl")
        manual = run("gzip", "-dc", share / "share/man/man1/nvsharectl.1.gz").replace("\\-", "-")
        pages = {"man page": manual, "bash": (share / "share/bash-completion/completions/nvsharectl").read_text(),
                 "zsh": (share / "share/zsh/vendor-completions/_nvsharectl").read_text()}
        self.assertIn("percent of each GPU's time that the program and its children may use", manual)  # --help has it below its option
        seen = 0
        for command in ("run", "status", "top", "set", "pause", "resume", "release", "kill", "logs", "trace", "replay", "doctor", "version", "demo", "convert"):
            for option in re.findall(r"^  (?:-\w,)?(--[a-z-]+)", run(ARGUMENTS.build / "bin/nvsharectl", command, "--help"), re.MULTILINE):
                seen += 1
                for name, text in pages.items():
                    self.assertIn(option, text, f"{command} {option} in {name}")
        self.assertGreater(seen, 20)
        run("bash", "-n", share / "share/bash-completion/completions/nvsharectl")
        words = run("bash", "-c", f"source {share}/share/bash-completion/completions/nvsharectl; COMP_WORDS=(nvsharectl run --gpu-m); COMP_CWORD=2; "
                    "_nvsharectl nvsharectl --gpu-m run; echo ${COMPREPLY[@]}")
        self.assertEqual(words.split(), ["--gpu-memory-limit"])


# From the same build: those that are given away come from the preset dist, whose programs need nothing of this distribution's.
@unittest.skipUnless(shutil.which("rpmbuild"), "there is no rpmbuild (Debian: rpm)")
class RpmPackages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="nvshare-rpms-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.rpms, cls.debs = packages_of("rpm"), packages_of("deb")

    def ask(self, package, *words):
        return run("rpm", "--query", "--package", *words, self.rpms[package])

    def files_of(self, package):
        lines = self.ask(package, "--queryformat", "[%{FILEMODES:perms} %{FILENAMES}\\n]").splitlines()
        return sorted(line.split(" ", 1)[1] for line in lines if line[0] != "d")

    def test_they_hold_what_the_debian_packages_hold(self):
        self.assertEqual(set(self.rpms), set(self.debs))
        for package, deb in self.debs.items():
            listed = [line.split(maxsplit=5) for line in run("dpkg-deb", "--contents", deb).splitlines()]
            self.assertEqual(self.files_of(package), sorted(line[5].removeprefix(".") for line in listed if line[0][0] != "d"), package)
        version = re.search(r"project\(nvshare VERSION (\S+)", (TREE / "CMakeLists.txt").read_text())[1]
        for package in self.rpms:
            self.assertEqual(self.ask(package, "--queryformat", "%{VERSION} %{LICENSE}"), f"{version} Apache-2.0")
            if package == "nvshare-kubernetes":
                self.assertIn(f"nvshare = {version}", self.ask(package, "--requires"))
        self.assertNotIn("libcuda", self.ask("nvshare", "--requires") + self.ask("nvshare", "--provides"))
        self.assertEqual(self.ask("nvshare", "--configfiles"), "/etc/nvshare/scheduler.toml\n")

    def test_installed_run_upgraded_and_removed(self):
        root = self.folder / "root"
        rpm = ["rpm", "--root", root, "--dbpath", "/var/lib/rpm"]
        root.mkdir()
        run(*rpm, "--initdb")
        run(*rpm, "--install", "--nodeps", "--noscripts", self.rpms["nvshare"])
        self.assertEqual(run(root / "usr/bin/nvsharectl", "--version"), run(ARGUMENTS.build / "bin/nvsharectl", "--version"))
        self.assertIn(str(root / "usr/lib/nvshare/libnvshare.so"), run(root / "usr/bin/nvsharectl", "version", env={"NVSHARE_RUNTIME_DIR": "/nonexistent"}))
        before = (root / "usr/lib/nvshare/libnvshare.so").stat().st_ino
        run(*rpm, "--upgrade", "--force", "--nodeps", "--noscripts", self.rpms["nvshare"])
        self.assertNotEqual(before, (root / "usr/lib/nvshare/libnvshare.so").stat().st_ino)
        (root / "etc/nvshare/scheduler.toml").write_text("# changed\n")
        run(*rpm, "--erase", "--nodeps", "--noscripts", "nvshare")
        self.assertEqual(files_below(root, "var/"), ["etc/nvshare/scheduler.toml.rpmsave"])

    def test_its_scripts_start_and_stop_the_scheduler(self):
        text = self.ask("nvshare", "--scripts")
        for script, number, asked in (("post", 1, "enable"), ("preun", 0, "disable"), ("preun", 1, None)):
            content = (TREE / "deploy/packaging/rpm" / script).read_text()
            self.assertIn(content.strip().splitlines()[-2].strip(), text, script)
            folder = self.folder / f"{script}-{number}"
            folder.mkdir()
            (folder / "systemctl").write_text(f"#!/bin/sh\necho \"$@\" >> {folder}/calls\n")
            (folder / "systemctl").chmod(0o755)
            run("sh", "-c", content, script, number, env={"PATH": f"{folder}:{os.environ['PATH']}"})
            calls = (folder / "calls").read_text() if (folder / "calls").exists() else ""
            self.assertEqual(bool(re.search(rf"^{asked} .*nvshare-scheduler.service", calls, re.MULTILINE)) if asked else calls == "", True, (script, number, calls))
        # What it removes on the machine is not for a test: that it can be read, and what it names.
        postun = TREE / "deploy/packaging/rpm/postun"
        run("sh", "-n", postun)
        for place in ("/run/nvshare", "/run/nvshare-locks", "/etc/default/nvshare-scheduler"):
            self.assertIn(place, postun.read_text())
            self.assertIn(place.removeprefix("/"), (TREE / "deploy/packaging/postrm").read_text())


class Tarball(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nvshare-tarball-"))
        self.tree = self.folder / "unpacked"
        for part, source in (("bin/nvsharectl", "bin/nvsharectl"), ("bin/nvshare-scheduler", "bin/nvshare-scheduler"), ("lib/libnvshare.so", "lib/libnvshare.so")):
            (self.tree / part).parent.mkdir(parents=True, exist_ok=True)
            os.link(ARGUMENTS.build / source, self.tree / part) if os.stat(ARGUMENTS.build).st_dev == os.stat(self.folder).st_dev else shutil.copy(ARGUMENTS.build / source, self.tree / part)
        shutil.copytree(TREE / "deploy/systemd", self.tree / "share/nvshare/systemd")
        shutil.copy(TREE / "deploy/packaging/install.sh", self.tree)

    def tearDown(self):
        shutil.rmtree(self.folder)

    def install(self, *words, **environment):
        done = subprocess.run([str(self.tree / "install.sh"), *map(str, words)], capture_output=True, text=True, timeout=60, cwd=self.folder,
                              env={"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "XDG_RUNTIME_DIR": str(self.folder / "run"),
                                   **environment})
        return done.returncode, done.stdout + done.stderr

    def test_for_the_machine_with_its_service(self):
        prefix, units = self.folder / "opt", self.folder / "units"
        units.mkdir()
        (prefix / "bin").mkdir(parents=True)
        (prefix / "bin/other").write_text("not ours")
        code, text = self.install("--prefix", prefix, NVSHARE_UNIT_DIR=str(units))
        self.assertEqual(code, 0, text)
        self.assertIn(f"ExecStart={prefix}/bin/nvshare-scheduler", (units / "nvshare-scheduler.service").read_text())
        self.assertIn(str(prefix / "lib/libnvshare.so"), run(prefix / "bin/nvsharectl", "version", env={"NVSHARE_RUNTIME_DIR": "/nonexistent"}))
        before = (prefix / "lib/libnvshare.so").stat().st_ino
        (self.tree / "share/nvshare/new").write_text("of the next release")
        (self.tree / "share/nvshare/systemd/scheduler.toml").unlink()
        self.assertEqual(self.install("--prefix", prefix, NVSHARE_UNIT_DIR=str(units))[0], 0)
        self.assertNotEqual(before, (prefix / "lib/libnvshare.so").stat().st_ino)
        self.assertTrue((prefix / "share/nvshare/new").is_file())
        self.assertFalse((prefix / "share/nvshare/systemd/scheduler.toml").exists())
        code, text = self.install("--prefix", prefix, "--uninstall", NVSHARE_UNIT_DIR=str(units))
        self.assertEqual(code, 0, text)
        self.assertEqual(files_below(prefix), ["bin/other"])
        self.assertFalse((prefix / "share").exists() or (prefix / "lib").exists())
        self.assertEqual(files_below(units), [])

    def test_what_is_installed_is_nobody_elses(self):
        """Whoever unpacked it: a file that root's service runs must not be that user's to write."""
        prefix, units = self.folder / "opt", self.folder / "units"
        units.mkdir()
        for name, mode in (("data", 0o666), ("program", 0o777)):
            file = self.tree / "share/nvshare" / name
            file.write_text("text")
            file.chmod(mode)
            if os.geteuid() == 0:
                os.chown(file, 1234, 1234)
        code, text = self.install("--prefix", prefix, NVSHARE_UNIT_DIR=str(units))
        self.assertEqual(code, 0, text)
        for name, mode in (("data", 0o644), ("program", 0o755)):
            status = (prefix / "share/nvshare" / name).stat()
            self.assertEqual((status.st_uid, status.st_gid, status.st_mode & 0o7777), (os.geteuid(), os.getegid(), mode), name)
            self.assertEqual(int(status.st_mtime), int((self.tree / "share/nvshare" / name).stat().st_mtime), name)

    def test_for_a_user(self):
        (self.folder / "home").mkdir()
        code, text = self.install("--user")
        self.assertEqual(code, 0, text)
        self.assertIn("is not in PATH", text)
        self.assertTrue((self.folder / "home/.local/bin/nvsharectl").is_file())
        self.assertEqual(self.install("--user")[0], 0, "the same again")
        self.assertEqual(self.install("--user", "--uninstall")[0], 0)
        self.assertEqual(list((self.folder / "home").iterdir()), [], "nor a folder of it")

    def test_folders_that_were_there_stay(self):
        home = self.folder / "home"
        for folder in (".local/bin", ".local/share/nvshare"):
            (home / folder).mkdir(parents=True)
        self.assertEqual(self.install("--user")[0], 0)
        (home / ".local/lib/theirs").mkdir()
        self.assertEqual(self.install("--user", "--uninstall")[0], 0)
        self.assertEqual(sorted(str(path.relative_to(home)) for path in home.rglob("*")),
                         [".local", ".local/bin", ".local/lib", ".local/lib/theirs", ".local/share", ".local/share/nvshare"])

    def test_after_a_release_that_noted_no_folders(self):
        (self.folder / "home").mkdir()
        self.assertEqual(self.install("--user")[0], 0)
        (self.folder / "home/.local/share/nvshare/made-folders").unlink()
        self.assertEqual(self.install("--user")[0], 0)
        self.assertEqual(self.install("--user", "--uninstall")[0], 0)
        self.assertEqual(list((self.folder / "home/.local").iterdir()), [])

    def test_what_an_own_scheduler_left_goes_with_it(self):
        run_folder, home = self.folder / "run", self.folder / "home"
        own = run_folder / "nvshare"
        home.mkdir()
        for serves in (True, False):
            self.assertEqual(self.install("--user")[0], 0)
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            (own / "scheduler.log").write_text("what it said")
            if serves:
                scheduler = subprocess.Popen([str(home / ".local/bin/nvshare-scheduler"), "--runtime-dir", str(own), "--nvml", "off"],
                                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.addCleanup(scheduler.wait)
                self.addCleanup(scheduler.kill)
                deadline = time.monotonic() + 60
                while not (own / "admin/admin.sock").exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
            code, text = self.install("--user", "--uninstall")
            self.assertEqual(code, 0, text)
            self.assertEqual("still serves" in text, serves, text)
            self.assertEqual((own / "scheduler.log").exists(), serves)
            if serves:
                scheduler.kill()
                scheduler.wait()
        self.assertEqual(list(run_folder.iterdir()), [])
        # A link is nobody's folder to empty.
        self.assertEqual(self.install("--user")[0], 0)
        (self.folder / "elsewhere").mkdir()
        (self.folder / "elsewhere/kept").write_text("")
        own.symlink_to(self.folder / "elsewhere")
        self.assertEqual(self.install("--user", "--uninstall")[0], 0)
        self.assertTrue((self.folder / "elsewhere/kept").exists())

    def stand_in(self, program, text):
        """PATH with such a program before the others."""
        folder = self.folder / "programs"
        folder.mkdir(exist_ok=True)
        (folder / program).write_text(f"#!/bin/sh\n{text}\n")
        (folder / program).chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    def test_of_a_folder_that_may_be_served_nothing_goes(self):
        own, control = self.folder / "run/nvshare", self.folder / "home/.local/bin/nvsharectl"
        own.mkdir(mode=0o700, parents=True)
        control.parent.mkdir(parents=True)
        for name in ("scheduler.lock", "start.lock"):
            self.assertEqual(self.install("--user")[0], 0)
            control.chmod(0o644)  # it cannot be asked
            for file in (name, "scheduler.log", "tenants"):
                (own / file).touch()
            with (own / name).open() as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                code, text = self.install("--user", "--uninstall")
            self.assertEqual(code, 0, text)
            self.assertIn(f"still serves {own}", text)
            self.assertEqual(files_below(own), sorted([name, "scheduler.log", "tenants"]))
            (own / name).unlink()

    def test_what_no_scheduler_wrote_stays(self):
        own = self.folder / "run/nvshare"
        for folder in ("admin", "client", "jobs"):
            (own / folder).mkdir(parents=True)
        own.chmod(0o700)
        for file in ("scheduler.lock", "scheduler.log", "tenants", "clients.changes", "admin/admin.sock", "jobs/mine", "results"):
            (own / file).touch()
        (self.folder / "home").mkdir()
        self.assertEqual(self.install("--user")[0], 0)
        code, text = self.install("--user", "--uninstall")
        self.assertEqual(code, 0, text)
        self.assertIn(f"{own} stays", text)
        self.assertEqual(files_below(own), ["jobs/mine", "results"])
        self.assertFalse((own / "admin").exists() or (own / "client").exists())

    def test_locks_that_no_scheduler_holds_go(self):
        user = f"tests-{os.getpid()}"
        locks = pathlib.Path(f"/tmp/nvshare-locks-{user}")
        locks.mkdir()
        self.addCleanup(shutil.rmtree, locks, ignore_errors=True)
        (self.folder / "home").mkdir()
        somebody = self.stand_in("id", f"echo {user}")
        for gpu in ("GPU-1", "GPU-2"):
            for kind in ("lock", "owner"):
                (locks / f"{gpu}.{kind}").touch()
        (self.folder / "elsewhere.lock").touch()
        (locks / "GPU-3.lock").symlink_to(self.folder / "elsewhere.lock")
        with (locks / "GPU-2.lock").open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertEqual(self.install("--user", PATH=somebody)[0], 0)
            code, text = self.install("--user", "--uninstall", PATH=somebody)
        self.assertEqual(code, 0, text)
        self.assertIn(f"{locks} stays", text)
        self.assertEqual(sorted(path.name for path in locks.iterdir()), ["GPU-2.lock", "GPU-2.owner", "GPU-3.lock"])
        self.assertTrue((self.folder / "elsewhere.lock").exists())
        (locks / "GPU-3.lock").unlink()
        self.assertEqual(self.install("--user", PATH=somebody)[0], 0)
        code, text = self.install("--user", "--uninstall", PATH=somebody)
        self.assertEqual(code, 0, text)
        self.assertFalse(locks.exists())
        # A link is nobody's folder to empty.
        (self.folder / "elsewhere").mkdir()
        (self.folder / "elsewhere/GPU-1.lock").touch()
        locks.symlink_to(self.folder / "elsewhere")
        self.addCleanup(locks.unlink)
        self.assertEqual(self.install("--user", PATH=somebody)[0], 0)
        self.assertEqual(self.install("--user", "--uninstall", PATH=somebody)[0], 0)
        self.assertTrue((self.folder / "elsewhere/GPU-1.lock").exists())

    def test_a_relative_folder_is_not_a_schedulers(self):
        """nvsharectl looks for none there, either."""
        (self.folder / "home").mkdir()
        (self.folder / "run/nvshare").mkdir(parents=True)
        (self.folder / "run/nvshare/tenants").touch()
        nobody = self.stand_in("id", "echo nobody-of-the-tests")  # else the other place that it looks at would be this user's own
        self.assertEqual(self.install("--user")[0], 0)
        code, text = self.install("--user", "--uninstall", XDG_RUNTIME_DIR="run", PATH=nobody)
        self.assertEqual(code, 0, text)
        self.assertTrue((self.folder / "run/nvshare/tenants").exists())

    def test_what_a_failed_installation_made_can_be_removed(self):
        prefix = self.folder / "opt"
        prefix.mkdir()
        (prefix / "lib").write_text("a file where a folder has to be")
        code, text = self.install("--prefix", prefix)
        self.assertEqual(code, 1, text)
        self.assertIn(f"cannot make the folder {prefix}/lib (File exists)", text)
        self.assertTrue((prefix / "bin/nvsharectl").exists())
        self.assertEqual([file for file in files_below(prefix) if "new" in file or "both" in file], [])
        code, text = self.install("--prefix", prefix, "--uninstall")
        self.assertEqual(code, 0, text)
        self.assertEqual([path.name for path in prefix.iterdir()], ["lib"])

    def test_where_nothing_can_be_noted_nothing_is_left(self):
        full = self.stand_in("mkdir", f"""case "$1" in */share/nvshare) echo "mkdir: $1: No space left" >&2; exit 1 ;; esac
exec {shutil.which("mkdir")} "$@\"""")
        code, text = self.install("--prefix", self.folder / "opt/new", PATH=full)
        self.assertEqual(code, 1, text)
        self.assertIn(f"cannot make the folder {self.folder}/opt/new/share/nvshare (No space left)", text)
        self.assertFalse((self.folder / "opt").exists())

    def test_a_folder_from_which_the_library_cannot_be_loaded_is_refused(self):
        for name in ("home of Ann", "a:b"):
            code, text = self.install("--prefix", self.folder / name)
            self.assertEqual(code, 1, text)
            self.assertIn("its name ends at a blank or ':'; take another folder", text)
            self.assertFalse((self.folder / name).exists())

    def test_the_line_for_path_can_be_pasted(self):
        prefix = self.folder / "it's $HOME".replace(" ", "-")
        code, text = self.install("--prefix", prefix)
        self.assertEqual(code, 0, text)
        line = re.search(r"is not in PATH: (.*)", text)[1]
        self.assertEqual(run("sh", "-c", line + "; command -v nvsharectl").strip(), str(prefix / "bin/nvsharectl"))

    def test_where_it_cannot_write_it_says_what_to_do(self):
        prefix = self.folder / "opt"
        nobody, root = self.stand_in("id", "echo 1234"), "another folder: --prefix DIR"
        self.assertEqual(self.install("--prefix", prefix)[0], 0)
        (prefix / "share/nvshare/installed-files.new").mkdir()
        code, text = self.install("--prefix", prefix)
        self.assertEqual(code, 1, text)
        self.assertRegex(text, rf"^install.sh: cannot write {prefix}/share/nvshare/installed-files.new \(.*\); ")
        (self.folder / "home").write_text("no folder")
        self.assertIn(root, self.install("--user", PATH=nobody)[1])
        self.assertIn("run it as root, or with --user", self.install("--prefix", self.folder / "home", PATH=nobody)[1])

    def test_a_slash_more_is_the_same_folder(self):
        prefix, units = self.folder / "opt", self.folder / "units"
        units.mkdir()
        self.assertEqual(self.install("--prefix", prefix, NVSHARE_UNIT_DIR=str(units))[0], 0)
        code, text = self.install("--prefix", f"{prefix}//", "--uninstall", NVSHARE_UNIT_DIR=str(units))
        self.assertEqual(code, 0, text)
        self.assertEqual(files_below(units), [], "its service goes, too")

    def test_wrong_uses_are_explained(self):
        for words, answer in ((["--usr"], "accepted: --user"), (["--prefix"], "needs a folder"), (["--prefix", "here"], "not an absolute path"),
                              (["--user", "--uninstall"], "nothing was installed")):
            code, text = self.install(*words)
            self.assertEqual(code, 1, words)
            self.assertIn(answer, text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--plugin", action="store_true", help="nvshare-device-plugin was built")
    parser.add_argument("--slurm", action="store_true", help="the plugin for Slurm was built")
    ARGUMENTS, rest = parser.parse_known_args()
    ARGUMENTS.build = ARGUMENTS.build.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
