#!/usr/bin/env python3
"""How large the classes and functions of the product are, and which are larger than a reader can hold in mind.

  tools/sizes.py            the table of what exceeds the bounds
  tools/sizes.py --all      every class with its counts

Bounds: 20 public functions and 30 members a class, 60 lines a function. `tools/lint.py` fails where one is exceeded.

Counted as public functions: each declaration, overloads and static ones too, without constructors, destructors, operators and what is
deleted or defaulted. As members: data of each object, public or not, so no static ones. Nested classes count for themselves. A function
may be longer where the comment right above it says why, with the words `Long because`.
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUNDS = {"public": 20, "members": 30, "lines": 60}
REASON = "Long because"

TOKEN = re.compile(
    r"(?P<blank>\s+)"
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)"
    r"|(?P<preprocessor>^[ \t]*\#(?:\\\n|[^\n])*)"
    r'|(?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^(\s]*)\(.*?\)(?P=delimiter)")'
    r'|(?P<string>"(?:\\.|[^"\\\n])*")'
    r"|(?P<character>(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])*')"
    r"|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<number>\.?\d(?:'?[\w.])*)"
    r"|(?P<mark>::|->|\[\[|\]\]|.)",
    re.DOTALL | re.MULTILINE,
)
ANNOTATION = re.compile(r"^[A-Z][A-Z_]+$")  # GUARDED_BY(mutex_), REQUIRES(mutex_): their parentheses are no parameters


class Token:
    def __init__(self, text, line):
        self.text = text
        self.line = line


def tokens_of(source):
    """The code's tokens without blanks, comments and preprocessor lines; and the lines that hold only comments, with their text."""
    tokens, comments, line = [], {}, 1
    for match in TOKEN.finditer(source):
        text, kind = match[0], match.lastgroup
        if kind == "delimiter":
            kind = "raw"
        if kind == "comment":
            for offset, part in enumerate(text.split("\n")):
                comments[line + offset] = part
        elif kind not in ("blank", "preprocessor"):
            tokens.append(Token('""' if kind in ("raw", "string") else text, line))
        line += text.count("\n")
    code_lines = {token.line for token in tokens}
    return tokens, {number: text for number, text in comments.items() if number not in code_lines}


PAIRS = {"(": ")", "{": "}", "[": "]", "[[": "]]"}


def close_of(tokens, start):
    """Index of what closes the bracket at `start`."""
    ends = []
    for index in range(start, len(tokens)):
        text = tokens[index].text
        if text in PAIRS:
            ends.append(PAIRS[text])
        elif ends and text == ends[-1]:
            ends.pop()
            if not ends:
                return index
        elif ends and text == "]]" and ends[-2:] == ["]", "]"]:  # a[b[0]]
            del ends[-2:]
            if not ends:
                return index
    return len(tokens) - 1


