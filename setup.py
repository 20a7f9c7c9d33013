"""Puts what lies beside src/ into the wheel. All else about the package is in pyproject.toml."""

from pathlib import Path
from shutil import copy2, copytree

from setuptools import setup
from setuptools.command.build_py import build_py


class WithWorkflow(build_py):
    """Copies the workflow into the wheel, as `ffkv/clone/`. An editable install reads the clone itself."""

    def run(self) -> None:
        """Copies the package, then the workflow."""
        super().run()
        if not self.editable_mode:
            clone = Path(self.build_lib, "ffkv", "clone")
            for name in ("workflow", "envs", "profiles"):
                copytree(name, clone / name, dirs_exist_ok=True)
            copy2("Snakefile", clone)


setup(cmdclass={"build_py": WithWorkflow})
