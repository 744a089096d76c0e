"""`phalanx plot`: what it reads, what it draws, what it refuses."""

import json

import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from phalanx.plot import COLOURS, PANELS, main, moving_average, panels_of, read_run


def record(step, loss=2.0):
    return {
        "step": step,
        "loss": loss,
        "grad_norm": 1.5,
        "learning_rate": 1e-4,
        "tokens_per_second": 20_000.0,
        "tokens": 512 * step,
        "epoch": step / 10,
        "seconds": step / 2,
        "expert_load": 1.2,
    }


def write_run(folder, records, tail=""):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records) + tail)
    return folder


def pixels(path, colour):
    image = imread(path)[..., :3]
    return int((abs(image - to_rgb(colour)).max(axis=-1) < 0.02).sum())


def test_draws_training_and_validation(tmp_path, capsys):
    training = [record(step, 5 / step) for step in range(1, 20)]
    run = write_run(tmp_path / "run", training)
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "plot.png")
    without = pixels(run / "plot.png", COLOURS[0])
    write_run(run, [*training, {"step": 10, "validation_loss": 3.0}, {"step": 19, "validation_loss": 2.0}])
    assert main([str(run), "--output", str(tmp_path / "other" / "with.png")]) == 0
    assert pixels(tmp_path / "other" / "with.png", COLOURS[0]) > without > 1000


def test_compares_runs_in_their_own_colours(tmp_path, capsys):
    # More points than are drawn unsmoothed, and one run with a single step.
    long = write_run(tmp_path / "long", [record(step, 2 + 1 / step) for step in range(1, 400)])
    short = write_run(tmp_path / "short", [record(1)])
    assert main([str(long), str(short), "--output", str(tmp_path / "both.png")]) == 0
    image = tmp_path / "both.png"
    assert pixels(image, COLOURS[0]) > 1000
    assert pixels(image, COLOURS[1]) > 20
    assert pixels(image, COLOURS[2]) == 0
    assert imread(image).shape[1] == 1800


def test_panels_without_values_are_left_out(tmp_path):
    run = write_run(tmp_path / "run", [record(1)])
    dense = write_run(tmp_path / "dense", [record(1) | {"expert_load": 0}])
    assert panels_of([read_run(run), read_run(dense)]) == list(PANELS)
    assert panels_of([read_run(dense)]) == [panel for panel in PANELS if panel[0] != "expert_load"]
    assert main([str(dense)]) == 0


def test_a_step_trained_again_counts_once(tmp_path):
    run = write_run(
        tmp_path / "run", [record(1), record(2, 9.0), record(2, 1.0), {"step": 2, "validation_loss": 4.0}]
    )
    read = read_run(run)
    assert read.curve("loss") == ([1, 2], [2.0, 1.0])
    assert read.validation == {2: 4.0}


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    run = write_run(tmp_path / "run", [record(1)], tail='{"step": 2, "lo')
    assert read_run(run / "metrics.jsonl").curve("loss") == ([1], [2.0])


def test_moving_average():
    assert moving_average([1.0, 2.0, 4.0]) == [1.0, 2.0, 4.0]
    values = moving_average([float(n % 2) for n in range(1000)])
    assert values[0] == 0.0
    assert all(0.45 < value < 0.55 for value in values[20:-20])
    assert moving_average([1.0] * 150 + [float("nan")] + [1.0] * 150) == [1.0] * 301


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"step": 2, "loss": }', "no metrics record"),
        ('{"loss": 2}', "no metrics record"),
        ('{"step": 2, "loss": "high"}', "no metrics record"),
        ("\x00\x01", "no metrics record"),
    ],
)
def test_garbled_lines(tmp_path, capsys, line, found):
    run = write_run(tmp_path / "run", [record(1)], tail=line + "\n" + json.dumps(record(3)) + "\n")
    assert main([str(run)]) == 2
    message = capsys.readouterr().err
    assert f"{run}/metrics.jsonl:2: {found}" in message
    assert "delete this line" in message
    assert not (run / "plot.png").exists()


def test_other_errors(tmp_path, capsys):
    assert main([str(tmp_path / "none")]) == 2
    message = capsys.readouterr().err
    assert f"{tmp_path}/none: cannot be read: No such file" in message
    assert "--output of `phalanx finetune`" in message

    empty = write_run(tmp_path / "empty", [])
    assert main([str(empty)]) == 2
    assert f"{empty}/metrics.jsonl: no step is recorded yet" in capsys.readouterr().err

    run = write_run(tmp_path / "run", [record(1)])
    assert main([str(run), "--output", str(tmp_path / "plot.pdf")]) == 2
    assert "plot.pdf: only PNG is written" in capsys.readouterr().err
    assert main([str(run), "--output", str(run / "metrics.jsonl" / "plot.png")]) == 2
    message = capsys.readouterr().err
    assert "cannot be written" in message
    assert "choose another --output" in message
