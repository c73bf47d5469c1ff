#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Kconfig and what uses it: check_kconfig.py FIRMWARE_FOLDER.

Reads every Kconfig.projbuild for each chip, as idf.py does, and looks whether
every CONFIG_FLEET_* of the sources, of the stubs and of the sdkconfig files is an
option of it, and every option is used. Options of ESP-IDF itself are not known
here. Needs python3-kconfiglib.
"""

import pathlib
import re
import sys
import tempfile

import kconfiglib

CHIPS = ("esp32", "esp32c3", "esp32c6", "esp32s3")
NAME = re.compile(r"\bCONFIG_(FLEET_\w+)")
# What ESP-IDF defines and our file asks for.
AROUND = """
mainmenu "firmware"
config BT_ENABLED
    bool "Bluetooth"
    default y
config SPIRAM
    bool "PSRAM"
{chips}
{files}
"""


def load(files, chip):
    chips = "\n".join(
        f"config IDF_TARGET_{c.upper()}\n    bool\n    default {'y' if c == chip else 'n'}" for c in CHIPS
    )
    with tempfile.TemporaryDirectory() as folder:
        top = pathlib.Path(folder) / "Kconfig"
        for number, file in enumerate(files):
            (pathlib.Path(folder) / str(number)).write_text(file.read_text())
        sources = "\n".join(f'rsource "{number}"' for number in range(len(files)))
        top.write_text(AROUND.format(chips=chips, files=sources))
        config = kconfiglib.Kconfig(str(top), warn_to_stderr=False)
    return config


def problems_of(config, root):
    """What is wrong with the defaults of one chip."""
    for symbol in config.unique_defined_syms:
        symbol.str_value  # a default out of its range becomes a warning once it is asked for
    found = [w.strip() for w in config.warnings]
    board = config.syms["FLEET_BOARD"].str_value
    if not (root / "boards" / board / "board.cpp").exists():
        found.append(f"FLEET_BOARD's default {board!r} has no folder in boards/")
    return found


def uses(root):
    """Every file that may name an option, and the names in it."""
    files = [p for d in ("main", "boards", "components", "examples", "host/stubs") for p in (root / d).rglob("*")]
    files += [root / "CMakeLists.txt", *root.glob("sdkconfig*")]
    for file in files:
        if file.is_file() and file.suffix not in (".pem", ".yml") and file.name != "Kconfig.projbuild":
            yield file.relative_to(root), set(NAME.findall(file.read_text()))


def set_values(config, root):
    """What the boards set has to be accepted as it stands."""
    for file in sorted(root.glob("boards/*/sdkconfig.defaults")) + sorted(root.glob("sdkconfig*")):
        for line in file.read_text().splitlines():
            name, equals, value = line.removeprefix("CONFIG_").partition("=")
            symbol = config.syms.get(name) if equals and name.startswith("FLEET_") else None
            if symbol and not symbol.set_value(value.strip('"')):
                yield f"{file.relative_to(root)}: {name} cannot be {value}"


def main(root):
    files = [root / "main" / "Kconfig.projbuild", *sorted(root.glob("components/*/Kconfig.projbuild"))]
    problems = []
    for chip in CHIPS:
        config = load(files, chip)
        problems += [f"{chip}: {p}" for p in problems_of(config, root)]
    options = {s.name for s in config.unique_defined_syms if s.name.startswith("FLEET_")}
    named, used = set(), set()
    for path, names in uses(root):
        problems += [f"{path}: CONFIG_{n} is no option" for n in sorted(names - options)]
        named |= names
        if path.parts[0] in ("main", "boards", "components"):
            used |= names
    choices = {s.name for c in config.unique_choices for s in c.syms}
    problems += [f"{n} is an option that nothing reads" for n in sorted(options - used - choices)]
    problems += list(set_values(config, root))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    print(f"{len(options)} options, each defined and used, for {len(CHIPS)} chips")
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
