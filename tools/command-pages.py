#!/usr/bin/env python3
"""Man page and shell completions of nvsharectl, made from what the program itself says (--help), so that none of its options can be missing.

  tools/command-pages.py PROGRAM FOLDER     writes below FOLDER/share: man/man1, bash-completion, zsh, fish
"""
import gzip
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
        options = []
        for names, text in parts.get("Options", []):
            flags, _, value = names.replace("{false}", "").partition(" ")
            options.append((flags.split(","), value.split(" ")[0] if value else "", text))
        positionals = [(names.split(" ")[0], text) for names, text in parts.get("Positionals", [])]
        commands.append((name, description, options, positionals))
    return commands


def roff(text):
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"))


def man_page(version, commands):
    lines = [f'.TH NVSHARECTL 1 "" "nvshare {version}"', ".SH NAME",
             "nvsharectl, nvshare \\- shares GPUs between unmodified CUDA programs", ".SH SYNOPSIS", ".B nvsharectl", ".I COMMAND", "[options]", ".br",
             ".B nvshare", "[options]", ".I PROGRAM", "[arguments]", ".SH DESCRIPTION", ".B nvshare", "is", ".BR \"nvsharectl run\" .", ".SH COMMANDS"]
    for name, description, options, positionals in commands:
        lines += [".TP", f".B {roff(name)}", roff(description)]
        lines += [".RS"] if options or positionals else []
        for names, text in positionals:
            lines += [".TP", f".I {roff(names)}", roff(text)]
        for flags, value, text in options:
            lines += [".TP", f".B {roff(', '.join(flags))}" + (f" {roff(value)}" if value else ""), roff(text)]
        lines += [".RE"] if options or positionals else []
    lines += [".SH FILES", ".TP", ".I /run/nvshare", "the machine's scheduler", ".TP", ".I /etc/nvshare/scheduler.toml", "its settings", ".SH EXIT STATUS",
              roff("0, or 1 when it could not be done; 125 wrong use. Of run: the program's; 124 --timeout was over, 126 could not be run, 127 there is no such program."),
              ".SH SEE ALSO", "/usr/share/doc/nvshare/docs/user\\-guide.md, nvshare\\-scheduler \\-\\-help"]
    return "\n".join(lines) + "\n"


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


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, share = sys.argv[1], pathlib.Path(sys.argv[2]) / "share"
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    commands = commands_of(program)
    pages = {"bash-completion/completions/nvsharectl": bash(commands),
             "bash-completion/completions/nvshare": '. "${BASH_SOURCE[0]%/*}/nvsharectl"\n',
             "zsh/vendor-completions/_nvsharectl": zsh(commands), "fish/vendor_completions.d/nvsharectl.fish": fish(commands),
             "fish/vendor_completions.d/nvshare.fish": fish_of_short_form(commands)}
    for place, text in pages.items():
        (share / place).parent.mkdir(parents=True, exist_ok=True)
        (share / place).write_text(text)
    for name, text in (("nvsharectl", man_page(version, commands)), ("nvshare", ".so man1/nvsharectl.1\n")):
        manual = share / f"man/man1/{name}.1.gz"
        manual.parent.mkdir(parents=True, exist_ok=True)
        with open(manual, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(text.encode())


if __name__ == "__main__":
    main()
