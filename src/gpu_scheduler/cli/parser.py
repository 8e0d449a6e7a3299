"""An argparse parser that is quick to build and prints clear errors.

The words of the command line come in; a Namespace goes out, or SystemExit with code 2 and one line
on stderr that says what is wrong and how to fix it.
"""

from __future__ import annotations

import argparse
import re
import sys
from argparse import Action, ArgumentParser, HelpFormatter, Namespace, RawDescriptionHelpFormatter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import _ArgumentGroup
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

EXIT_USAGE = 2
_PLAIN_WIDTH = 80
_BELOW_ZERO = re.compile(r"-\.?[0-9]")
OTHER_NAMES = {
    **dict.fromkeys(("--gres", "--gpus-per-node", "--gpus-per-task", "--num-gpus"), "--gpus"),
    **dict.fromkeys(("--nodes", "--ntasks", "--num-nodes", "--replicas"), "--members"),
    **dict.fromkeys(("--account", "--partition", "--queue"), "--tenant"),
    **dict.fromkeys(("--after", "--depends", "--depends-on"), "--dependency"),
    **dict.fromkeys(("--mail-type", "--mail-user"), "--notify"),
    **dict.fromkeys(("--workdir", "--cwd", "--dir"), "--chdir"),
    **dict.fromkeys(("--timeout", "--time-limit", "--max-runtime"), "--time"),
    **dict.fromkeys(("--constraint", "--labels"), "--label"),
    **dict.fromkeys(("--gpu-type", "--model"), "--gpu-model"),
    "--qos": "--priority",
    "--lines": "--tail",
    **dict.fromkeys(("--why", "--comment", "--message"), "--reason"),
    **dict.fromkeys(("--states", "--status"), "--state"),
    **dict.fromkeys(("--format", "--fields", "--output-format"), "--columns"),
    **dict.fromkeys(("--all-users", "--all"), "--everybody"),
    **dict.fromkeys(("--starttime", "--start-time", "-S"), "--since"),
    **dict.fromkeys(("--endtime", "--end-time", "-E"), "--until"),
    "--test-only": "--dry-run",
    "-o": "--columns",
}
"""Options of other schedulers, and the option of tgpu to suggest instead."""
ADVICE = {
    "--me": "'tgpu list' and 'tgpu history' show your own jobs; -A shows all",
    "--start": "'tgpu explain' shows when a job should start",
    "--wrap": "write the command after '--', as in 'tgpu submit -G 1 -- python train.py'",
    **dict.fromkeys(
        ("--no-wait", "--detach", "--background"), "'tgpu submit' does not wait for the job"
    ),
    "--retry": "'tgpu retry JOB' and 'tgpu sweep retry SWEEP' run failed jobs again",
    **{
        f"--{state}": f"write --state {state}"
        for state in ("pending", "running", "completed", "failed", "cancelled", "ended", "active")
    },
}
"""Options that people try, and what to do instead."""

# argparse would load translations of its messages, which are not shown.
vars(argparse)["_"] = str


