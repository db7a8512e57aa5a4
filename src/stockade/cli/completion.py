"""``stockade completion``."""

import click
from click.shell_completion import ShellComplete, get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash, in ~/.bashrc:                   eval "$(stockade completion bash)"
    zsh, in ~/.zshrc after compinit:      eval "$(stockade completion zsh)"
    fish, in ~/.config/fish/config.fish:  stockade completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root().command
    # The class's own `source` starts a bash to ask for its version: not for printing a script.
    click.echo(ShellComplete.source(kind(root, {}, "stockade", "_STOCKADE_COMPLETE")))
