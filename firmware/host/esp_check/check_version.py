#!/usr/bin/env python3
"""Builds the project of firmware/CMakeLists.txt, changes version.txt, and builds it again: the second
image has to have the second version. ESP-IDF's part is played by a project.cmake of a few lines.

    check_version.py FIRMWARE
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# What project() of ESP-IDF 5.5 and 6.0 does about the version, with a target that stands for the image.
PROJECT_CMAKE = """
macro(project name)
    if(NOT DEFINED PROJECT_VER)
        set(version_file "${CMAKE_CURRENT_LIST_DIR}/version.txt")
        file(STRINGS "${version_file}" PROJECT_VER)
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${version_file}")
    endif()
    _project(${name} NONE)
    add_custom_target(image ALL COMMAND ${CMAKE_COMMAND} -E echo "${PROJECT_VER}" > image)
endmacro()
"""


def main(firmware):
    with tempfile.TemporaryDirectory() as folder:
        project = pathlib.Path(folder, "firmware")
        build = pathlib.Path(folder, "build")
        idf = pathlib.Path(folder, "idf")
        project.mkdir()
        (idf / "tools/cmake").mkdir(parents=True)
        (idf / "tools/cmake/project.cmake").write_text(PROJECT_CMAKE)
        shutil.copy(firmware / "CMakeLists.txt", project)

        def built(version):
            (project / "version.txt").write_text(version + "\n")
            if not build.exists():
                command = ["cmake", "-G", "Ninja", "-S", project, "-B", build]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "IDF_PATH": str(idf)})
            subprocess.run(["cmake", "--build", build], check=True, stdout=subprocess.DEVNULL,
                           env={**os.environ, "IDF_PATH": str(idf)})
            return (build / "image").read_text().strip()

        for version in ("1.2.3", "1.2.4"):
            got = built(version)
            if got != version:
                sys.exit(f"version.txt says {version}, and the image built from it {got}")


main(pathlib.Path(sys.argv[1]))
