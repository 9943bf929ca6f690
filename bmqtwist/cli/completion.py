"""`bmq completion`: completion script of a shell, for commands, options and files.

Started by `main.py`. The script calls `bmq` at each completion; `main.LazyGroup.shell_complete` answers it.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from bmqtwist.errors import LocalError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  bmq completion bash > ~/.local/share/bash-completion/completions/bmq
    zsh:   bmq completion zsh > ~/.zfunc/_bmq          (a directory of $fpath)
    fish:  bmq completion fish > ~/.config/fish/completions/bmq.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise LocalError(f"no completion for {shell}")
    root = ctx.find_root()
    name = root.info_name or "bmq"
    variable = f"_{name}_COMPLETE".replace("-", "_").upper()
    click.echo(found(root.command, {}, name, variable).source())
