"""The command line on tables and folders of pictures."""

import numpy as np
import pytest
from cli_cases import fail, run, succeed, write
from frame_cases import table

import lamina as lm
from lamina.data import load

pytestmark = pytest.mark.each_case


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def network(features, outputs=1, loss="MSE"):
    return (
        "import lamina as lm\nepochs = 1\n"
        f"net = lm.Sequential(lm.Input({features}), lm.Linear({outputs}))\n"
        f"loss = lm.{loss}()\n"
    )


def predicted(path, *options):
    return succeed("predict", "net.safetensors", "--data", path, *options).output


@pytest.mark.sampled
def test_the_command_line_fills_gaps_and_regresses_whole_numbers(folder):
    table(folder, "a,b,rent\n1,2,10\n,3,20\n4,NA,30\n")
    write("net.py", network(2))
    command = ("train", "net.py", "--data", "a.csv", "--validation", "a.csv")
    assert "the table has no columns of inputs" in fail(*command, "--delimiter", ";")
    assert "--gaps mean on the command line" in fail(*command)
    assert "(--kind NAME=number)" in fail(*command, "--gaps", "mean")
    options = ("--gaps", "mean", "--kind", "rent=number", "--standardise")
    assert "training    3 examples: x f32[2], y f32[1]" in succeed(*command, *options).output
    model = lm.load("net.safetensors")
    expected = load("a.csv", gaps="mean", standardise=True, kinds={"rent": "number"})
    assert model.coding == expected.coding
    header, *scores = predicted("a.csv").splitlines()
    assert header == "rent"
    np.testing.assert_allclose(
        np.array(scores, "float32"), model.predict(expected.inputs)[:, 0], rtol=1e-6
    )
    succeed("verify", "net.py", "--data", "a.csv", "--batch-size", 3, *options)
    succeed("profile", "net.py", "--data", "a.csv", "--seconds", 0.01, *options)
    succeed("train", "net.py", "--data", "a.csv", "--gaps", "0.5", "--kind", "rent=number")
    assert [column.gap for column in lm.load("net.safetensors").coding.columns] == [0.5, 0.5]


def test_new_rows_of_words_may_be_numbers_or_empty_and_other_columns_hold_anything(folder):
    table(folder, "house,n,y\n12a,1,0.5\n007,2,1.5\n12a,,1\n")
    write("net.py", network(3))
    succeed("train", "net.py", "--data", "a.csv", "--gaps", "mean")
    coding = lm.load("net.safetensors").coding
    assert coding.features == ("house=007", "house=12a", "n")
    for rows, inputs in (("007,\n", [1, 0, 1.5]), (",3\n", [0, 0, 3])):
        write("b.csv", f"house,n\n{rows}")
        assert coding.inputs("b.csv").tolist() == [inputs]
    write("b.csv", "house,n\n12a,many\n")
    message = fail("predict", "net.safetensors", "--data", "b.csv")
    assert "the column 'n' is of another kind" in message
    assert "'many' in line 2" in message
    write("b.csv", "house,y\n12a,1\n")
    train = "train net.py --data a.csv --gaps mean --validation"
    for command in ("predict net.safetensors --data", train):
        message = fail(*command.split(), "b.csv")
        assert message.startswith("DataError in b.csv: columns are missing\n  missing  n\n")
    rows = "".join(f"{number},12a,{number},?\n" for number in range(20))
    write("b.csv", f"id,house,n,y\n{rows}x,007,1,\n")
    assert len(predicted("b.csv").splitlines()) == 22


def test_one_column_is_a_table_for_a_model_of_one_feature(folder):
    table(folder, "a,y\n1,2.5\n2,3.5\n")
    write("net.py", network(1))
    succeed("train", "net.py", "--data", "a.csv")
    write("one.csv", "a\n1\n2\n")
    with_targets = predicted("a.csv")
    assert predicted("one.csv") == predicted("a.csv", "--targets", "y") == with_targets
    write("one.csv", "a\n1\n?\n")
    assert fail("predict", "net.safetensors", "--data", "one.csv") == (
        "DataError in one.csv: the column 'a' has an entry that is not a number, and the model was "
        "trained on numbers\n"
        "  expected  numbers\n"
        "  found     '?' in line 3\n"
        "  Correct it, or train on a table with such entries.\n"
    )
    succeed("train", "net.py", "--data", "a.csv", "--kind", "y=number")
    assert predicted("a.csv").startswith("y\n")


def test_wrong_options_of_tables_are_wrong_usage(folder):
    write("net.py", network(1))
    for option in ("rent", "rent=", "rent=numbers"):
        message = fail("train", "net.py", "--data", "a.csv", "--kind", option, status=2)
        assert f"{option!r} is not NAME=KIND with one of the kinds number, date" in message
    message = fail("train", "net.py", "--data", "digits", "--gaps", "mean", status=2)
    assert "digits is no table" in message
    assert run("train", "net.py", "--data", "a.csv", "--words", "hot").exit_code == 2
    table(folder, "a,y\n1,2\n")
    for *option, text in (
        ("--gaps", "average", "DefinitionError in --gaps: gaps must be one of 'error', "),
        ("--delimiter", ";;", "DefinitionError in --delimiter: delimiter must be one character"),
        ("--memory", "4 gigs", "DefinitionError in --memory: this is not an amount of memory"),
    ):
        command = "plan" if "--memory" in option else "train"
        assert fail(command, "net.py", "--data", "a.csv", *option).startswith(text)


def test_the_command_line_knows_the_classes(folder):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    from test_data_images import three_classes_and_two

    three_classes_and_two(folder)
    write(
        "net.py",
        "import lamina as lm\n"
        "net = lm.Sequential(lm.Input(1, 3, 4), lm.Flatten(), lm.Linear(3))\n"
        "loss, epochs = lm.CrossEntropy(), 1\n",
    )
    succeed("train", "net.py", "--data", "train", "--validation", "test")
    lines = succeed("predict", "net.safetensors", "--data", "test").output.splitlines()
    assert lines[0] == "a,b,c"
    assert len(lines) == 3
