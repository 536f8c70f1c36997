"""Commit subjects are at most 72 characters long: those of the commits after BASE, as older ones are what they are."""
import subprocess

BASE = "608e4fb79c98da30e0384ca16063d8ca5b6e65a0"
LENGTH_MAX = 72


def problems(root, base=BASE):
    """(problems, what was looked at, in words). Without git, outside of a repository, in a shallow clone and on a branch that left main before
    BASE there is nothing to look at."""

    def git(*arguments):
        try:
            return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        except FileNotFoundError:
            return None

    known = git("merge-base", "--is-ancestor", base, "HEAD")
    if known is None or known.returncode != 0:
        return [], f"looked at no commit: {base[:7]}, after which subjects are looked at, is not in this history"
    listing = git("log", "--no-merges", "--format=%h %s", f"{base}..HEAD")
    if listing.returncode != 0:
        return [listing.stderr.strip()], "git log failed"
    commits = [line.split(" ", 1) for line in listing.stdout.splitlines()]
    bad = [f"{commit}: a subject of {len(subject)} characters, at most {LENGTH_MAX}: {subject}"
           for commit, subject in commits if len(subject) > LENGTH_MAX]
    return bad, f"{len(commits)} commits looked at"
