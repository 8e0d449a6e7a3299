"""`tgpu completions`: scripts for bash, zsh and fish, made from the commands themselves."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpu_scheduler.cli.main import COMMANDS, PROGRAM, parser_for

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = (PROGRAM, "gpu-scheduler", "gpu-cli")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("shell", choices=SHELLS, help='for bash: eval "$(tgpu completions bash)"')


def run(args: Namespace) -> int:
    """Print the script."""
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](), end="")
    return 0


def words_of(name: str) -> list[tuple[str, str]]:
    """The options and fixed words of a command, with what they mean."""
    _, parser = parser_for(name, COMMANDS[name])
    found = []
    for action in parser._actions:
        about = (action.help or "").replace("%%", "%")
        found += [(option, about) for option in action.option_strings]
        if action.choices and not action.option_strings:
            found += [(str(choice), about) for choice in action.choices]
    return found


def _bash() -> str:
    cases = [
        f'    {name}) words="{" ".join(word for word, _ in words_of(name))}" ;;'
        for name in COMMANDS
    ]
    return "\n".join(
        [
            "_tgpu() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" words=""',
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f'    words="{" ".join(COMMANDS)}"',
            '  else case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac; fi",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            f"complete -o default -F _tgpu {' '.join(PROGRAMS)}",
            "",
        ]
    )


def _zsh() -> str:
    commands = [(name, row.help) for name, row in COMMANDS.items()]
    cases = [f"      {name}) found=({_zsh_words(words_of(name))}) ;;" for name in COMMANDS]
    return "\n".join(
        [
            f"#compdef {' '.join(PROGRAMS)}",
            "_tgpu() {",
            "  local -a found",
            "  if (( CURRENT == 2 )); then",
            f"    found=({_zsh_words(commands)})",
            "  else",
            '    case "$words[2]" in',
            *cases,
            "    esac",
            "    _files",
            "  fi",
            "  _describe word found",
            "}",
            f"compdef _tgpu {' '.join(PROGRAMS)}",
            "",
        ]
    )


def _zsh_words(words: list[tuple[str, str]]) -> str:
    # A colon ends the word.
    return " ".join(f"'{word}:{_quoted(about).replace(':', ' ')}'" for word, about in words)


def _fish() -> str:
    lines = []
    for program in PROGRAMS:
        lines.append(f"complete -c {program} -f -n __fish_use_subcommand")
        for name, row in COMMANDS.items():
            lines.append(
                f"complete -c {program} -n __fish_use_subcommand -a {name} -d '{_quoted(row.help)}'"
            )
            inside = f"'__fish_seen_subcommand_from {name}'"
            for word, about in words_of(name):
                if word.startswith("--"):
                    option = f"-l {word[2:]}"
                elif word.startswith("-"):
                    option = f"-s {word[1:]}"
                else:
                    option = f"-a {word}"
                lines.append(f"complete -c {program} -n {inside} {option} -d '{_quoted(about)}'")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return text.replace("\\", "").replace("'", "")
