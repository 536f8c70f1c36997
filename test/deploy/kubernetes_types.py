"""The fields and types of Kubernetes' objects, as the package kubernetes-models (npm, Apache-2.0) declares them: its declarations are generated
from the OpenAPI documents of a Kubernetes release. What is wrong with an object by them: fields that do not exist, wrong types, missing fields."""
import io
import pathlib
import re
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from npm_packages import NotHad, Package  # noqa: E402  pylint: disable=wrong-import-position,unused-import

PACKAGES = (
    Package("kubernetes-models", "5.1.0", "ym4Kiyr8BzGIWj4f853ytVYES1B8C1BdONRP5zodItPD1o//OEKuTwC5nFV3ZJtFGeMqOFbIYkpunSVXSlHS8g=="),
    Package("@kubernetes-models/apimachinery", "3.0.2",
            "6Vbzr/tinxPBGGdfYjXiV9WPj8PEhyiqGJiWhXrsihK7h6glPj4HKUxZ0YwYXH/5uucm/NVef/xY3vZ4Crj1Fg=="),
)

_COMMENT = re.compile(r"/\*\*.*?\*/", re.S)
_INTERFACE = re.compile(r"export interface (I\w+)(?: extends TypeMeta)? \{\n(.*?)\n\}", re.S)
_FIELD = re.compile(r'^    "((?:[^"\\]|\\.)+)"(\?)?: (.*?);\s*(?=^    "|\Z)', re.S | re.M)
_ALIAS = re.compile(r"export type (I\w+) = (.*?);", re.S)
_NAMES = re.compile(r"export type \{ (I\w+) as (IIo\w+)")
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\w+|[{}\[\]<>|:;()?,])')


class _Parser:
    """One type of a declaration, as nested tuples: ("string",), ("literal", x), ("array", T), ("map", T), ("union", [T]), ("ref", name)."""

    def __init__(self, text):
        self.tokens = _TOKEN.findall(text)
        self.text = text

    def take(self, expected=None):
        token = self.tokens.pop(0) if self.tokens else ""
        if expected is not None and token != expected:
            raise ValueError(f"{expected!r} expected in the type {self.text!r}, not {token!r}")
        return token

    def union(self):
        parts = [self.single()]
        while self.tokens and self.tokens[0] == "|":
            self.take()
            parts.append(self.single())
        return parts[0] if len(parts) == 1 else ("union", parts)

    def single(self):
        token = self.take()
        if token == "(":
            inner = self.union()
            self.take(")")
            return inner
        if token == "{":
            return self.braces()
        if token == "Array":
            self.take("<")
            inner = self.union()
            self.take(">")
            return ("array", inner)
        if token.startswith('"'):
            return ("literal", token[1:-1])
        if token in ("string", "number", "boolean", "any", "unknown", "null", "object"):
            return (token,)
        if token.startswith("I"):
            return ("ref", token)
        raise ValueError(f"{token!r} is not known in the type {self.text!r}")

    def braces(self):
        if self.tokens[0] == "}":
            self.take()
            return ("any",)
        self.take("[")
        for token in ("key", ":", "string", "]", ":"):
            self.take(token)
        inner = self.union()
        if self.tokens[0] == ";":
            self.take()
        self.take("}")
        return ("map", inner)


class Types:
    def __init__(self):
        self.interfaces, self.aliases, self.kinds = {}, {}, {}
        for package in PACKAGES:
            with tarfile.open(fileobj=io.BytesIO(package.archive())) as packed:
                for member in packed:
                    if member.name.endswith(".d.ts"):
                        self._read(packed.extractfile(member).read().decode())

    def _read(self, text):
        text = _COMMENT.sub("", text)
        names = dict(_NAMES.findall(text))
        for short, body in _INTERFACE.findall(text):
            if short not in names:
                continue
            fields = {name: (optional == "", kind) for name, optional, kind in _FIELD.findall(body)}
            self.interfaces[names[short]] = fields
            if "apiVersion" in fields and "kind" in fields:
                version, kind = (fields[name][1].strip('"') for name in ("apiVersion", "kind"))
                self.kinds[version, kind] = names[short]
        for short, meaning in _ALIAS.findall(text):
            if short in names:
                self.aliases[names[short]] = meaning

    def problems(self, document, partial=False):
        """Sentences. `partial`: nothing is asked to be there (patches). KeyError: no such kind is known."""
        found = []
        self._check(document, ("ref", self._type_of(document)), document["kind"], partial, found)
        return found

    def _type_of(self, document):
        of_all = f"IIoK8sApimachineryPkgApisMetaV1{document['kind']}"  # DeleteOptions, which belongs to every version
        return of_all if of_all in self.interfaces else self.kinds[document["apiVersion"], document["kind"]]

    def _check(self, value, kind, where, partial, found):
        what = kind[0]
        if what == "ref":
            self._check_named(value, kind[1], where, partial, found)
        elif what == "array":
            if not isinstance(value, list):
                found.append(f"{where} is no list")
                return
            for index, each in enumerate(value):
                self._check(each, kind[1], f"{where}[{index}]", partial, found)
        elif what == "map":
            if not isinstance(value, dict):
                found.append(f"{where} is no map")
                return
            for key, each in value.items():
                self._check(each, kind[1], f"{where}.{key}", partial, found)
        elif what == "union":
            tries = []
            for each in kind[1]:
                problems = []
                self._check(value, each, where, partial, problems)
                if not problems:
                    return
                tries.append(problems)
            found.append(f"{where} is none of what it may be: {min(tries, key=len)[0]}")
        elif not self._is(value, kind):
            found.append(f"{where} is {value!r}, not {' '.join(kind)}")

    @staticmethod
    def _is(value, kind):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return {
            "string": lambda: isinstance(value, str), "number": lambda: number, "boolean": lambda: isinstance(value, bool),
            "null": lambda: value is None, "object": lambda: isinstance(value, dict), "literal": lambda: value == kind[1],
            "any": lambda: True, "unknown": lambda: True,
        }[kind[0]]()

    def _check_named(self, value, name, where, partial, found):
        if name in self.aliases:
            self._check(value, _Parser(self.aliases[name]).union(), where, partial, found)
            return
        fields = self.interfaces.get(name)
        if fields is None:
            raise ValueError(f"{name} is not declared")
        if not isinstance(value, dict):
            found.append(f"{where} is no object")
            return
        if not fields:  # what others define (RawExtension)
            return
        found += [f"{where}.{field} does not exist" for field in value if field not in fields]
        found += [f"{where}.{field} is missing" for field, (required, _) in fields.items() if required and field not in value and not partial]
        for field, each in value.items():
            if field in fields:
                self._check(each, _Parser(fields[field][1]).union(), f"{where}.{field}", partial, found)