class Parser(ArgumentParser):
    """The parser of one command. Errors start with `place`, such as a file and line."""

    place = ""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", RawDescriptionHelpFormatter)
        self._is_printing_help = False
        self._plain_formatter: HelpFormatter | None = None
        super().__init__(allow_abbrev=False, **settings)
        # No option starts with a digit: '-5m' is a value, which its parser rejects.
        self._negative_number_matcher = _BELOW_ZERO

    def read(
        self,
        arguments: Sequence[str],
        *,
        takes_words: bool = False,
        into: Namespace | None = None,
    ) -> Namespace:
        """Parse; with `takes_words`, the words after the options go to `words` unparsed.

        `after_dashes` then says whether `--` came before them.
        """
        words: list[str] | None = None
        if takes_words:
            given = arguments
            arguments, words = self.split(given)
        args, rest = self.parse_known_args(arguments, into)
        if rest and not takes_words and not rest[0].startswith("-"):
            # argparse does not assign optional words that follow an option.
            args, rest = self.parse_known_args(self._words_first(arguments), into)
        if rest:
            self.error(self._unknown(rest[0]))
        if words is not None:
            args.words = words
            args.after_dashes = len(arguments) + len(words) < len(given)
        return args

    def split(self, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
        """The options, and the words after them: those after `--`, or from the first other word."""
        place = 0
        while place < len(arguments):
            word = arguments[place]
            if word == "--":
                return list(arguments[:place]), list(arguments[place + 1 :])
            if not word.startswith("-") or word == "-":
                break
            place += 2 if self._takes_next(word) else 1
        return list(arguments[:place]), list(arguments[place:])

    def own_option(self, words: Sequence[str], given: Namespace) -> str:
        """The first long option (or -G) in the words that was not given, with its value."""
        for place, word in enumerate(words):
            option, equals, _ = word.partition("=")
            action = self._option_string_actions.get(option)
            if word == "--" or action is None or not (option.startswith("--") or option == "-G"):
                continue
            if getattr(given, action.dest, None) in (None, False):
                value = words[place + 1 : place + 2] if _takes_value(action) and not equals else []
                return " ".join([word, *value])
        return ""

    def _words_first(self, arguments: Sequence[str]) -> list[str]:
        """The arguments with all words before the options."""
        words: list[str] = []
        options: list[str] = []
        left = list(arguments)
        while left:
            own, left = self.split(left)
            options += own
            if left:
                words.append(left.pop(0))
        return words + options

    def format_help(self) -> str:
        self._is_printing_help = True
        try:
            return super().format_help()
        finally:
            self._is_printing_help = False

    def error(self, message: str) -> NoReturn:
        where = f"{self.place}: " if self.place else ""
        print(f"{self.prog.split()[0]}: error: {where}{self._reworded(message)}", file=sys.stderr)
        sys.exit(EXIT_USAGE)

    def _get_formatter(self) -> HelpFormatter:
        # argparse makes a formatter for each option, only to check it. Measuring the terminal loads
        # a dozen modules, so only the formatter of the help does that.
        if self._is_printing_help:
            return super()._get_formatter()
        if self._plain_formatter is None:
            self._plain_formatter = HelpFormatter(prog=self.prog, width=_PLAIN_WIDTH)
        return self._plain_formatter

    def _takes_next(self, word: str) -> bool:
        """Whether the value of an option is the next word."""
        if word.startswith("--"):
            action = self._option_string_actions.get(word)
            return action is not None and _takes_value(action)
        for place in range(1, len(word)):
            action = self._option_string_actions.get(f"-{word[place]}")
            if action is None:
                return False
            if _takes_value(action):
                return place == len(word) - 1
        return False

    def _unknown(self, word: str) -> str:
        from difflib import get_close_matches

        if not word.startswith("-"):
            return f"unexpected argument '{word}'; '{self.prog} --help' shows the usage"
        option = word.partition("=")[0]
        # Without the dashes, which would make any two options similar.
        known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
        near = [f"--{name}" for name in get_close_matches(option.removeprefix("--"), known, n=1)]
        if OTHER_NAMES.get(option) in self._option_string_actions:
            near = [OTHER_NAMES[option]]
        advice = f"did you mean '{near[0]}'?" if near else f"'{self.prog} --help' lists the options"
        wanted = ADVICE.get(option, "")
        if wanted and (not wanted.startswith("write --state") or "state" in known):
            advice = wanted
        return f"unknown option '{option}'; {advice}"

    def _reworded(self, message: str) -> str:
        for pattern, words in _REWORDED:
            if match := re.fullmatch(pattern, message, re.DOTALL):
                return words(self, *match.groups())
        return message


class Options:
    """Adds options to a parser, or to a group of its help, in one line each."""

    def __init__(self, target: ArgumentParser | _ArgumentGroup) -> None:
        self._add = target.add_argument

    def value(
        self,
        flags: str,
        reader: Callable[[str], Callable[[str], object]] | None,
        metavar: str,
        about: str,
        **more: Any,
    ) -> None:
        """Add an option with a value: `-G --gpus`.

        `reader("--gpus")` returns the function that parses the value and whose errors name the
        option; without a reader the value is a string.
        """
        names = flags.split()
        if reader is not None:
            more["type"] = reader(next(name for name in names if name.startswith("--")))
        self._add(*names, metavar=metavar, help=about, **more)

    def flag(self, flags: str, about: str, **more: Any) -> None:
        """Add an option without a value."""
        self._add(*flags.split(), action="store_true", help=about, **more)

    def choice(self, flag: str, choices: Sequence[str], about: str, **more: Any) -> None:
        """Add an option with one of these values."""
        self._add(flag, choices=choices, help=about, **more)

    def word(self, name: str, metavar: str, about: str, **more: Any) -> None:
        """Add an argument that is not an option."""
        self._add(name, metavar=metavar, help=about, **more)


def _takes_value(action: Action) -> bool:
    return action.nargs is None or action.nargs not in (0, "?", "*")


def _wrong_choice(_: Parser, name: str, value: str, choices: str) -> str:
    from difflib import get_close_matches

    allowed = re.findall(r"'([^']*)'", choices) or [word.strip() for word in choices.split(",")]
    near = get_close_matches(value.strip("'"), allowed, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{name} is {value}; {hint}expected one of {', '.join(allowed)}"


def _missing(parser: Parser, name: str) -> str:
    """The error for a missing argument, with its choices if it has any."""
    for action in parser._actions:
        if action.choices and name in (action.dest, action.metavar):
            return f"{name} is missing; write one of {', '.join(map(str, action.choices))}"
    return f"{name} is missing; '{parser.prog} --help' shows the usage"


_REWORDED: list[tuple[str, Callable[..., str]]] = [
    (r"argument (\S+): expected (?:one|at least one) argument", lambda _, n: f"{n} needs a value"),
    (r"argument (\S+): ignored explicit argument (.*)", lambda _, n, _v: f"{n} takes no value"),
    (
        r"argument (\S+): not allowed with argument (\S+)",
        lambda _, a, b: f"{a} and {b} cannot be given together; leave one of them out",
    ),
    (r"argument (\S+): invalid choice: (.*?) \(choose from (.*)\)", _wrong_choice),
    (
        r"argument (\S+): invalid int value: (.*)",
        lambda _, n, v: f"{n} is {v}; expected a whole number",
    ),
    (
        r"argument (\S+): invalid float value: (.*)",
        lambda _, n, v: f"{n} is {v}; expected a number",
    ),
    (
        r"the following arguments are required: (.*)",
        lambda parser, names: _missing(parser, names.partition(", ")[0]),
    ),
]
