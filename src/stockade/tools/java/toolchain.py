"""The harness for one image: compiled, and its classes archived, in a sandbox of the tenant's.

It is a guest's product, made from our own sources alone. It goes into sandboxes of that tenant and
nowhere else; nothing here looks into it.
"""

import json
from dataclasses import dataclass, replace
from typing import Final, Self

from stockade.port import (
    KIB,
    MIB,
    NO_EGRESS,
    Command,
    Execution,
    ExecutionEnvironment,
    ExecutionRequest,
    Limits,
    Outcome,
    SandboxLost,
    SandboxRequest,
    Tier,
    Unavailable,
)
from stockade.tools.answers import plain
from stockade.tools.java import files
from stockade.tools.java.virtual_machine import options

ASM: Final = "java.base/jdk.internal.org.objectweb.asm=ALL-UNNAMED"
HARNESS: Final = "harness.jar"
RUN_ARCHIVE: Final = "run.jsa"
COMPILE_ARCHIVE: Final = "compile.jsa"
BUILD_LIMITS: Final = Limits(
    wall_seconds=120.0,
    cpu_seconds=120.0,
    memory_bytes=512 * MIB,
    disk_bytes=64 * MIB,
    output_bytes=64 * KIB,
    result_bytes=0,
    artefact_bytes=64 * MIB,
    record_bytes=4 * KIB,
)
INSTALL: Final = "Debian has one: apt-get install openjdk-17-jdk-headless"

# An archive that cannot be made is a JVM that starts more slowly, and no failure.
_BUILD: Final = f"""\
set -e
java "$@" --add-exports {ASM} Build.java
rm -- *.java
echo 'public class Tool {{}}' | java "$@" -XX:ArchiveClassesAtExit={COMPILE_ARCHIVE} \
-cp {HARNESS} stockade.tool.Compile 100 100000 10 10 3>/dev/null >/dev/null || :
rm -f tool.jar
echo '{{}}' | java "$@" -XX:ArchiveClassesAtExit={RUN_ARCHIVE} -Dstockade.train=true \
-cp {HARNESS} stockade.tool.Run 100 100000 wait 3>/dev/null >/dev/null || :
"""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What a JVM is given beside the tool."""

    tier: Tier | None
    image: str | None
    """Where it was made; an archive of another JVM is not used by one."""
    harness: bytes
    run_archive: bytes | None
    compile_archive: bytes | None

    def made_for(self, execution: Execution) -> bool:
        """Whether an execution ran where it was made."""
        return (self.tier, self.image) == (execution.tier, execution.image)

    def files(self, archive: str) -> dict[str, bytes]:
        """For a sandbox whose JVM uses this archive."""
        content = self.run_archive if archive == RUN_ARCHIVE else self.compile_archive
        return {HARNESS: self.harness} | ({} if content is None else {archive: content})

    def packed(self) -> bytes:
        """For a store."""
        parts = (self.harness, self.run_archive or b"", self.compile_archive or b"")
        note = {"tier": self.tier, "image": self.image, "lengths": [len(part) for part in parts]}
        return b"\n".join((json.dumps(note).encode(), b"".join(parts)))

    @classmethod
    def unpacked(cls, content: bytes) -> Self:
        """What ``packed`` gave."""
        head, _, body = content.partition(b"\n")
        note = json.loads(head)
        harness, run, compile_ = note["lengths"]
        return cls(
            None if note["tier"] is None else Tier(note["tier"]),
            note["image"],
            body[:harness],
            body[harness : harness + run] or None,
            body[harness + run : harness + run + compile_] or None,
        )


async def build(environment: ExecutionEnvironment, sandbox: SandboxRequest) -> Toolchain:
    """Raises :class:`Unavailable` where the image has no JDK, :class:`SandboxLost`."""
    execution = await environment.run(
        ExecutionRequest(
            Command(("sh", "-c", _BUILD, "build", *options(BUILD_LIMITS.memory_bytes))),
            files=files.sources(),
            artefacts=(HARNESS, RUN_ARCHIVE, COMPILE_ARCHIVE),
        ),
        replace(sandbox, limits=BUILD_LIMITS, egress=NO_EGRESS, ticket=None),
    )
    if execution.outcome in (Outcome.LOST, Outcome.CANCELLED):
        raise SandboxLost(f"the Java harness was not compiled: {execution.detail}")
    made = {artefact.name: artefact.data for artefact in execution.artefacts}
    if not execution.ok or HARNESS not in made:
        said = plain(" ".join(execution.stderr.text().split())[-300:])
        raise Unavailable(
            f"the image of tier {execution.tier} has no JDK that compiles tools: "
            f"{said or execution.detail}. {INSTALL}"
        )
    return Toolchain(
        execution.tier,
        execution.image,
        made[HARNESS],
        made.get(RUN_ARCHIVE),
        made.get(COMPILE_ARCHIVE),
    )
