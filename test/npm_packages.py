"""Packages from npm that tests use: one pinned release each, its archive checked against a hash, kept for the next run. They are part of
nothing that is built or packed."""
import base64
import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

NPM_SECONDS = 90


class NotHad(Exception):
    """Why there is none here: a sentence's end."""


@dataclasses.dataclass(frozen=True)
class Package:
    name: str
    release: str
    sha512: str  # `npm view NAME@RELEASE dist.integrity`

    @property
    def _file_name(self):
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.release}.tgz"

    def kept_at(self):
        cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        return pathlib.Path(cache) / "nvshare-npm" / self._file_name

    def is_right(self, archive):
        """Whether it is the pinned release, whatever it is called and wherever it comes from."""
        return base64.b64encode(hashlib.sha512(archive).digest()).decode() == self.sha512

    def fetch(self):
        npm = shutil.which("npm")
        if not npm:
            raise NotHad("there is no npm to fetch it with")
        with tempfile.TemporaryDirectory(prefix="nvshare-npm") as folder:
            try:
                done = subprocess.run([npm, "pack", "--silent", "--ignore-scripts", f"{self.name}@{self.release}"], cwd=folder, capture_output=True,
                                      text=True, timeout=NPM_SECONDS, stdin=subprocess.DEVNULL, check=False)
            except subprocess.TimeoutExpired as problem:
                raise NotHad(f"npm did not fetch it within {NPM_SECONDS} s") from problem
            archives = list(pathlib.Path(folder).glob("*.tgz"))
            if done.returncode != 0 or len(archives) != 1:
                raise NotHad(f"npm cannot fetch it: {(done.stderr or done.stdout).strip()[-200:] or 'it says nothing'}")
            return archives[0].read_bytes()

    def archive(self, content=None):
        """The archive's bytes, from `content` where that is given. NotHad: it cannot be fetched. ValueError: what came is another one."""
        place = self.kept_at()
        given = content is not None
        if not given and place.is_file():
            content = place.read_bytes()
        if not content or (not given and not self.is_right(content)):  # half written, say
            content = self.fetch()
        if not self.is_right(content):
            raise ValueError(f"{self.name} {self.release} has another SHA-512 than is pinned: {hashlib.sha512(content).hexdigest()}")
        if not given and not place.is_file():
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                part = place.with_name(f"{place.name}.{os.getpid()}")
                part.write_bytes(content)
                part.replace(place)
            except OSError:
                pass  # fetched anew next time
        return content
