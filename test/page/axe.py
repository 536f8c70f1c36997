"""axe-core, the accessibility check of the page, from npm: one pinned release, its archive checked against a hash that stands here, kept for
the next run. MPL-2.0; it is run by the test and is part of nothing that is built or packed."""
import base64
import hashlib
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

RELEASE = "4.10.3"
# `npm view axe-core@RELEASE dist.integrity`
SHA512 = "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg=="
NPM_SECONDS = 90
NAME = "nvshare-axe-core"


class NotHad(Exception):
    """Why there is none here: a sentence's end."""


def kept_at():
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / NAME / f"axe-core-{RELEASE}.tgz"


def is_right(archive):
    """Whether it is the pinned release, whatever it is called and wherever it comes from."""
    return base64.b64encode(hashlib.sha512(archive).digest()).decode() == SHA512


def fetch():
    npm = shutil.which("npm")
    if not npm:
        raise NotHad("there is no npm to fetch it with")
    with tempfile.TemporaryDirectory(prefix=NAME) as folder:
        try:
            done = subprocess.run([npm, "pack", "--silent", "--ignore-scripts", f"axe-core@{RELEASE}"], cwd=folder, capture_output=True, text=True,
                                  timeout=NPM_SECONDS, stdin=subprocess.DEVNULL, check=False)
        except subprocess.TimeoutExpired as problem:
            raise NotHad(f"npm did not fetch it within {NPM_SECONDS} s") from problem
        archives = list(pathlib.Path(folder).glob("*.tgz"))
        if done.returncode != 0 or len(archives) != 1:
            raise NotHad(f"npm cannot fetch it: {(done.stderr or done.stdout).strip()[-200:] or 'it says nothing'}")
        return archives[0].read_bytes()


def script(archive=None):
    """The text of axe.min.js. ValueError: what came is another one than the pinned release."""
    place = kept_at()
    content = archive or (place.read_bytes() if place.is_file() else b"")
    if not content or (archive is None and not is_right(content)):  # half written, say
        content = fetch()
    if not is_right(content):
        raise ValueError(f"axe-core {RELEASE} has another SHA-512 than test/page/axe.py says: {hashlib.sha512(content).hexdigest()}")
    if archive is None and not place.is_file():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            part = place.with_name(f"{place.name}.{os.getpid()}")
            part.write_bytes(content)
            part.replace(place)
        except OSError:
            pass  # fetched anew next time
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        with tarfile.open(fileobj=file) as packed:
            return packed.extractfile("package/axe.min.js").read().decode()
