#!/usr/bin/env python3
"""Man pages of the programs, and shell completions of nvsharectl, made from what the programs themselves say (--help), so that no option can be missing.

  tools/command-pages.py FOLDER PROGRAM...     writes below FOLDER/share: man, and of nvsharectl bash-completion, zsh, fish
"""
import gzip
import importlib.util
import pathlib
import re
import subprocess
import sys

# Commands whose first argument is a tenant's name, completed from what the scheduler knows.
TENANT_COMMANDS = ["set", "pause", "resume", "release", "kill"]
DESCRIPTIONS_AT = 30
SET_WORDS = "core= ceiling= memory= priority= paused= sharing="
# Options of `run` whose value is one.
TENANT_OPTIONS = ["--after"]
SIGNALS = "TERM INT HUP QUIT KILL USR1 USR2 STOP CONT"
# A line for each. Names come from programs of others: a shell must not read them as its own language. One with a quote or a backslash is not
# offered; its number can be typed.
TENANTS = r"""nvsharectl status --json 2>/dev/null | grep -oE '"id":[0-9]+,"name":"[^"\]+"' | cut -d'"' -f6"""


def help_of(program, *words):
    return subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True, timeout=20).stdout


def sections(text):
    """{"": what comes first, "Options": [(names, description), ...], ...} of CLI11's help."""
    found, name = {"": []}, ""
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][A-Za-z ]*:", line):
            name = line[:-1]
            found[name] = []
        elif name == "":
            found[""].append(line)
        elif line.startswith("   ") and found[name]:  # what did not fit beside the name
            names, description = found[name][-1]
            found[name][-1] = (names, (description + " " + line.strip()).strip())
        elif line.startswith("  "):  # CLI11 begins descriptions in this column, in a line of their own where the name is longer
            name_there = line[:DESCRIPTIONS_AT]
            beside = len(line) > DESCRIPTIONS_AT and name_there[-1] == " " and name_there.count("[") == name_there.count("]")
            found[name].append((line[:DESCRIPTIONS_AT].strip(), line[DESCRIPTIONS_AT:]) if beside else (line.strip(), ""))
    return found


def commands_of(program):
    """[(name, description, [(option names, value or "", description)], [(positional, description)])]"""
    commands = []
    for name, description in sections(help_of(program))["Subcommands"]:
        parts = sections(help_of(program, name))
        options = options_of(parts)
        positionals = [(names.split(" ")[0], text) for names, text in parts.get("Positionals", [])]
        commands.append((name, description, options, positionals))
    return commands


def roff(text):
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"))


def exit_status(program):
    """[(code, meaning)] of the rows of docs/reference/exit-codes.md that are a program's, or one of its commands'."""
    spec = importlib.util.spec_from_file_location("reference", pathlib.Path(__file__).resolve().with_name("reference.py"))
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    found = []
    for code, programs, meaning in reference.exit_code_rows():
        of = [name for name in programs.split(", ") if name == "all" or name.split(" ")[0] == program]
        if of:
            command = of[0].removeprefix(program).strip() if of[0] != "all" else ""
            found.append((code, (f"{command}: " if command else "") + meaning.replace("`", "")))
    return found


def options_of(parts):
    """[(names, value or "", description)]"""
    found = []
    for names, text in parts.get("Options", []):
        flags, _, value = names.replace("{false}", "").partition(" ")
        found.append((flags.split(","), re.split("[: ]", value)[0], text))
    return found


def option_lines(options):
    lines = []
    for flags, value, text in options:
        lines += [".TP", f".B {roff(', '.join(flags))}" + (f" {roff(value)}" if value else ""), roff(text)]
    return lines


def end_of_page(program, see_also):
    lines = [".SH EXIT STATUS"]
    for code, meaning in exit_status(program):
        lines += [".TP", f".B {roff(code)}", roff(meaning)]
    return lines + [".SH SEE ALSO", ", ".join(see_also)]


FILES = [".SH FILES", ".TP", ".I /run/nvshare", "the machine's scheduler", ".TP", ".I /etc/nvshare/scheduler.toml", "its settings"]


def man_page(version, options, commands):
    lines = [f'.TH NVSHARECTL 1 "" "nvshare {version}"', ".SH NAME",
             "nvsharectl, nvshare \\- shares GPUs between unmodified CUDA programs", ".SH SYNOPSIS", ".B nvsharectl", ".I COMMAND", "[options]", ".br",
             ".B nvshare", "[options]", ".I PROGRAM", "[arguments]", ".SH DESCRIPTION", ".B nvshare", "is", ".BR \"nvsharectl run\" .", ".SH OPTIONS", *option_lines(options), ".SH COMMANDS"]
    for name, description, options, positionals in commands:
        lines += [".TP", f".B {roff(name)}", roff(description)]
        lines += [".RS"] if options or positionals else []
        for names, text in positionals:
            lines += [".TP", f".I {roff(names)}", roff(text)]
        lines += option_lines(options)
        lines += [".RE"] if options or positionals else []
    lines += FILES + end_of_page("nvsharectl", [".BR nvshare\\-scheduler (8)", "/usr/share/doc/nvshare/docs/user\\-guide.md"])
    return "\n".join(lines) + "\n"


