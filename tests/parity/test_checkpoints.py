"""What Transformers writes for each family comes back byte for byte, in the released and in the merged layout."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from engine_library import load_engine
from families import FAMILIES
from oracle import random_model

load_engine()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("layout", ["released", "merged"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_comes_back_byte_for_byte(family, layout, tied, tmp_path):
    config_class, base, _ = FAMILIES[family]
    random_model(config_class(**base, tie_word_embeddings=tied), 0).save_pretrained(tmp_path / "random")
    # Some parts stay in fp32.
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "random", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "in", save_original_format=layout == "released")
    names = load_file(tmp_path / "in" / "model.safetensors")
    assert any(name.endswith("experts.gate_up_proj") for name in names) == (layout == "merged")
    torch.classes.phalanx.CausalLM(str(tmp_path / "in"), "auto").save_pretrained(str(tmp_path / "out"))
    files = sorted(path.name for path in (tmp_path / "in").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "out").iterdir())
    for name in files:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "in" / name).read_bytes(), name
