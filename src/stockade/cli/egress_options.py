"""``--allow`` and its kin: what a program may reach, and what is said of it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stockade.cli import exit_codes, report
from stockade.cli.failure import Failure
from stockade.cli.options import refusal
from stockade.cli.sizes import format_size
from stockade.port import NO_EGRESS, PROFILES, EgressPolicy, EgressRule, InvalidRequest

if TYPE_CHECKING:
    from stockade.port import DeniedDestination, EgressEvent, EgressUse


def policy_of(
    allowed: tuple[str, ...],
    profiles: tuple[str, ...],
    file: str | None,
    credentials: tuple[str, ...] = (),
    *,
    log: bool,
) -> EgressPolicy:
    """The policy that the options say together. Raises ``click.UsageError``."""
    policy = NO_EGRESS
    try:
        if file is not None:
            from stockade.egress.policy_file import read_policy_file

            policy = read_policy_file(Path(file))
        for name in profiles:
            if name not in PROFILES:
                raise click.UsageError(
                    f"--egress-profile {name!r}: there are {', '.join(sorted(PROFILES))}"
                )
            policy = policy.with_rules(*PROFILES[name])
        policy = policy.with_rules(*map(EgressRule.parse, allowed))
        policy = replace(policy, credentials=(*policy.credentials, *credentials))
        # To see what is denied takes somebody who denies it.
        return policy.watching() if log else policy
    except InvalidRequest as error:
        raise click.UsageError(refusal(error)) from None
    except OSError as error:
        raise Failure(f"--egress-policy {file!r}: {error.strerror}", exit_codes.NO_INPUT) from None


async def print_event(event: "EgressEvent") -> None:
    """One line on standard error, in which nothing steers a terminal."""
    words = [f"egress {event.verdict} {event.destination}"]
    if event.reason:
        words.append(f"({event.reason})")
    if event.verdict == "ended":
        words.append(
            f"{format_size(event.sent_bytes)} sent, {format_size(event.received_bytes)} received"
        )
    if event.detail:
        words.append(f"- {event.detail}")
    report.say(" ".join(words))


def lines_of(use: "EgressUse") -> list[str]:
    """What an execution did on the network, and what it was denied."""
    said = [
        f"egress: {use.connections} connections, {format_size(use.sent_bytes)} sent, "
        f"{format_size(use.received_bytes)} received, {use.denials} denied"
    ]
    said += map(_denial, use.denied)
    said += [
        f"credential {each.credential} used {each.count} times for {each.destination}"
        for each in use.credentials
    ]
    return said


def _denial(each: "DeniedDestination") -> str:
    times = "" if each.count == 1 else f" {each.count} times"
    return f"denied{times}: {each.destination} ({each.reason}): {each.detail}"
