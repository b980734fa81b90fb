"""`python -m checkpoint_engine --uds PATH`: one rank as a service, by the program that the package brings."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import sysconfig


def program() -> str:
    """The path of the program checkpoint-engine that was installed, or built, with this package."""
    folder = pathlib.Path(__file__).resolve().parents[1]
    beside = [folder / "bin", folder.parent / "bin", pathlib.Path(sysconfig.get_path("scripts"))]
    for candidate in beside:
        path = candidate / "checkpoint-engine"
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("checkpoint-engine")
    if found is None:
        sys.exit("checkpoint-engine: the program is not beside this package; install the package again")
    return found


def main() -> None:
    """Becomes `checkpoint-engine serve` with the arguments given."""
    path = program()
    os.execv(path, [path, "serve", *sys.argv[1:]])


if __name__ == "__main__":
    main()
