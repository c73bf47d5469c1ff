#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The manifests of the components: check_manifests.py FIRMWARE_FOLDER.

Each has what the registry of components asks for, the version of the firmware, and
names the components of ours that its CMakeLists.txt requires, at a path that exists.
"""

import pathlib
import re
import sys

FIELDS = ("version", "description", "url", "license")


def problems_of(folder, version):
    manifest = folder / "idf_component.yml"
    if not manifest.exists():
        yield "there is none"
        return
    text = manifest.read_text()
    fields = dict(re.findall(r'^(\w+): "([^"]+)"', text, re.MULTILINE))
    yield from (f"lacks {name}" for name in FIELDS if name not in fields)
    if fields.get("version") != version:
        yield f"has version {fields.get('version')}, and version.txt has {version}"
    named = set(re.findall(r"^  fleetd/(\w+):", text, re.MULTILINE))
    registered = (folder / "CMakeLists.txt").read_text().partition("idf_component_register")[2].partition(")")[0]
    required = set(re.findall(r"\bfleet_\w+", registered))
    if named != required:
        yield f"names {sorted(named)}, and CMakeLists.txt requires {sorted(required)}"
    for path in re.findall(r'override_path: "([^"]+)"', text):
        if not (folder / path / "idf_component.yml").exists():
            yield f"there is no component at {path}"


def main(root):
    version = (root / "version.txt").read_text().strip()
    failed = False
    for folder in sorted(p for p in (root / "components").iterdir() if p.is_dir()):
        for problem in problems_of(folder, version):
            print(f"{folder.name}/idf_component.yml: {problem}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
