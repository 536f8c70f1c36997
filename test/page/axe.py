"""axe-core, the accessibility check of the page, from npm. MPL-2.0; it is run by the test and is part of nothing that is built or packed."""
import io
import pathlib
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from npm_packages import NotHad, Package  # noqa: E402  pylint: disable=wrong-import-position,unused-import

PACKAGE = Package("axe-core", "4.10.3", "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==")


def fetch():
    return PACKAGE.fetch()


def script(archive=None):
    """The text of axe.min.js. ValueError: what came is another one than the pinned release."""
    with tarfile.open(fileobj=io.BytesIO(PACKAGE.archive(archive))) as packed:
        return packed.extractfile("package/axe.min.js").read().decode()
