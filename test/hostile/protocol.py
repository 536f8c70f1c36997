"""The client protocol (src/protocol/messages.h) for tests: numbers and sizes from the golden messages, fields from the table below."""
import pathlib
import socket
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = struct.Struct("<HHI")
MEMORY = ("allocated", "resident", "unswappable", "swappable_host", "charged")

# Fields in their order, by struct's letters; what ends in * is a MemoryReport. Only what these tests fill in or read.
LAYOUTS = {
    "Register": "version_min:H version_max:H backend:B has_lock:B wants_lock:B asks_only:B gpu_uuid:16s gpu_total_bytes:Q memory_limit:Q"
    " client_id:Q lease:Q node_limit:Q pid:i gpu_ordinal:I memory:* gpu_name:64s program:64s",
    "ReqLock": "request:Q",
    "LockReleased": "epoch:Q grant:Q reason:B reserved:3s idle_us:I reserved_too:Q used_ns:Q memory:* submissions:Q",
    "MemUpdate": "memory:* budget:Q budget_sequence:Q reserved:Q wanted:Q request:Q",
    "SwapProgress": "direction:B finished:B failed:B reserved:5s id:Q moved:Q copied:Q elapsed_ns:Q memory:* unchanged:Q",
    "AskHeadroom": "request:Q bytes:Q returned:Q",
    "Registered": "spoken:H reserved:6s client_id:Q epoch:Q memory_limit:Q node_limit:Q lease:Q others_charged:Q memory_ceiling:Q"
    " gpu_total_bytes:Q",
    "Refused": "reason:256s barred:B reserved:7s",
    "Headroom": "request:Q bytes:Q limit:Q others_charged:Q granted:B reserved:7s",
    "HeadroomReturned": "recall:Q bytes:Q charged:Q",
    "Import": "request:Q exporter:Q export_id:Q nonce:16s",
    "ArenaRequest": "request:Q total:Q owner:B urgent:B reserved:6s",
    "ArenaReturned": "segment:Q",
    "ArenaHeld": "segment:Q bytes:Q owner:B reserved:7s",
    "AskOwn": "wish:B reserved:7s tenant:Q",
    "AskMps": "reserved:Q group:40s",
    "MpsGroup": "state:B reserved:7s directory:128s reason:256s",
    "OwnReport": "bytes:Q",
    "LockOk": "epoch:Q grant:Q budget:Q budget_sequence:Q",
    "DropLock": "epoch:Q grant:Q attempt:Q together:B reserved:7s tells_end:B reserved_too:7s",
    "Evict": "eviction:Q bytes:Q",
    "RecallHeadroom": "recall:Q bytes:Q",
}


def fields_of(name):
    fields = []
    for field in LAYOUTS[name].split():
        key, letter = field.split(":")
        fields += [(f"{key}.{part}", "Q") for part in MEMORY] if letter == "*" else [(key, letter)]
    return fields


FIELDS = {name: fields_of(name) for name in LAYOUTS}
STRUCTS = {name: struct.Struct("<" + "".join(letter for _, letter in fields)) for name, fields in FIELDS.items()}


def golden():
    """Every message of the newest version: its name and its bytes, header included."""
    newest = max((ROOT / "src/protocol/golden").glob("version_*.txt"), key=lambda file: int(file.stem.split("_")[1]))
    lines = [line.split() for line in newest.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")]
    return {name: bytes.fromhex(text) for name, text in lines}


GOLDEN = golden()
TYPES = {name: HEADER.unpack_from(packet)[0] for name, packet in GOLDEN.items()}
NAMES = {number: name for name, number in TYPES.items()}
VERSION_MAX = max(HEADER.unpack_from(packet)[1] for packet in GOLDEN.values())
FROM_CLIENT = [name for name in GOLDEN if TYPES[name] < 64]


def encode(name, version=None, **values):
    """Fields that are not named are 0."""
    parts = []
    for key, letter in FIELDS[name]:
        zero = b"" if letter.endswith("s") else 0
        parts.append(values.pop(key.replace(".", "_"), zero))
    if values:
        raise KeyError(f"{name} has no {sorted(values)}")
    payload = STRUCTS[name].pack(*parts)
    if version is None:
        version = 1 if name == "Register" else VERSION_MAX
    return HEADER.pack(TYPES[name], version, HEADER.size + len(payload)) + payload


def decode(packet):
    """(name, fields); fields only of messages in the table."""
    number, _, length = HEADER.unpack_from(packet)
    name = NAMES.get(number, "?")
    if name not in STRUCTS or length < HEADER.size + STRUCTS[name].size:
        return name, {}
    values = STRUCTS[name].unpack_from(packet, HEADER.size)
    return name, {key.replace(".", "_"): value for (key, _), value in zip(FIELDS[name], values)}


def connect(path, timeout=20.0):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(timeout)
    connection.connect(path)
    return connection


def register(gpu=1, allocated=0, total=16 << 30, **more):
    return encode(
        "Register", version_min=1, version_max=VERSION_MAX, gpu_uuid=bytes([gpu]) * 16, gpu_total_bytes=total, memory_allocated=allocated,
        memory_swappable_host=allocated, gpu_name=b"test card", program=b"test", **more,
    )