# Of programs without commands: the section of the manual, what the page lists below FILES, and where more is said.
PAGES = {
    "nvshare-scheduler": (8, FILES, ["nvsharectl(1)", "/usr/share/doc/nvshare/docs/user-guide.md"]),
    "nvshare-device-plugin": (8, [], ["nvshare-scheduler(8)", "/usr/share/doc/nvshare-kubernetes/kubernetes.md"]),
    "nvshare-dra-driver": (8, [], ["nvshare-scheduler(8)", "/usr/share/doc/nvshare-kubernetes/kubernetes-dra.md"]),
    "nvshare-demo-job": (1, [], ["nvsharectl(1)"]),
}


def page_of_program(name, version, text):
    """From --help: a first line that says what it is for, what else there is to say, and options."""
    section, files, see_also = PAGES[name]
    parts = sections(text)
    said = [line for line in parts[""] if line and not line.startswith("Usage:")]
    lines = [f'.TH {name.upper()} {section} "" "nvshare {version}"', ".SH NAME", roff(f"{name} - {said[0][0].lower() + said[0][1:].rstrip('.')}"),
             ".SH SYNOPSIS", f".B {roff(name)}", "[options]", ".SH DESCRIPTION", *(roff(line) for line in said), ".SH OPTIONS"]
    lines += option_lines(options_of(parts))
    return "\n".join(lines + files + end_of_page(name, [roff(each) for each in see_also])) + "\n"


def bash(commands):
    cases, values = [], []
    for name, _, options, _ in commands:
        words = " ".join(flag for flags, _, _ in options for flag in flags)
        names = "first" if name in TENANT_COMMANDS else ""
        if name == "set":
            cases.append(f'    set) words="{words}"; if [ "$COMP_CWORD" -eq 2 ]; then names=yes; else words+=" {SET_WORDS}"; fi ;;')
        elif names:
            cases.append(f'    {name}) words="{words}"; if [ "$COMP_CWORD" -eq 2 ]; then names=yes; fi ;;')
        else:
            cases.append(f'    {name}) words="{words}" ;;')
        for flags, value, _ in options:
            patterns = " | ".join(f'"{name} {flag}"' for flag in flags)
            if flags[0] in TENANT_OPTIONS:
                values.append(f"    {patterns}) words="" names=yes ;;")
            elif "--signal" in flags:
                values.append(f'    {patterns}) words="{SIGNALS}" names="" ;;')
            elif value:
                values.append(f"    {patterns}) return ;;  # a file, or what only its user knows")
    commands_named = " ".join(name for name, *_ in commands)
    return f"""# bash completion of nvsharectl and nvshare; made by tools/command-pages.py
_nvsharectl_names() {{
  {TENANTS}
}}
_nvsharectl() {{
  local words="" names="" name
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "{commands_named} --help --version" -- "$2")
    return
  fi
  case " ${{COMP_WORDS[*]:2:COMP_CWORD-2}} " in *" -- "*) return ;; esac  # of another program
  case "${{COMP_WORDS[1]}}" in
{chr(10).join(cases)}
  esac
  case "${{COMP_WORDS[1]}} $3" in
{chr(10).join(values)}
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$2")
  [ -n "$names" ] || return
  while IFS= read -r name; do
    name=$(printf %q "$name")  # as it has to be typed
    case "$name" in "$2"*) COMPREPLY+=("$name") ;; esac
  done < <(_nvsharectl_names)
}}
_nvshare() {{  # the same as nvsharectl run
  COMP_WORDS=(nvsharectl run "${{COMP_WORDS[@]:1}}") COMP_CWORD=$((COMP_CWORD + 1))
  _nvsharectl nvsharectl "$2" "$3"
  [ "$COMP_CWORD" -gt 2 ] || [ "${{2#-}}" != "$2" ] || mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -c -- "$2")
}}
complete -o default -F _nvsharectl nvsharectl
complete -o default -F _nvshare nvshare
"""


def in_zsh(text):
    return text.replace("'", "'\\''").replace("[", "(").replace("]", ")").replace(":", " -")


def in_fish(text):
    return text.replace("\\", "\\\\").replace("'", "\\'")


