"""What a relocatable ELF object says of itself: its sections, its symbols, what runs at its start.

64-bit little-endian ELF as the System V ABI and its x86-64 supplement describe it. The object was
made from hostile source: every offset and length is checked against the file before it is used.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

# Tables larger than this are no kernel's: the shipped ones stay under 100 KB.
MAX_TABLE_BYTES = 8 << 20

Binding = Literal["local", "global", "weak", "unique"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_IDENTITY = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
_SYMTAB, _RELA = 2, 4
_BINDINGS: dict[int, Binding] = {0: "local", 1: "global", 2: "weak", 10: "unique"}
_OBJECT, _SECTION_SYMBOL, _TLS, _IFUNC = 1, 3, 6, 10


class ElfError(ValueError):
    """A file that is no x86-64 object, or one whose tables lead out of it."""


@dataclass(frozen=True)
class Section:
    """One section: its name, type (`sh_type`) and whether it may be executed and written."""

    name: str
    kind: int
    executable: bool
    writable: bool


@dataclass(frozen=True)
class Symbol:
    """One symbol: its name, type (`st_info`), the number of its section and its place in there."""

    name: str
    binding: Binding
    kind: int
    section: int
    value: int

    @property
    def defined(self) -> bool:
        """Whether it is in this object; otherwise the linker looks for it."""
        return self.section != 0

    @property
    def thread_local(self) -> bool:
        """Whether every thread has its own."""
        return self.kind == _TLS

    @property
    def data(self) -> bool:
        """Whether it is a variable or a constant."""
        return self.kind == _OBJECT

    @property
    def chosen_at_start(self) -> bool:
        """Whether a function of this object says at the start what the name means."""
        return self.kind == _IFUNC


@dataclass(frozen=True)
class Object:
    """An object file; `initialisers` are the functions that its pointers at the start lead to."""

    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    initialisers: tuple[str, ...]

    def section_of(self, symbol: Symbol) -> Section | None:
        """Where a symbol is; None for one without a place."""
        known = 0 < symbol.section < len(self.sections)
        return self.sections[symbol.section] if known else None


@dataclass(frozen=True)
class _Entry:
    name: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    unit: int


def read_object(path: Path) -> Object:
    """Reads an object file; ElfError if it is not one."""
    try:
        with path.open("rb") as stream:
            return _read(stream, path.stat().st_size)
    except struct.error as error:
        raise ElfError(f"a table of {path.name} ends early") from error


def _read(stream: BinaryIO, length: int) -> Object:
    header = _HEADER.unpack(_part(stream, 0, _HEADER.size, length))
    identity, kind, machine, table = header[0], header[1], header[2], header[6]
    unit, count, names_at = header[11:14]
    if identity[: len(_IDENTITY)] != _IDENTITY or (kind, machine) != (_RELOCATABLE, _X86_64):
        raise ElfError("it is not an object file for x86-64")
    if unit != _SECTION.size:
        raise ElfError("its section headers have another size")
    first = _entry(_SECTION.unpack(_part(stream, table, unit, length)))
    # Where the header's own fields are too narrow, the first entry holds the numbers.
    count, names_at = count or first.size, first.link if names_at == 0xFFFF else names_at
    data = _part(stream, table, count * unit, length)
    entries = [_entry(fields) for fields in _SECTION.iter_unpack(data)]
    names = _table(stream, entries, names_at, length)
    sections = tuple(_section(entry, names) for entry in entries)
    tables = [entry for entry in entries if entry.kind == _SYMTAB]
    symbols = [s for table in tables for s in _symbols(stream, table, entries, length)]
    starts = tuple(_initialisers(stream, entries, sections, symbols, length))
    return Object(sections, tuple(s for s in symbols if s.kind != _SECTION_SYMBOL), starts)


def _symbols(
    stream: BinaryIO, table: _Entry, entries: list[_Entry], length: int
) -> Iterator[Symbol]:
    """The symbols of a table, in its order."""
    names = _table(stream, entries, table.link, length)
    data = _part(stream, table.offset, table.size, length)
    for name, info, _, section, value, _ in _SYMBOL.iter_unpack(data):
        binding = _BINDINGS.get(info >> 4)
        if binding is None:
            raise ElfError("a symbol has a binding that nothing here makes")
        yield Symbol(_text(names, name), binding, info & 0xF, section, value)


def _initialisers(
    stream: BinaryIO,
    entries: list[_Entry],
    sections: tuple[Section, ...],
    symbols: list[Symbol],
    length: int,
) -> Iterator[str]:
    """The functions that the relocations of .init_array lead to; "" for one without a name."""
    for entry in entries:
        if entry.kind != _RELA or not 0 < entry.info < len(entries):
            continue
        # The linker goes by the name, not by the type.
        if not sections[entry.info].name.startswith(".init_array"):
            continue
        data = _part(stream, entry.offset, entry.size, length)
        for _, info, addend in _RELOCATION.iter_unpack(data):
            if info >> 32 >= len(symbols):
                raise ElfError("a relocation names a symbol that is not there")
            symbol = symbols[info >> 32]
            yield symbol.name or _name_at(symbols, symbol.section, addend)


def _name_at(symbols: list[Symbol], section: int, value: int) -> str:
    """The function at a place; compilers name a section and an offset where they could name it."""
    for symbol in symbols:
        if symbol.name and (symbol.section, symbol.value) == (section, value):
            return symbol.name
    return ""


def _entry(fields: tuple[int, ...]) -> _Entry:
    name, kind, flags, _, offset, size, link, info, _, unit = fields
    return _Entry(name, kind, flags, offset, size, link, info, unit)


def _section(entry: _Entry, names: bytes) -> Section:
    return Section(
        _text(names, entry.name), entry.kind, bool(entry.flags & 4), bool(entry.flags & 1)
    )


def _table(stream: BinaryIO, entries: list[_Entry], index: int, length: int) -> bytes:
    if not 0 <= index < len(entries):
        raise ElfError("a table of names is not there")
    return _part(stream, entries[index].offset, entries[index].size, length)


def _part(stream: BinaryIO, offset: int, size: int, length: int) -> bytes:
    if size > MAX_TABLE_BYTES:
        raise ElfError(f"a table has {size} bytes; at most {MAX_TABLE_BYTES} are read")
    if offset + size > length:
        raise ElfError("a table lies outside of the file")
    stream.seek(offset)
    return stream.read(size)


def _text(names: bytes, at: int) -> str:
    if at >= len(names):
        raise ElfError("a name lies outside of its table")
    end = names.find(b"\0", at)
    if end < 0:
        raise ElfError("a name has no end")
    return names[at:end].decode("utf-8", "replace")
