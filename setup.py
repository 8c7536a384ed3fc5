"""Build hook: numba's kernels are compiled ahead for baseline CPUs, into files beside the package; see `burnish.ahead`.

Without them everything works, and compiles when it is first used: a hook that fails says so, and no more. The variable
BURNISH_AHEAD=0 leaves it out.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LIMIT = 1800  # seconds


class BuildAhead(build_py):
    """The package's files, and what is compiled from them: beside the sources of an editable installation."""

    def run(self) -> None:
        """Copies the sources, then compiles."""
        super().run()
        if os.environ.get("BURNISH_AHEAD", "1") == "0":
            return
        root = Path(__file__).parent if self.editable_mode else Path(self.build_lib)
        root = root.absolute()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])}
        try:
            command = [sys.executable, "-m", "burnish.ahead"]
            subprocess.run(command, cwd=root, env=environment, check=True, timeout=LIMIT)
        except (OSError, subprocess.SubprocessError) as error:
            self.warn(f"kernels are not compiled ahead, but when they are first used: {error}")


setup(cmdclass={"build_py": BuildAhead})
