"""The scanner finds planted violations, and none in the tree."""

import pathlib
import subprocess
import sys

import pytest

SCANNER = pathlib.Path(__file__).with_name("check_layers.py")

CLEAN = {
    "src/core/error.h": "#include <string>\n",
    "src/core/json.cpp": '#include "core/error.h"\n#include <nlohmann/json.hpp>\n',
    "src/io/reader.h": '#include "core/error.h"\n',
    "src/ops/specs.h": "#include <cstdint>\n",
    "src/ops/norm.h": "#include <ATen/core/Tensor.h>\n",
    "src/models/spec/spec.h": '#include "io/reader.h"\n#include "ops/specs.h"\n',
    "src/models/layer.cpp": '#include "models/spec/spec.h"\n#include "ops/norm.h"\n',
    "src/kernels/norm/norm.cu": '#include "core/error.h"\n#include <cuda_bf16.h>\n',
    "include/phalanx/version.h": "",
    "apps/phalanx/main.cpp": '#include "phalanx/version.h"\n#include "models/spec/spec.h"\n#include "plan.h"\n',
    "apps/phalanx/plan.h": "#include <string>\n",
}


def scan(root: pathlib.Path, files: dict[str, str]) -> tuple[int, str]:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run([sys.executable, SCANNER, root], capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout


def test_the_tree_is_clean() -> None:
    done = subprocess.run([sys.executable, SCANNER], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_clean_tree_passes(tmp_path: pathlib.Path) -> None:
    assert scan(tmp_path, CLEAN) == (0, "\n")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("src/core/error.h", '#include "io/reader.h"\n', "core/error.h: core includes io/reader.h"),
        ("src/io/reader.h", '#include "config/x.h"\n', "io/reader.h: io includes config/x.h"),
        ("src/config/x.h", '#include "io/reader.h"\n', "config/x.h: config includes io/reader.h"),
        (
            "src/ops/norm.h",
            '  #  include  "models/spec/spec.h"\n',
            "ops/norm.h: ops includes models/spec/spec.h",
        ),
        (
            "src/io/reader.h",
            "#include <ATen/core/Tensor.h>\n",
            "io/reader.h: reaches torch by io/reader.h -> ATen",
        ),
        (
            "src/models/spec/spec.h",
            '#include "ops/norm.h"\n',
            "models/spec/spec.h -> ops/norm.h -> ATen/core/Tensor.h",
        ),
        ("src/train/plan/plan.h", "#include <c10/util/Half.h>\n", "train/plan/plan.h: reaches torch"),
        ("src/ops/norm_gpu.cu", "#include <torch/library.h>\n", "ops/norm_gpu.cu: reaches torch"),
        (
            "apps/phalanx/plan.h",
            '#include "ops/norm.h"\n',
            "apps/phalanx/main.cpp -> apps/phalanx/plan.h -> ops/norm.h",
        ),
        ("src/ops/norm.h", "#include <torch/torch.h>\n", "includes torch/torch.h; take the narrow header"),
        ("src/ops/norm.h", "#include <ATen/ATen.h>\n", "includes ATen/ATen.h; take the narrow header"),
        ("src/io/reader.cpp", "#include <nlohmann/json.hpp>\n", "nlohmann is included in 2 files"),
        ("apps/phalanx/plan.h", "#include <CLI/CLI.hpp>\n", "apps/phalanx/plan.h: CLI11 in a header"),
        ("include/phalanx/version.h", '#include "core/error.h"\n', "includes the internal core/error.h"),
        ("src/misc/x.h", "", "misc/x.h: unknown layer misc"),
        ("src/core/long.cpp", "\n" * 701, "src/core/long.cpp: 701 lines, allowed are 700"),
        ("python/phalanx/long.py", "\n" * 701, "python/phalanx/long.py: 701 lines"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: pathlib.Path, file: str, text: str, message: str) -> None:
    status, output = scan(tmp_path, CLEAN | {"src/config/x.h": ""} | {file: text})
    assert status == 1
    assert message in output


def test_long_files_are_noted_but_pass(tmp_path: pathlib.Path) -> None:
    status, output = scan(tmp_path, CLEAN | {"src/core/long.cpp": "\n" * 401})
    assert status == 0
    assert "note: src/core/long.cpp has 401 lines" in output
