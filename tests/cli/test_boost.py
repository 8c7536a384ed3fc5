"""`burnish boost`: from files to a model, predictions and tables, as the functions of `burnish.boost` have them."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from burnish import boost, cli
from burnish.boost import readers
from burnish.boost.inputs.factors import POLICIES
from burnish.cli import boost_training
from burnish.cli.boost_options import FileFormat, Policy
from burnish.errors import DataError, ParameterError

COLUMNS = ("a", "b", "colour", "y")


def rows_of(seed: int, count: int = 300) -> list[list[str]]:
    """Rows whose label depends on the first feature and on the colour."""
    random = np.random.default_rng(seed)
    rows = []
    for a, b, colour in zip(*random.standard_normal((2, count)), random.choice(["red", "blue"], count), strict=True):
        rows.append([f"{a:.6g}", f"{b:.6g}", str(colour), str(int(a + (colour == "red") > 0.5))])
    return rows


def write_csv(path: Path, rows: list[list[str]], order: tuple[str, ...] = COLUMNS) -> Path:
    places = [COLUMNS.index(name) for name in order]
    lines = [",".join(order), *(",".join(row[place] for place in places) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*arguments: object, exit_code: int = 0) -> str:
    """Standard output of a command."""
    result = CliRunner().invoke(cli.app, ["boost", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result.stdout


LEARN = ("-p", "objective=logistic", "-p", "max_depth=3", "-p", "min_child_weight=0.1")
CSV = (*LEARN, "--label", "y", "--categorical", "colour")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "train.csv", rows_of(0))


@pytest.fixture
def model(tmp_path: Path, table: Path) -> Path:
    run("train", table, *CSV, "--rounds", 8, "-o", tmp_path / "model.json")
    return tmp_path / "model.json"


@pytest.mark.parametrize("command", ["train", "predict", "inspect"])
def test_every_command_explains_itself(command: str) -> None:
    assert "--json" in run(command, "--help")


def test_the_help_names_what_there_is() -> None:
    assert [*FileFormat] == [*readers.FORMATS] and [*Policy] == [*POLICIES]


def test_training_is_that_of_the_function(tmp_path: Path, table: Path, model: Path) -> None:
    data = readers.read(table, label="y", categorical=["colour"])
    expected = boost.train({"objective": "logistic", "max_depth": 3, "min_child_weight": 0.1}, data, 8)
    found = boost.Model.load(model)
    np.testing.assert_array_equal(found.predict_margin(data), expected.predict_margin(data))
    assert found.feature_names == COLUMNS[:3]
    assert found.categories == (None, None, ("blue", "red"))


def test_a_report_with_scores_and_early_stopping(tmp_path: Path, table: Path) -> None:
    valid = write_csv(tmp_path / "held.out.csv", rows_of(1))
    options = (
        *CSV,
        "-p",
        "eval_metric=auc",
        "--validation-data",
        valid,
        "--validation-data",
        table,
        "--validation-data",
        valid,
    )
    text = run("train", table, *options, "--rounds", 50, "--early-stopping", 3, "--json", "-o", tmp_path / "m.json")
    report = json.loads(text)
    assert list(report["scores"]) == ["held", "train", "held'"]
    assert report["rounds"] < 50
    assert report["rounds"] == len(report["history"]["held"]["auc"])
    best = report["best_iteration"]
    assert (
        report["scores"]["held"]["auc"]
        == max(report["history"]["held"]["auc"])
        == report["history"]["held"]["auc"][best]
    )
    assert boost.Model.load(tmp_path / "m.json").best_iteration == best


def test_progress_is_lines_where_there_is_no_terminal(tmp_path: Path, table: Path) -> None:
    arguments = ["boost", "train", str(table), *CSV, "--rounds", "20", "-o", str(tmp_path / "m.json")]
    result = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    lines = result.stderr.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"round {number} of 20" for number in range(2, 21, 2)]
    assert result.stdout.startswith(f"{tmp_path / 'm.json'}: 20 rounds in ")


def test_continued_training_is_one_longer_training(tmp_path: Path, table: Path, model: Path) -> None:
    run("train", table, *LEARN, "--rounds", 5, "--continue", model, "-o", tmp_path / "more.json")
    run("train", table, *CSV, "--rounds", 13, "-o", tmp_path / "whole.json")
    data = readers.read(table, label="y", categorical=["colour"])
    more, whole = (boost.Model.load(tmp_path / name) for name in ("more.json", "whole.json"))
    assert more.rounds == 13
    np.testing.assert_array_equal(more.predict_margin(data), whole.predict_margin(data))


def test_ctrl_c_keeps_the_finished_rounds(tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def pressed(console: Any) -> Iterator[Any]:
        def callback(progress: Any) -> bool:
            if progress.round == 3 and not progress.interrupted:
                raise KeyboardInterrupt
            return False

        yield callback

    monkeypatch.setattr(boost_training, "shown", pressed)
    out = tmp_path / "m.json"
    report = json.loads(run("train", table, *CSV, "--rounds", 9, "-o", out, "--json", exit_code=130))
    assert report["interrupted"]
    assert report["rounds"] == boost.Model.load(out).rounds == 3
    assert [path.name for path in tmp_path.iterdir() if "m.json" in path.name] == ["m.json"]


def test_out_of_core_training_is_that_in_memory(tmp_path: Path, table: Path, model: Path) -> None:
    valid = write_csv(tmp_path / "valid.csv", rows_of(1))
    options = (*CSV, "--rounds", 8, "--validation-data", valid, "--memory-budget", "1G", "--json")
    report = json.loads(run("train", table, *options, "-o", tmp_path / "out.json"))
    assert len(report["history"]["valid"]["logloss"]) == 8
    found, expected = boost.Model.load(tmp_path / "out.json"), boost.Model.load(model)
    data = readers.read(table, label="y", categorical=["colour"])
    np.testing.assert_array_equal(found.predict_margin(data), expected.predict_margin(data))
    assert found.categories == expected.categories
    run(
        "train",
        table,
        *options,
        "-o",
        tmp_path / "out2.json",
        "--folder",
        tmp_path / "one",
        "--folder",
        tmp_path / "two",
    )
    assert boost.Model.load(tmp_path / "out2.json").rounds == 8
    assert not list(tmp_path.glob(".burnish-*"))
    with pytest.raises(ParameterError, match="memory_budget: found 1000 bytes"):
        run("train", table, *CSV, "--memory-budget", "1000", "-o", tmp_path / "out3.json")


@pytest.mark.parametrize("order", [COLUMNS, ("y", "colour", "b", "a"), ("colour", "a", "b")])
@pytest.mark.parametrize("kind", ["prediction", "margin", "leaf"])
def test_predictions_find_their_columns(tmp_path: Path, model: Path, order: tuple[str, ...], kind: str) -> None:
    path = write_csv(tmp_path / "new.csv", rows_of(2), order)
    flags = [] if kind == "prediction" else [f"--{kind}"]
    data = readers.read(write_csv(tmp_path / "plain.csv", rows_of(2)), ignore=["y"], categorical=["colour"])
    expected = boost.predict(boost.Model.load(model), data, output=kind).reshape(data.rows, -1)
    text = run("predict", model, path, *flags)
    heading, *lines = text.splitlines()
    assert heading.split(",") == ([kind] if kind != "leaf" else [f"leaf_{number}" for number in range(8)])
    np.testing.assert_array_equal(np.array([line.split(",") for line in lines]).astype(np.float32), expected)
    report = json.loads(run("predict", model, path, *flags, "-o", tmp_path / "out.npy", "--json"))
    assert report["rows"] == 300
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy").reshape(300, -1), expected)
    assert "of 300 rows" in run("predict", model, path, *flags, "-o", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == text


def test_contributions_add_up_to_the_margin(tmp_path: Path, model: Path, table: Path) -> None:
    heading, *lines = run("predict", model, table, "--contributions").splitlines()
    assert heading == "a,b,colour,bias"
    margins = np.array(run("predict", model, table, "--margin").split()[1:], np.float32)
    found = np.array([line.split(",") for line in lines]).astype(np.float64)
    np.testing.assert_allclose(found.sum(axis=1), margins, rtol=1e-4, atol=1e-5)


def test_predictions_do_not_depend_on_the_parts(
    tmp_path: Path, model: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("predict", model, table)
    monkeypatch.setattr("burnish.cli.boost_predicting.ROWS", 7)
    assert run("predict", model, table) == whole


def test_unseen_categories_by_the_models_policy(tmp_path: Path, table: Path) -> None:
    new = write_csv(tmp_path / "new.csv", [["0", "0", "green", "1"], ["0", "0", "", "1"]])
    for policy in ("missing", "error"):
        run("train", table, *CSV, "--rounds", 3, "--policy", policy, "-o", tmp_path / f"{policy}.json")
    first, second = run("predict", tmp_path / "missing.json", new).splitlines()[1:]
    assert first == second
    with pytest.raises(DataError, match="row 0 is 'green', a category that training has not seen"):
        run("predict", tmp_path / "error.json", new)


def test_libsvm_files_keep_their_numbering(tmp_path: Path) -> None:
    rows = [(index % 2, index % 2 + 0.1 * index) for index in range(40)]
    train, valid, new = (tmp_path / name for name in ("train.svm", "valid.svm", "new.svm"))
    train.write_text("".join(f"{y} 1:{x} 3:{x}\n" for y, x in rows))
    valid.write_text("".join(f"{y} 1:{x} 5:1\n" for y, x in rows))  # has a feature that training has not
    new.write_text("".join(f"0 2:9 3:{x}\n" for _y, x in rows))  # alone, it would seem to count from 1 as well
    out = tmp_path / "m.json"
    run("train", train, *LEARN, "--rounds", 3, "--validation-data", valid, "-o", out)
    model = boost.Model.load(out)
    assert model.features == 5
    expected = boost.predict(model, readers.read(new, first_index=1, features=5))
    np.testing.assert_array_equal(np.array(run("predict", out, new).split()[1:], np.float32), expected)


def test_csv_without_a_header(tmp_path: Path) -> None:
    lines = [row[3:] + row[:2] for row in rows_of(0)]
    (tmp_path / "train.csv").write_text("\n".join(map(",".join, lines)))
    (tmp_path / "new.csv").write_text("\n".join(",".join(line[1:]) for line in lines))
    out = tmp_path / "m.json"
    run("train", tmp_path / "train.csv", *LEARN, "--label", 0, "--rounds", 3, "-o", out)
    with_label, without = (run("predict", out, tmp_path / name) for name in ("train.csv", "new.csv"))
    assert with_label == without
    assert len(with_label.splitlines()) == 301
    (tmp_path / "narrow.csv").write_text("1\n2\n")
    with pytest.raises(DataError, match=r"narrow.csv: found 1 features; allowed is 2, as in training"):
        run("predict", out, tmp_path / "narrow.csv")


def test_ranking_by_queries(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = [f"{q},{random.integers(3)},{random.random():.3f}" for q in range(20) for _ in range(5)]
    (tmp_path / "train.csv").write_text("query,relevance,x\n" + "\n".join(lines))
    options = ("--label", "relevance", "--qid", "query", "-p", "objective=rank:ndcg", "--rounds", 2)
    report = json.loads(run("train", tmp_path / "train.csv", *options, "-o", tmp_path / "m.json", "--json"))
    assert (report["rounds"], report["features"]) == (2, 1)
    assert run("predict", tmp_path / "m.json", tmp_path / "train.csv").count("\n") == 101


def test_inspect_shows_parameters_importance_and_trees(model: Path) -> None:
    text = run("inspect", model, "--tree", 1)
    for part in ("objective: logistic", "rounds: 8", "importance: ", "colour", "tree 1:\n", "value "):
        assert part in text
    report = json.loads(run("inspect", model, "--json", "--tree", 0))
    assert report["trees"] == report["rounds"] == 8
    assert set(report["importance"]["gain"]) <= set(COLUMNS[:3])
    assert "value " in report["trees_text"]["0"]


def test_models_of_xgboost_are_models(tmp_path: Path) -> None:
    import xgboost

    x = np.random.default_rng(0).random((50, 2)).astype(np.float32)
    names = ["a", "b"]
    trained = xgboost.train({"max_depth": 2}, xgboost.DMatrix(x, x[:, 0], feature_names=names), 3)
    trained.save_model(tmp_path / "theirs.json")
    np.savetxt(tmp_path / "x.csv", x, delimiter=",", header="a,b", comments="", fmt="%.9g")
    found = np.array(run("predict", tmp_path / "theirs.json", tmp_path / "x.csv").split()[1:], np.float32)
    np.testing.assert_allclose(found, trained.predict(xgboost.DMatrix(x, feature_names=names)), rtol=1e-6)
    assert "rounds: 3" in run("inspect", tmp_path / "theirs.json")


def test_inspect_of_no_trees(tmp_path: Path, table: Path) -> None:
    run("train", table, *CSV, "--rounds", 0, "-o", tmp_path / "m.json")
    assert "trees: 0" in run("inspect", tmp_path / "m.json")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["train", "TABLE", "--categorical", "colour"], DataError, "found no label; pass --label"),
        (["train", "TABLE", *CSV, "-p", "depth"], ParameterError, "--param depth: allowed is NAME=VALUE"),
        (["train", "TABLE", *CSV, "-p", "gamma=1", "-p", "gamma=2"], ParameterError, "--param gamma: found twice"),
        (["train", "TABLE", *CSV, "-p", "max_dept=1"], ParameterError, "max_depth"),
        (["train", "TABLE", *CSV, "--label", "z"], DataError, "label='z' is no column; allowed are a, b, colour, y"),
        (["train", "TABLE", "--label", "y"], DataError, "line 2: column 'colour' is '"),
        (["train", "TABLE", *CSV, "--memory-budget", "much"], ParameterError, "--memory-budget: found 'much'"),
        (["predict", "MODEL", "TABLE", "--leaf", "--margin"], ParameterError, "--margin and --leaf: found both"),
        (["predict", "MODEL", "TABLE", "-o", "x.txt"], ParameterError, "end in .csv or .npy"),
        (["predict", "MODEL", "TABLE", "--json"], ParameterError, "needs --output"),
        (["predict", "TABLE", "TABLE"], DataError, "train.csv"),
        (["inspect", "MODEL", "--tree", "99"], ParameterError, "99"),
    ],
)
def test_refusals(table: Path, model: Path, arguments: list[str], error: type, message: str) -> None:
    places = {"TABLE": str(table), "MODEL": str(model)}
    with pytest.raises(error) as found:
        run(*(places.get(argument, argument) for argument in arguments))
    assert message in str(found.value)


def test_a_missing_feature_is_one_line(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "new.csv", rows_of(2), ("a", "colour"))
    monkeypatch.setattr(sys, "argv", ["burnish", "boost", "predict", str(model), str(path)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == f"burnish: {path}: feature='b' is no column; allowed are a, colour"


def test_parameters_are_json_or_text() -> None:
    texts = ["max_depth=3", "monotone_constraints=[1,-1]", "objective=binary:logistic", "gamma=1e-3", "seed=null"]
    assert boost_training.parameters(texts) == {
        "max_depth": 3, "monotone_constraints": [1, -1], "objective": "binary:logistic", "gamma": 1e-3, "seed": None,
    }  # fmt: skip


ORDERS = (("colour", "y", "b", "a"), ("y", "a", "b", "colour"), ("b", "colour", "a", "y"))


@pytest.mark.parametrize("label", ["y", "3"])
@pytest.mark.parametrize("order", ORDERS)
def test_columns_are_found_by_name_in_every_file(
    tmp_path: Path, table: Path, model: Path, order: tuple[str, ...], label: str
) -> None:
    rows = rows_of(1)
    straight, other = write_csv(tmp_path / "straight.csv", rows), write_csv(tmp_path / "other.csv", rows, order)
    options = (
        *LEARN,
        "--label",
        label,
        "--categorical",
        "colour",
        "--validation-data",
        straight,
        "--validation-data",
        other,
        "--json",
    )
    scores = json.loads(run("train", table, *options, "--rounds", 4, "-o", tmp_path / "m.json"))["scores"]
    assert scores["other"] == scores["straight"]
    for kind in ((), ("--contributions",)):
        assert run("predict", model, other, *kind) == run("predict", model, straight, *kind)
    more = [tmp_path / "one.json", tmp_path / "two.json"]
    for data, path in zip((straight, other), more, strict=True):
        run("train", data, *LEARN, "--continue", tmp_path / "m.json", "--rounds", 2, "-o", path)
    assert boost.Model.load(more[0]).trees[-1].value.tolist() == boost.Model.load(more[1]).trees[-1].value.tolist()


def test_other_columns_are_refused_by_name(tmp_path: Path, table: Path, model: Path) -> None:
    other = write_csv(tmp_path / "other.csv", rows_of(1))
    other.write_text(other.read_text().replace("a,b,colour,y", "a,c,colour,y"))
    with pytest.raises(DataError, match="'b' is no column"):
        run("predict", model, other)
    with pytest.raises(DataError, match="'b' is no column"):
        run("train", table, *CSV, "--validation-data", other, "-o", tmp_path / "m.json")
    with pytest.raises(DataError, match="'b' is no column"):
        run("train", other, *CSV, "--continue", model, "-o", tmp_path / "m.json")
