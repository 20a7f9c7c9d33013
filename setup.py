"""Puts what lies beside src/ into the wheel, and the version into all that is built. All else about the package is in pyproject.toml."""

from pathlib import Path
from shutil import copy2, copytree

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist


class WithWorkflow(build_py):
    """Copies the workflow into the wheel, as `ffkv/clone/`. An editable install reads the clone itself."""

    def run(self) -> None:
        """Copies the package, then the workflow, and writes the version (`ffkv.base.version`)."""
        super().run()
        if not self.editable_mode:
            clone = Path(self.build_lib, "ffkv", "clone")
            for name in ("workflow", "envs", "profiles"):
                copytree(name, clone / name, dirs_exist_ok=True)
            copy2("Snakefile", clone)
            (clone / "docs").mkdir(exist_ok=True)
            for page in Path("docs").glob("*.md"):  # which agents read; containers are built without them
                copy2(page, clone / "docs")
            Path(self.build_lib, "ffkv", "version.txt").write_text(self.distribution.get_version())


class WithVersion(sdist):
    """Writes the version, which the clone has in git alone, into the source distribution."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copies the files, and writes the version."""
        super().make_release_tree(base_dir, files)
        Path(base_dir, "src", "ffkv", "version.txt").write_text(self.distribution.get_version())


setup(cmdclass={"build_py": WithWorkflow, "sdist": WithVersion})
