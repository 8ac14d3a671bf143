"""A wheel has the hot modules compiled where that is possible; elsewhere the same files run as they are."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_spec = importlib.util.spec_from_file_location(
    "dispatcher_compile", Path(__file__).parent / "scripts/compile.py"
)
assert _spec is not None
assert _spec.loader is not None
compiling = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compiling)


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to the wheel. `HATCH_BUILD_NO_HOOKS=true` makes one without them."""

    def dependencies(self) -> list[str]:
        return [] if compiling.obstacle() is not None else list(compiling.REQUIREMENTS)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        problem = compiling.obstacle()
        if problem is not None:
            self.app.display_warning(f"The modules are not compiled: {problem}.")
            return
        folder = self._folder = Path(tempfile.mkdtemp(prefix="dispatcher-wheel-"))
        shutil.copytree(Path(self.root) / "dispatcher", folder / "dispatcher")
        for path in compiling.compile_tree(folder):
            build_data["force_include"][str(path)] = path.relative_to(folder).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder)
