"""The package's surface is golden: a change of it shows here, in a diff that somebody has to look at.

CHECKPOINT_ENGINE_WRITE_STUBS=1 writes the files anew.
"""
import dataclasses
import inspect
import os
import pathlib
import re
import subprocess
import sys
import types

import checkpoint_engine
import checkpoint_engine.api
import checkpoint_engine.distributed
import checkpoint_engine.ps
import checkpoint_engine.worker
from conftest import ROOT

PUBLIC = (checkpoint_engine, checkpoint_engine.ps, checkpoint_engine.worker, checkpoint_engine.api, checkpoint_engine.distributed)


def compare(found, path):
    if os.environ.get("CHECKPOINT_ENGINE_WRITE_STUBS"):
        path.write_text(found)
    assert found == path.read_text(), f"the surface has changed: see git diff after CHECKPOINT_ENGINE_WRITE_STUBS=1 ({path.name})"


def is_class(value):
    # In Python 3.10 list[int] is one, to inspect.
    return inspect.isclass(value) and not isinstance(value, types.GenericAlias)


def class_lines(name, kind):
    bases = ", ".join(base.__name__ for base in kind.__bases__ if base is not object)
    yield f"class {name}({bases}):" if bases else f"class {name}:"
    body = []
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields") or issubclass(kind, dict):
        body += [f"    {field}: {getattr(annotation, '__forward_arg__', annotation)}"
                 for field, annotation in kind.__dict__.get("__annotations__", {}).items()]
    for member, value in sorted(kind.__dict__.items()):
        if member.startswith("_") and (member != "__init__" or dataclasses.is_dataclass(kind)):
            continue
        if isinstance(value, property):
            body.append(f"    {member}: {inspect.signature(value.fget).return_annotation}")
        elif inspect.isfunction(value):
            body.append(f"    def {member}{inspect.signature(value)}: ...")
    yield from body or ["    ..."]


def surface():
    shown = set()
    for module in PUBLIC:
        yield f"# {module.__name__}"
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if name in shown:
                continue
            shown.add(name)
            if is_class(value):
                yield from class_lines(name, value)
            elif inspect.isfunction(value):
                yield f"def {name}{inspect.signature(value)}: ..."
            else:
                yield f"{name}: {type(value).__name__ if isinstance(value, str) else value}"
        yield ""


def test_the_public_surface_is_the_golden_one():
    compare("\n".join(surface()), pathlib.Path(__file__).parent / "public_api.pyi")


def test_everything_public_says_what_it_is():
    for module in PUBLIC:
        assert module.__doc__
        for name in module.__all__:
            value = getattr(module, name)
            if is_class(value) or inspect.isfunction(value):
                assert value.__doc__, f"{module.__name__}.{name}"


def test_the_stub_of_the_extension_is_the_golden_one(tmp_path):
    written = tmp_path / "_core.pyi"
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "checkpoint_engine._core", "-o", written], check=True,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    # Python 3.12 and newer show the buffer protocol as a method.
    method = re.compile(r'\n    def __buffer__\(self, flags, /\):\n        """\n.*?\n        """\n', re.DOTALL)
    compare(method.sub("", written.read_text()), ROOT / "python" / "checkpoint_engine" / "_core.pyi")