def end_of_arguments(tokens, start):
    """Index of the `>` that closes the `<` at `start`."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += {"<": 1, ">": -1}.get(tokens[index].text, 0)
        if depth == 0:
            return index
    return len(tokens) - 1


def without_template(tokens):
    """The declaration without `template <...>` before it."""
    while len(tokens) > 1 and tokens[0].text == "template":
        tokens = tokens[end_of_arguments(tokens, 1) + 1 :]
    return tokens


def without_brackets(tokens):
    """The declaration at its outermost level: brackets with what is in them become one token, "()" say; annotations, attributes and
    arguments of templates go."""
    flat, index = [], 0
    while index < len(tokens):
        text = tokens[index].text
        if text in PAIRS:
            end = close_of(tokens, index)
            if text == "[[":
                pass
            elif text == "(" and flat and ANNOTATION.match(flat[-1]):
                flat.pop()
            else:
                flat.append(text + PAIRS[text])
            index = end + 1
            continue
        if text == "<" and flat and re.match(r"[A-Za-z_]", flat[-1]) and flat[-1] != "operator":
            index = end_of_arguments(tokens, index) + 1
            continue
        flat.append(text)
        index += 1
    return flat


class Class:
    def __init__(self, path, name, line):
        self.path, self.name, self.line = path, name, line
        self.public, self.private, self.members = 0, 0, 0

    def add(self, declaration, public):
        flat = without_brackets(without_template(declaration))
        if not flat or flat[0] in ("using", "typedef", "friend", "static_assert", "enum", "class", "struct", "union"):
            return
        before = flat[: flat.index("=")] if "=" in flat and "operator" not in flat else flat
        if "()" in before:
            name = flat[flat.index("()") - 1]
            own = self.name.rsplit("::", 1)[-1]
            if "operator" in flat or name == own or "~" in flat or flat[-2:] in (["=", "delete"], ["=", "default"]):
                return
            if public:
                self.public += 1
            else:
                self.private += 1
        elif "static" not in flat and "constexpr" not in flat:
            self.members += 1 + flat.count(",")


class Function:
    def __init__(self, path, name, line, lines, reason):
        self.path, self.name, self.line, self.lines, self.reason = path, name, line, lines, reason


class Reader:
    """Finds the classes and the functions of one source."""

    def __init__(self, path, source):
        self.path = path
        self.tokens, self.comments = tokens_of(source)
        self.classes, self.functions = [], []
        self.scope(0, len(self.tokens), [], None)

    def reason_above(self, line):
        text = []
        while line - 1 in self.comments:
            line -= 1
            text.append(self.comments[line])
        return any(REASON in part for part in text)

    def scope(self, index, end, names, owner):
        """Declarations of a file, a namespace or a class's body."""
        public = owner is None or owner.default_public
        while index < end:
            start = index
            text = self.tokens[index].text
            if owner is not None and text in ("public", "private", "protected") and self.tokens[index + 1].text == ":":
                public = text == "public"
                index += 2
                continue
            if text in (";", "}"):
                index += 1
                continue
            if ANNOTATION.match(text) and self.tokens[index + 1].text == "(":  # a macro that stands for declarations
                index = close_of(self.tokens, index + 1) + 1
                continue
            # To the declaration's end: `;`, or a body.
            body = None
            while index < end:
                text = self.tokens[index].text
                if text == ";":
                    break
                if text == "{":
                    body = index
                    index = close_of(self.tokens, index)
                    follows = self.tokens[index + 1].text if index + 1 < end else ""
                    if self.ends_with_body(start, body):
                        break
                    body = None
                    if follows in (";", ","):
                        index += 1
                        continue
                elif text in PAIRS:
                    index = close_of(self.tokens, index)
                index += 1
            self.declaration(start, body, index, names, owner, public)
            index += 1

    def ends_with_body(self, start, body):
        """Whether the brace at `body` begins the body of a namespace, a type or a function: not an initialiser's."""
        head = without_template(self.tokens[start:body])
        words = [token.text for token in head]
        if not words:
            return False
        if words[0] in ("namespace", "class", "struct", "union", "enum") or words[:2] == ["inline", "namespace"] or words[0] == "extern":
            return True
        flat = without_brackets(head)
        if "()" not in flat or "=" in flat[: flat.index("()")]:
            return False
        after = flat[flat.index("()") + 1 :]
        # A constructor's initialisers: the body is the brace that follows none of their names.
        return not (":" in after and re.match(r"[A-Za-z_>]", flat[-1]) and flat[-1] not in ("const", "noexcept", "override", "final"))

    def declaration(self, start, body, last, names, owner, public):
        tokens = self.tokens[start : last + 1]
        head = without_template(self.tokens[start : body if body is not None else last])
        words = [token.text for token in head]
        if not words:
            return
        kind = words[1] if words[0] == "inline" and len(words) > 1 else words[0]
        if body is not None and (kind == "namespace" or (kind == "extern" and "(" not in words)):
            self.scope(body + 1, last, names, None)
            return
        if body is not None and kind in ("class", "struct", "union"):
            flat = without_brackets(head)
            flat = flat[: flat.index(":")] if ":" in flat else flat
            plain = [word for word in flat[1:] if re.match(r"[A-Za-z_]\w*$", word) and word != "final" and not ANNOTATION.match(word)]
            name = "::".join(plain) if plain else ""
            made = Class(self.path, "::".join([*names, name or "(unnamed)"]), head[0].line)
            made.default_public = kind != "class"
            self.classes.append(made)
            self.scope(body + 1, last, [*names, name or "(unnamed)"], made)
            return  # struct {...} member;: what follows is a declaration, too
        if body is not None and kind == "enum":
            return
        if owner is not None:
            owner.add(head if body is not None else tokens[:-1], public)
        if body is not None:
            flat = without_brackets(head)
            at = flat.index("()")
            first = at - 1
            while first >= 2 and flat[first - 1] in ("::", "~"):
                first -= 2 if flat[first - 1] == "::" else 1
            name = "::".join([*names, "".join(flat[max(first, 0) : at])])
            lines = self.tokens[last].line - self.tokens[start].line + 1
            self.functions.append(Function(self.path, name, self.tokens[start].line, lines, self.reason_above(self.tokens[start].line)))


def read_all(root, paths):
    classes, functions = [], []
    for path in paths:
        reader = Reader(path, (root / path).read_text(encoding="utf-8"))
        classes += reader.classes
        functions += reader.functions
    return classes, functions


def concerned(root, paths):
    """Sources of the product: no tests, nothing generated."""
    import lint

    return [
        path
        for path in paths
        if path.startswith("src/") and path.endswith((".cc", ".h")) and not lint.is_test(path)
        and not lint.is_generated((root / path).read_text(encoding="utf-8"))
    ]


def excesses(classes, functions):
    """{(path, name, what): number} of all that is above its bound."""
    found = {}
    for each in classes:
        for what in ("public", "members"):
            if getattr(each, what) > BOUNDS[what]:
                found[(each.path, each.name, what)] = getattr(each, what)
    for each in functions:
        if each.lines > BOUNDS["lines"] and not each.reason:
            key = (each.path, each.name, "lines")
            found[key] = max(each.lines, found.get(key, 0))
    return found


def problems(root, paths):
    """For tools/lint.py."""
    return complaints(excesses(*read_all(root, concerned(root, paths))))


def complaints(found):
    units = {"public": "public functions", "members": "members", "lines": "lines"}
    bad = []
    for source, name, what in sorted(found):
        hint = f", or a comment above it that begins with '{REASON}'" if what == "lines" else ""
        bad.append(f"{source}: {name} has {found[(source, name, what)]} {units[what]}, at most {BOUNDS[what]}{hint}")
    return bad


def main():
    import lint

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    classes, functions = read_all(ROOT, concerned(ROOT, lint.tracked_files()))
    if arguments.all:
        for each in sorted(classes, key=lambda one: (one.path, one.line)):
            print(f"{each.public:4} public {each.private:4} private {each.members:4} members  {each.path} {each.name}")
        return 0
    found = excesses(classes, functions)
    for key in sorted(found, key=lambda one: (one[2], -found[one])):
        print(f"{found[key]:4} {key[2]:8} {key[0]} {key[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