def zsh(commands):
    described = "\n".join(f"    '{name}:{in_zsh(text)}'" for name, text, _, _ in commands)
    cases = []
    for name, _, options, _ in commands:
        def action(flag, value):
            if flag in TENANT_OPTIONS:
                return ":tenant:_nvsharectl_names"
            return f":signal:({SIGNALS})" if flag in ("--signal", "-s") and name == "kill" else ":value:_files" if value else ""
        rows = [f"'{flag}[{in_zsh(text)}]{action(flag, value)}'" for flags, value, text in options for flag in flags]
        if name in TENANT_COMMANDS:
            rows.append("'1:tenant:_nvsharectl_names'")
        if name == "run":  # what follows is another program's command line
            rows += ["'(-)1:program:_command_names -e'", "'*::argument:_normal'"]
        elif name == "set":
            rows.append(f"'*:limit:compadd -S \"\" {SET_WORDS}'")
        else:
            rows.append("'*:argument:_files'")
        cases.append(f"    {name}) _arguments -S " + " ".join(rows) + " ;;")
    return f"""#compdef nvsharectl nvshare
# made by tools/command-pages.py
_nvsharectl_names() {{
  local -a names=(${{(f)"$({TENANTS})"}})
  compadd -a names
}}
local -a commands=(
{described}
)
if [[ $service == nvshare ]]; then  # the same as nvsharectl run
  words=(nvsharectl run "${{(@)words[2,-1]}}")
  (( CURRENT++ ))
fi
if (( CURRENT == 2 )); then
  _describe command commands
else
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{chr(10).join(cases)}
  esac
fi
"""


def fish(commands):
    tenants = f"({TENANTS})".replace("\\", "\\\\").replace("'", "\\'")
    lines = ["# made by tools/command-pages.py"]
    for name, description, options, _ in commands:
        lines.append(f"complete -c nvsharectl -n __fish_use_subcommand -f -a {name} -d '{in_fish(description)}'")
        for flags, value, text in options:
            kinds = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in flags)
            kinds += f" -x -a '{tenants}'" if flags[0] in TENANT_OPTIONS else f" -x -a '{SIGNALS}'" if "--signal" in flags else " -r" if value else ""
            lines.append(f"complete -c nvsharectl -n '__fish_seen_subcommand_from {name}' {kinds} -d '{in_fish(text)}'")
        first = f"__fish_seen_subcommand_from {name}; and test (count (commandline -opc)) -eq 2"
        if name in TENANT_COMMANDS:
            lines.append(f"complete -c nvsharectl -n '{first}' -f -a '{tenants}'")
        if name == "set":
            lines.append(f"complete -c nvsharectl -n '{first.replace('-eq', '-gt')}' -f -a '{SET_WORDS}'")
        elif name in TENANT_COMMANDS:
            lines.append(f"complete -c nvsharectl -n '__fish_seen_subcommand_from {name}' -f")
    return "\n".join(lines) + "\n"


# Shells look for completions by the command's name.
def fish_of_short_form(commands):
    options = next(options for name, _, options, _ in commands if name == "run")
    rows = [line.replace("-c nvsharectl -n '__fish_seen_subcommand_from run'", "-c nvshare") for line in fish([("run", "", options, [])]).splitlines()
            if "__fish_seen_subcommand_from run'" in line]
    return "\n".join(["# made by tools/command-pages.py", *rows, "complete -c nvshare -a '(__fish_complete_subcommand)'"]) + "\n"


def pages_of_nvsharectl(program, version):
    """{place below share: text}"""
    commands = commands_of(program)
    return {"bash-completion/completions/nvsharectl": bash(commands),
            "bash-completion/completions/nvshare": '. "${BASH_SOURCE[0]%/*}/nvsharectl"\n',
            "zsh/vendor-completions/_nvsharectl": zsh(commands), "fish/vendor_completions.d/nvsharectl.fish": fish(commands),
            "fish/vendor_completions.d/nvshare.fish": fish_of_short_form(commands),
            "man/man1/nvsharectl.1": man_page(version, options_of(sections(help_of(program))), commands), "man/man1/nvshare.1": ".so man1/nvsharectl.1\n"}


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    share, made = pathlib.Path(sys.argv[1]) / "share", {}
    for program in map(pathlib.Path, sys.argv[2:]):
        version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True, timeout=20).stdout.split()[-1]
        if program.name == "nvsharectl":
            made |= pages_of_nvsharectl(program, version)
        elif program.name in PAGES:
            section = PAGES[program.name][0]
            made[f"man/man{section}/{program.name}.{section}"] = page_of_program(program.name, version, help_of(program))
        else:
            sys.exit(f"{program}: PAGES of tools/command-pages.py does not say which section of the manual it belongs to")
    for place, text in made.items():
        file = share / (place + ".gz" if place.startswith("man/") else place)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(text.encode(), 9, mtime=0) if file.suffix == ".gz" else text.encode())


if __name__ == "__main__":
    main()
