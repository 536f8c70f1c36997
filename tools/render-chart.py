#!/usr/bin/env python3
"""Renders the Helm chart without helm, for deploy/nvshare.yaml and the tests.

  tools/render-chart.py [--name NAME] [--namespace NAMESPACE] [--values FILE]... [--set PATH=VALUE]... [--set-string PATH=VALUE]... [--output FILE]

As with helm, a later FILE goes over an earlier one, and --set and --set-string over all of them; null takes a value away.

Knows the part of Helm's template language that the chart uses, and refuses the rest by name: fields, if, else, with, range, define, include,
default, eq, quote, int, toYaml, nindent, indent, .Files.Get. Where helm is installed a test compares both. Values are checked against values.schema.json, as
helm does.
"""
import argparse
import copy
import json
import pathlib
import re
import sys

import jsonschema
import yaml

CHART = pathlib.Path(__file__).resolve().parent.parent / "deploy/helm/nvshare"
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|:=|[|(),]|\$[A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*|\.[A-Za-z0-9_.]*|-?[0-9]+|[A-Za-z]+')


class ChartError(Exception):
    pass


def tokens_of(text):
    found = TOKEN.findall(text)
    if "".join(found) != re.sub(r'("(?:[^"\\]|\\.)*")|\s+', lambda match: match.group(1) or "", text):
        raise ChartError(f"cannot read '{{{{ {text} }}}}'")
    return found


def pieces_of(source, name):
    """Text and actions, with the blanks gone that {{- and -}} take."""
    pieces, at, trim_next = [], 0, False
    for match in re.finditer(r"\{\{(-?)(.*?)(-?)\}\}", source, re.S):
        text = source[at:match.start()]
        if trim_next:
            text = text.lstrip()
        if match.group(1):
            text = text.rstrip()
        pieces.append(("text", text))
        content = match.group(2).strip()
        if not content.startswith("/*"):
            pieces.append(("action", content))
        at, trim_next = match.end(), bool(match.group(3))
    rest = source[at:]
    pieces.append(("text", rest.lstrip() if trim_next else rest))
    if "{{" in "".join(text for kind, text in pieces if kind == "text"):
        raise ChartError(f"{name}: an action that does not end")
    return pieces


def tree_of(pieces, name):
    """Nested lists: text, ('value', pipeline), ('if'|'with'|'range'|'define', argument, body, otherwise)."""
    root = []
    stack = [(None, None, root, None)]
    for kind, content in pieces:
        word = content.split(None, 1)[0] if kind == "action" and content else ""
        body = stack[-1][2] if stack[-1][3] is None else stack[-1][3]
        if kind == "text":
            body.append(content)
        elif word in ("if", "with", "range", "define"):
            stack.append((word, content[len(word):].strip(), [], None))
        elif word == "else":
            if content != "else":
                raise ChartError(f"{name}: '{content}' is not known here")
            top = stack.pop()
            stack.append((top[0], top[1], top[2], []))
        elif word == "end":
            if len(stack) == 1:
                raise ChartError(f"{name}: an end too many")
            top = stack.pop()
            body = stack[-1][2] if stack[-1][3] is None else stack[-1][3]
            body.append((top[0], top[1], top[2], top[3] or []))
        else:
            body.append(("value", content))
    if len(stack) != 1:
        raise ChartError(f"{name}: '{stack[-1][0]} {stack[-1][1]}' does not end")
    return root


def text_of(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def to_yaml(value):
    return yaml.safe_dump(value, default_flow_style=False, sort_keys=True).removesuffix("\n...\n").rstrip("\n")


class Renderer:
    def __init__(self, root):
        self.root = root
        self.defined = {}

    def define(self, source, name):
        """Takes a file's definitions; what is left of it can be rendered."""
        rest = []
        for node in tree_of(pieces_of(source, name), name):
            if isinstance(node, tuple) and node[0] == "define":
                self.defined[json.loads(node[1])] = node[2]
            else:
                rest.append(node)
        return rest

    def render(self, nodes, dot, variables=None):
        variables = variables or {}
        out = []
        for node in nodes:
            if isinstance(node, str):
                out.append(node)
            elif node[0] == "value":
                out.append(text_of(self.pipeline(tokens_of(node[1]), dot, variables)))
            else:
                out.append(self.block(node, dot, variables))
        return "".join(out)

    def block(self, node, dot, variables):
        kind, argument, body, otherwise = node
        if kind == "range":
            match = re.fullmatch(r"(\$\w+), (\$\w+) := (.*)", argument)
            if not match:
                raise ChartError(f"'range {argument}': only 'range $name, $value := ...' is known here")
            over = self.pipeline(tokens_of(match.group(3)), dot, variables) or {}
            parts = [self.render(body, over[key], {**variables, match.group(1): key, match.group(2): over[key]}) for key in sorted(over)]
            return "".join(parts) if over else self.render(otherwise, dot, variables)
        value = self.pipeline(tokens_of(argument), dot, variables)
        if value:
            return self.render(body, value if kind == "with" else dot, variables)
        return self.render(otherwise, dot, variables)

    def pipeline(self, tokens, dot, variables):
        commands, command = [], []
        for token in tokens:
            if token == "|":
                commands.append(command)
                command = []
            else:
                command.append(token)
        commands.append(command)
        value = None
        for index, words in enumerate(commands):
            arguments = [self.operand(word, dot, variables) for word in words[1:]] + ([value] if index else [])
            if words[0] == ".Files.Get" and len(arguments) == 1:
                value = (CHART / arguments[0]).read_text(encoding="utf-8")
            elif re.fullmatch(r"[A-Za-z]+", words[0]) and words[0] not in ("true", "false"):
                value = self.call(words[0], arguments)
            elif len(words) == 1 and index == 0:
                value = self.operand(words[0], dot, variables)
            else:
                raise ChartError(f"'{' '.join(words)}' is no command")
        return value

    def operand(self, word, dot, variables):
        if word.startswith('"'):
            return json.loads(word)
        if re.fullmatch(r"-?[0-9]+", word):
            return int(word)
        if word in ("true", "false"):
            return word == "true"
        if word.startswith("$"):
            name, *fields = word.split(".")
            value = self.root if name == "$" else variables[name]
        elif word.startswith("."):
            value, fields = dot, [field for field in word.split(".") if field]
        else:
            raise ChartError(f"'{word}' is not known here")
        for field in fields:
            if not isinstance(value, dict):
                raise ChartError(f"'{word}': there is no {field}")
            value = value.get(field)
        return value

    def call(self, name, arguments):
        if name == "include" and len(arguments) == 2:
            if arguments[0] not in self.defined:
                raise ChartError(f"there is no template '{arguments[0]}'")
            return self.render(self.defined[arguments[0]], arguments[1])
        if name == "default" and len(arguments) == 2:
            return arguments[1] or arguments[0]
        if name == "eq" and len(arguments) == 2:
            return arguments[0] == arguments[1]
        if name == "int" and len(arguments) == 1:
            return str(int(arguments[0]))
        if name == "quote" and len(arguments) == 1:
            # A number of a file of values is a float to helm, and Go writes one of 1,000,000 as 1e+06.
            if isinstance(arguments[0], int) and arguments[0] >= 1_000_000:
                return json.dumps(f"{float(arguments[0]):g}")
            return json.dumps(text_of(arguments[0]), ensure_ascii=False)
        if name == "toYaml" and len(arguments) == 1:
            return to_yaml(arguments[0])
        if name in ("nindent", "indent") and len(arguments) == 2:
            blanks = " " * arguments[0]
            return ("\n" if name == "nindent" else "") + blanks + text_of(arguments[1]).replace("\n", "\n" + blanks)
        raise ChartError(f"'{name}' with {len(arguments)} arguments is not known here")


def merge(base, over, takes_away=False):
    """`takes_away`: null over a value takes it away, as in helm where users' values meet the chart's."""
    for key, value in over.items():
        if value is None and takes_away:
            base.pop(key, None)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            merge(base[key], value, takes_away)
        else:
            base[key] = value
    return base


def renderer_of(values, name, namespace, chart):
    merged = merge(yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")), copy.deepcopy(values or {}), takes_away=True)
    jsonschema.Draft7Validator(json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))).validate(merged)
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    root = {
        "Values": merged,
        "Chart": {"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
        "Release": {"Name": name, "Namespace": namespace, "Service": "Helm"},
    }
    renderer = Renderer(root)
    files = sorted((chart / "templates").iterdir())
    return renderer, {file.name: renderer.define(file.read_text(encoding="utf-8"), file.name) for file in files}, root


def render(values=None, name="nvshare", namespace="nvshare", chart=CHART):
    """The chart's manifests as one text. `values` go over values.yaml."""
    renderer, bodies, root = renderer_of(values, name, namespace, chart)
    # What others need comes first, so that the file can be applied as it stands.
    order = ["namespace.yaml", "rbac.yaml", "dra.yaml", "daemonset.yaml", "metrics.yaml", "networkpolicy.yaml"]
    missing = set(bodies) - set(order) - {"_helpers.tpl", "NOTES.txt"}
    if missing:
        raise ChartError(f"{sorted(missing)[0]} has no place in the order of files")
    texts = [renderer.render(bodies[file], root).strip("\n") for file in order]
    renderer.render(bodies["NOTES.txt"], root)
    return "\n---\n".join(text for text in texts if text.strip()) + "\n"


def notes(values=None, name="nvshare", namespace="nvshare"):
    """What helm says after it has installed the chart."""
    renderer, bodies, root = renderer_of(values, name, namespace, CHART)
    return renderer.render(bodies["NOTES.txt"], root)


def refusal_of(problem):
    """A value that the schema refuses: where, what, and what is accepted."""
    where = "/".join(str(part) for part in problem.absolute_path)
    accepted = problem.schema.get("description")
    if not accepted and problem.validator == "additionalProperties":
        accepted = ", ".join(sorted(problem.schema.get("properties", {})))
    if not accepted and problem.validator == "type" and problem.validator_value == "string":
        accepted = "a text, in quotes (on the command line --set-string)"
    said = re.sub(r" (does not match '|should not be valid under |is not allowed for ).*$", " is refused", problem.message) if accepted else problem.message
    return f"{where + ': ' if where else ''}{said}{'; accepted: ' + accepted if accepted else ''}"


def text_value_of(text):
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise argparse.ArgumentTypeError(f"'{text}' is not PATH=VALUE")
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def value_of(text):
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise argparse.ArgumentTypeError(f"'{text}' is not PATH=VALUE")
    # As helm --set takes them: what YAML 1.1 has besides (on, off, yes, 1.5, dates) is text.
    words = {"true": True, "false": False, "null": None}
    nested = words[value] if value in words else int(value) if re.fullmatch(r"0|-?[1-9][0-9]*", value) else value
    for key in reversed(path.split(".")):
        nested = {key: nested}
    return nested


def values_in(file):
    """What a file of values says; errors name it."""
    try:
        values = yaml.safe_load(pathlib.Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise argparse.ArgumentTypeError(f"{file}: {problem}") from problem
    if values is not None and not isinstance(values, dict):
        raise argparse.ArgumentTypeError(f"{file}: it is no mapping of names to values")
    return values or {}


def name_of(text):
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"'{text}' is no name in Kubernetes; accepted: small letters, digits and '-', up to 63, no '-' at the ends")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="nvshare", type=name_of)
    parser.add_argument("--namespace", default="nvshare", type=name_of)
    parser.add_argument("--values", "-f", action="append", default=[], type=values_in, metavar="FILE")
    parser.add_argument("--set", action="append", default=[], type=value_of, metavar="PATH=VALUE")
    parser.add_argument("--set-string", action="append", default=[], type=text_value_of, metavar="PATH=VALUE", dest="set")
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    values = {}
    for one in arguments.values + arguments.set:
        merge(values, one)
    try:
        text = render(values, arguments.name, arguments.namespace)
    except jsonschema.ValidationError as problem:
        sys.exit(f"render-chart: {refusal_of(problem)}")
    except ChartError as problem:
        sys.exit(f"render-chart: {problem}")
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
