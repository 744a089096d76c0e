"""`cmake --install` gives headers, the library and a CMake package that another project builds with."""

import pathlib
import shutil
import subprocess
import sys

from tree import BUILD, ROOT

CONSUMER = pathlib.Path(__file__).parent / "consumer"


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_another_project_builds_with_the_installed_package(tmp_path: pathlib.Path) -> None:
    prefix = tmp_path / "prefix"
    run("cmake", "--install", BUILD, "--prefix", prefix)
    assert (prefix / "include/phalanx/version.h").exists()

    # The installed files alone: sources and build folder stay out of it.
    consumer = shutil.copytree(CONSUMER, tmp_path / "consumer")
    configure = [
        "cmake",
        "-S",
        consumer,
        "-B",
        consumer / "build",
        "-G",
        "Ninja",
        f"-DPython3_EXECUTABLE={sys.executable}",
    ]
    run(*configure, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", consumer / "build")
    version = (ROOT / "python/phalanx/version.txt").read_text().strip()
    assert run(consumer / "build/consumer") == f"Phalanx {version}\n"


def test_another_version_is_refused(tmp_path: pathlib.Path) -> None:
    prefix = tmp_path / "prefix"
    run("cmake", "--install", BUILD, "--prefix", prefix)
    consumer = shutil.copytree(CONSUMER, tmp_path / "consumer")
    lists = consumer / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("Phalanx 0.1", "Phalanx 99.0"))
    command = ["cmake", "-S", consumer, "-B", consumer / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "99.0" in done.stderr
