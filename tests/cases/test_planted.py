"""What one program of a session leaves for the start of the next."""

import pytest

from stockade.port import Command, ExecutionEnvironment, ExecutionRequest, PythonSource

pytestmark = [
    pytest.mark.plain_user,
    pytest.mark.asyncio(loop_scope="module"),
]

PLANT = """
import os, site, sys
text = "open('/workspace/ran', 'a').write(__name__ + chr(10))\\n"
folders = ['/workspace', '/tmp', site.getusersitepackages(), '/workspace/.local/bin']
for folder in folders:
    os.makedirs(folder, exist_ok=True)
    for name in ('sitecustomize.py', 'usercustomize.py', 'json.py', 'struct.py', 'resource.py',
                 'ctypes.py', 'stockade_guest.py', 'program.py', 'site.py', 'os.py', 'io.py'):
        open(os.path.join(folder, name), 'w').write(text)
    open(os.path.join(folder, 'planted.pth'), 'w').write('import sys; ' + text)
for name in ('.bashrc', '.profile', '.pythonrc.py', 'pyvenv.cfg'):
    open('/workspace/' + name, 'w').write('echo ran >> /workspace/ran\\n')
"""


async def test_nothing_planted_runs_before_the_next_program(real: ExecutionEnvironment) -> None:
    """SECURITY 41: code left in the workspace runs in the trusted start of the next program."""
    async with await real.open_session() as session:
        assert (await session.run(ExecutionRequest(PythonSource(PLANT)))).ok
        for program in (
            PythonSource("import os; print(os.path.exists('/workspace/ran'))"),
            Command(("sh", "-c", "test -e /workspace/ran && echo True || echo False")),
        ):
            execution = await session.run(ExecutionRequest(program))
            assert execution.stdout.text() == "False\n", execution.stderr.text()


async def test_a_hostile_environment_reaches_the_program_only(real: ExecutionEnvironment) -> None:
    """SECURITY 42: a variable of the request runs code in the sandbox's own start."""
    variables = {
        "LD_PRELOAD": "/workspace/evil.so",
        "LD_AUDIT": "/workspace/evil.so",
        "BASH_ENV": "/workspace/evil.sh",
        "ENV": "/workspace/evil.sh",
        "GCONV_PATH": "/workspace",
        "NODE_OPTIONS": "--require /workspace/evil.js",
        "PERL5OPT": "-Mevil",
    }
    request = ExecutionRequest(PythonSource("print('well')"), environment=variables)
    execution = await real.run(request)
    assert execution.stdout.text() == "well\n", execution.stderr.text()
