"""Reading a machine's inside from whatever there is: our TOML, NCCL's or RCCL's XML, or `nvidia-smi topo -m`.

The formats are told apart by content, since people save them under any name.
"""

from pathlib import Path

from byteps.machine import PRESETS, Topology
from byteps.machine_file import parse_machine, preset
from byteps.topology.nccl_xml import parse_nccl_xml
from byteps.topology.nvidia_smi import looks_like_matrix, parse_matrix


def load_topology(path: str | Path) -> Topology:
    """The machine described by a file, or the preset of that name; a ValueError says what is wrong with it."""
    if str(path) in PRESETS:
        return preset(str(path))
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # Windows' editors begin with a byte order mark
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; expected a file, or one of {', '.join(PRESETS)}") from error
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{error.object[error.start]:02x} at {error.start}"
        raise ValueError(f"{path} is not text in UTF-8 ({wrong}); save it as UTF-8") from error
    return parse_topology(text, str(path))


def parse_topology(text: str, source: str) -> Topology:
    """The machine that a text in any of the formats describes; `source` names the text in errors."""
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("<"):
        return parse_nccl_xml(text, source)
    if looks_like_matrix(text):
        return parse_matrix(text, source)
    return parse_machine(text, source)
