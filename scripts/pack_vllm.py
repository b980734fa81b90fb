#!/usr/bin/env python3
"""Packs vLLM 0.23.0, for scripts/interop_gpu.sh, into one archive of 33 MiB that a machine without network can take
along.

    scripts/pack_vllm.py OUT.tar.xz       needs pip and PyPI; a minute or two, 1.5 GB below the folder for temporary files

For Python 3.12 with torch 2.11 for CUDA 13, transformers, triton and their like, and GPUs of compute capability 9.0
(H100, H200): device code for others is blanked, so that it packs to nothing. Left out: FlashAttention 2, FlashMLA,
DeepGEMM, the front end in Rust; structured output raises ImportError.
"""

import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile

# vLLM first; then what it imports and such a machine lacks.
WHEELS = """
vllm==0.23.0
annotated-types==0.7.0 blake3==1.0.9 cachetools==7.1.4 cbor2==6.1.2 compressed-tensors==0.17.0 distro==1.9.0 fastapi==0.136.3
gguf==0.19.0 humming-kernels==0.1.4 jiter==0.15.0 loguru==0.7.3 msgspec==0.21.1 openai==2.44.0 openai-harmony==0.0.8
partial-json-parser==0.2.1.1.post7 prometheus-fastapi-instrumentator==8.0.2 pybase64==1.4.3 pydantic==2.13.4 pydantic-core==2.46.4
pyelftools==0.33 python-json-logger==4.1.0 pyzmq==27.1.0 setproctitle==1.3.7 sniffio==1.3.1 starlette==1.3.1
typing-inspection==0.4.2 uvicorn==0.49.0 watchfiles==1.2.0
""".split()
GLIBCS = [
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_5_x86_64",
    "manylinux1_x86_64",
]

UNWANTED = re.compile(r"_vllm_fa2_C|^vllm/vllm-rs|third_party/deep_gemm|_flashmla|kv_transfer/.*\.jpg$|\.data/")
WITH_DEVICE_CODE = ["vllm/_C.abi3.so", "vllm/_C_stable_libtorch.abi3.so", "vllm/_moe_C.abi3.so"]
CAPABILITY = 90

# Modules that vLLM imports at its start and needs for nothing that is tried here.
ANY_NAME = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(self, *args, **kwargs):
        raise ImportError(f"{__name__}.{name} was not packed with this vLLM")

    made = globals()[name] = type(name, (), {"__init__": refuse, "__module__": __name__})
    return made
"""
SAGEMAKER = """
def _unchanged(function):
    return function


def _no_decorator(*args, **kwargs):
    return _unchanged


register_ping_handler = register_invocation_handler = _unchanged
stateful_session_manager = inject_adapter_id = register_load_adapter_handler = register_unload_adapter_handler = _no_decorator


def bootstrap(app):
    return app
"""
STAND_INS = {
    "xgrammar/__init__.py": ANY_NAME,
    "xgrammar/structural_tag.py": ANY_NAME,
    "llguidance/__init__.py": ANY_NAME,
    "model_hosting_container_standards/__init__.py": "",
    "model_hosting_container_standards/sagemaker.py": SAGEMAKER,
}
# Files whose import of a module may fail; the names are None then.
MAY_BE_MISSING = {
    "vllm/tool_parsers/streaming.py": "vllm.tool_parsers.mistral_tool_parser",
    "vllm/distributed/weight_transfer/ipc_engine.py": "ray",
}


def download(folder):
    platforms = [argument for glibc in GLIBCS for argument in ("--platform", glibc)]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--python-version",
            "3.12",
            "--only-binary=:all:",
            *platforms,
            "--dest",
            str(folder),
            *WHEELS,
        ],
        check=True,
    )


def unpack(wheels, site):
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not UNWANTED.search(name):
                    archive.extract(name, site)


def device_code(library):
    """(begin, end) of the sections of a 64-bit ELF library in which nvcc keeps device code."""
    (headers,) = struct.unpack_from("<Q", library, 0x28)
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", library, headers + i * size) for i in range(count)]
    for name, _, _, _, offset, length in sections:
        begin = sections[names][4] + name
        if bytes(library[begin : library.index(0, begin)]) in (b".nv_fatbin", b"__nv_relfatbin"):
            yield offset, offset + length


def images(library, begin, end):
    """The fat binaries between two offsets: of each a list of (kind, architecture, offset, bytes of its header, of its body)."""
    magic, ptx_or_cubin = 0xBA55ED50, "<HHIQ"
    while begin + 16 <= end:
        found, _, header, length = struct.unpack_from("<IHHQ", library, begin)
        if found != magic:
            begin += 8  # padding between them
            continue
        at, end_of_binary, entries = begin + header, begin + header + length, []
        while at < end_of_binary:
            kind, _, entry_header, entry_length = struct.unpack_from(ptx_or_cubin, library, at)
            (architecture,) = struct.unpack_from("<I", library, at + 28)
            entries.append((kind, architecture, at, entry_header, entry_length))
            at += entry_header + entry_length
        yield entries
        begin = end_of_binary


def blank_other_gpus(library):
    """Overwrites device code that a GPU of CAPABILITY does not run. Without machine code for it, the newest PTX that it takes stays."""
    ptx, machine_code, never = 1, 2, 120
    for begin, end in device_code(library):
        for entries in images(library, begin, end):
            native = any(kind == machine_code and architecture == CAPABILITY for kind, architecture, *_ in entries)
            newest = max(
                (architecture for kind, architecture, *_ in entries if kind == ptx and architecture <= CAPABILITY),
                default=None,
            )
            for kind, architecture, at, header, length in entries:
                runs = (
                    architecture == CAPABILITY
                    if kind == machine_code
                    else not native and architecture == newest and length < 50_000
                )
                if runs:
                    continue
                library[at + header : at + header + length] = bytes(length)
                if kind == ptx:
                    struct.pack_into("<I", library, at + 28, never)  # or the driver would try to compile the zeros


def tolerate(text, module):
    """Wraps the imports of `module` at the top level of a source in try and except."""

    def wrapped(match):
        statement = match[0]
        names = statement.split("import", 1)[1] if statement.startswith("from") else statement.split()[1]
        absent = " = ".join(re.findall(r"\w+", names)) + " = None"
        return "try:\n    " + statement.replace("\n", "\n    ") + f"\nexcept ImportError:\n    {absent}"

    changed, count = re.subn(rf"(?m)^(?:from|import) {re.escape(module)}\b[^\n(]*(?:\([^)]*\))?$", wrapped, text)
    if count == 0:
        raise SystemExit(f"pack_vllm: no import of {module} where one was")
    return changed


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    out = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        wheels, site = pathlib.Path(scratch, "wheels"), pathlib.Path(scratch, "site")
        download(wheels)
        unpack(wheels, site)
        for name in WITH_DEVICE_CODE:
            library = bytearray((site / name).read_bytes())
            blank_other_gpus(library)
            (site / name).write_bytes(library)
        for name, module in MAY_BE_MISSING.items():
            (site / name).write_text(tolerate((site / name).read_text(), module))
        for name, text in STAND_INS.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
        with tarfile.open(out, "w:xz", preset=6) as archive:
            archive.add(site, "site")
    print(f"{out}: {out.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
