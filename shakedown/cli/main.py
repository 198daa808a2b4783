"""The `shakedown` command: its groups, and the one place where errors become messages and exit codes."""

import importlib
import sys
from typing import Any

import click

from shakedown.errors import HarnessError, UsageError
from shakedown.judge.verdict import Verdict

INTERRUPTED = 130
# Each module has `commands`. They are imported when asked for: `shakedown --help` must not wait for all of them.
MODULES = {
    "run": "run",
    "doctor": "doctor",
    "up": "cluster",
    "status": "cluster",
    "down": "cluster",
    "kubectl": "cluster",
    "plan": "plan",
    "simulate": "simulate",
    "lint": "lint",
    "load": "load",
    "loop": "loop",
    "drill": "chaos",
    "recover": "chaos",
    "judge": "report",
    "report": "report",
}


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return None
        module = importlib.import_module(f"shakedown.cli.{MODULES[cmd_name]}")
        commands: dict[str, click.Command] = {command.name or "": command for command in module.commands}
        return commands.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in MODULES]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(90)) for name, command in found if command])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="vllm-shakedown", prog_name="shakedown")
def shakedown() -> None:
    """Decides whether a vLLM deployment on Kubernetes may go to production.

    \b
    Examples:
      shakedown run                       the smoke profile on a cluster that is built here
      shakedown run conformance chaos     two families of scenarios
      shakedown plan --model llama-3-8b --device A100-80
    """


def main(args: list[str] | None = None) -> None:
    """Run the command and exit: 0 held, 1 deviated, 2 unknown, 4 bad usage."""
    sys.exit(_exit_code(args))


def _exit_code(args: list[str] | None) -> int:
    try:
        outcome: Any = shakedown.main(args=args, prog_name="shakedown", standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.UsageError as error:
        error.show()
        return UsageError.EXIT_CODE
    except (click.ClickException, UsageError) as error:
        click.echo(f"shakedown: {error}", err=True)
        return UsageError.EXIT_CODE
    except HarnessError as error:
        click.echo(f"shakedown: {error}", err=True)
        return Verdict.UNKNOWN.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("shakedown: interrupted", err=True)
        return INTERRUPTED


if __name__ == "__main__":
    main()
