#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lays partition tables out as ESP-IDF's generator does, and checks what it and a fleet need of them."""

import sys

KILO, MEGA = 1024, 1024 * 1024
SECTOR, APP_ALIGNMENT = 0x1000, 0x10000
SLOTS_AT = 0x40000  # in every table, so that bootloader, table and slots can be told apart by address
# Without and with secure boot, whose bootloader is larger.
TABLE_OFFSETS = (0x8000, 0x10000)


def size_of(text):
    if text[-1:] in "Kk":
        return int(text[:-1], 0) * KILO
    if text[-1:] in "Mm":
        return int(text[:-1], 0) * MEGA
    return int(text, 0)


def rows(path):
    with open(path, encoding="utf-8") as table:
        for line in table:
            line = line.split("#")[0].strip()
            if line:
                yield ([cell.strip() for cell in line.split(",")] + [""])[:6]


def lay_out(path, table_offset):
    """Gives (name, type, subtype, offset, size) of each row."""
    end = table_offset + SECTOR
    laid = []
    for name, kind, subtype, offset, size, _ in rows(path):
        alignment = APP_ALIGNMENT if kind == "app" else SECTOR
        start = int(offset, 0) if offset else -(-end // alignment) * alignment
        end = start + size_of(size)
        laid.append((name, kind, subtype, start, size_of(size)))
    return laid


def complaints(laid, flash):
    end = 0
    for name, kind, _, start, size in laid:
        if start < end:
            yield f"{name} at {start:#x} overlaps what ends at {end:#x}"
        if start % (APP_ALIGNMENT if kind == "app" else SECTOR) or size % SECTOR:
            yield f"{name} at {start:#x} with {size:#x} bytes is not aligned"
        if len(name) > 15:
            yield f"{name}: a name has at most 15 characters"
        end = start + size
    if end > flash:
        yield f"the table ends at {end:#x}, behind the flash's {flash:#x}"
    if len({row[0] for row in laid}) != len(laid):
        yield "two partitions have one name"
    yield from fleet_complaints(laid)


def fleet_complaints(laid):
    slots = [row for row in laid if row[1] == "app"]
    if [row[2] for row in slots] != ["ota_0", "ota_1"]:
        yield "there have to be exactly the slots ota_0 and ota_1"
    elif slots[0][4] != slots[1][4] or slots[0][3] != SLOTS_AT:
        yield f"the slots have to be equal and begin at {SLOTS_AT:#x}"
    sizes = {row[2]: row[4] for row in laid if row[1] == "data"}
    for subtype, least in {"nvs": 0x3000, "ota": 0x2000, "coredump": 0x10000, "nvs_keys": 0x1000}.items():
        if sizes.get(subtype, 0) < least:
            yield f"a data partition {subtype} of {least:#x} bytes is missing"
    if sizes.get("ota", 0) != 0x2000:
        yield "otadata has exactly two sectors"


def open_secrets(path):
    """Gives what flash encryption has to cover by a flag: a dump has keys and passwords of the memory."""
    for _, _, subtype, _, _, flags in rows(path):
        if subtype in ("coredump", "nvs_keys") and "encrypted" not in flags:
            yield f"{subtype} is not encrypted"


def main(paths):
    failed = False
    for path in paths:
        for complaint in open_secrets(path):
            failed = True
            print(f"{path}: {complaint}")
        flash = int(path.rsplit("/", 1)[-1].split("mb")[0]) * MEGA
        for table_offset in TABLE_OFFSETS:
            laid = lay_out(path, table_offset)
            for complaint in complaints(laid, flash):
                failed = True
                print(f"{path} with the table at {table_offset:#x}: {complaint}")
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
