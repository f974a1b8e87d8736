import gzip
import json

import pytest

from workloads.data.facts.table import (
    FactColumns,
    MergedRows,
    guessing_share,
    read_facts,
    unit_hash,
)
from workloads.data.readers.problems import DataError, Problems

DEFAULT = FactColumns(subject="subject", relation=None, object="object")


def read(path, columns=DEFAULT, layout="auto"):
    problems = Problems()
    facts, merged = read_facts(path, columns=columns, layout=layout, problems=problems)
    problems.raise_if_any()
    return facts, merged


def mistakes(path, **kwargs):
    with pytest.raises(DataError) as caught:
        read(path, **kwargs)
    return [text.replace(f"{path.parent}/", "") for text in str(caught.value).splitlines()]


def test_tab_separated_facts_with_every_optional_column(tmp_path):
    path = tmp_path / "facts.tsv.gz"
    text = (
        "fact_id\trelation_id\trelation\tsubject\tobject\tall_objects_json\tqa_split\n"
        'a\tP1\tcapital\tFrance\tParis\t["Paris", "City of \\"Light\\""]\tqa_train\n'
        "b\tP1\tcapital\tPeru\tLima\t\tqa_test\n\n"
    )
    path.write_bytes(gzip.compress(text.encode()))
    (france, peru), merged = read(path)
    assert (france.subject, france.relation, france.relation_name) == ("France", "P1", "capital")
    assert france.answers == ("Paris", 'City of "Light"')
    assert (france.split, peru.split) == ("qa_train", "qa_test")
    assert peru.answers == ("Lima",)
    assert merged == MergedRows()


def test_json_lines_and_tab_separated_rows_give_the_same_facts(tmp_path):
    rows = [("Ü", "r", "x y"), ("s", "q", "1950")]
    jsonl, tsv = tmp_path / "f.jsonl", tmp_path / "f.txt"
    jsonl.write_text(
        "\n".join(json.dumps({"subject": s, "relation": r, "object": o}) for s, r, o in rows)
    )
    lines = ["subject\tobject\trelation", *(f"{s}\t{o}\t{r}" for s, r, o in rows)]
    tsv.write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    assert read(jsonl) == read(tsv)
    assert [fact.relation_name for fact in read(tsv)[0]] == ["r", "q"]


def test_numbers_are_taken_as_text(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text(
        '{"subject": 5, "relation": "born", "object": 1950, "all_objects": [1950, "50"]}'
    )
    (fact,), _ = read(path)
    assert (fact.subject, fact.answers) == ("5", ("1950", "50"))


def test_rows_of_one_subject_and_relation_are_one_fact_with_several_answers(tmp_path):
    path = tmp_path / "f.tsv"
    path.write_text("subject\trelation\tobject\na\tr\tx\nb\tr\tz\na\tr\ty\na\tr\tx\n")
    facts, merged = read(path)
    assert [(f.subject, f.answers) for f in facts] == [("a", ("x", "y")), ("b", ("z",))]
    assert merged == MergedRows(
        copies=1, other_answers=1, first="f.tsv:4: a has a second r, y beside x"
    )


def test_of_several_answers_the_one_that_is_new_is_told(tmp_path):
    path = tmp_path / "f.jsonl"
    rows = (["x"], ["x", "y"], ["y"])
    path.write_text(
        "".join(
            json.dumps({"subject": "a", "relation": "r", "object": all_[0], "all_objects": all_})
            + "\n"
            for all_ in rows
        )
    )
    (fact,), merged = read(path)
    assert fact.answers == ("x", "y")
    assert merged == MergedRows(
        copies=1, other_answers=1, first="f.jsonl:2: a has a second r, y beside x"
    )


def test_columns_can_have_other_names(tmp_path):
    path = tmp_path / "f.tsv"
    path.write_text("who\tprop\twhat\na\tr\tx\n")
    columns = FactColumns(subject="who", relation="prop", object="what")
    (fact,), _ = read(path, columns=columns)
    assert (fact.subject, fact.relation, fact.answers) == ("a", "r", ("x",))


def test_every_wrong_row_is_reported_with_its_line(tmp_path):
    path = tmp_path / "f.tsv"
    path.write_bytes(
        b"subject\trelation\tobject\tall_objects_json\tqa_split\n"
        b"a\tr\tx\t\t\n"
        b"a2\tr\tx\n"
        b"a3\tr\t \t\t\n"
        b"a4\tr\tx\tx,y\t\n"
        b"a5\tr\tx\t\ttrain\n"
        b"\xff6\tr\tx\t\t\n"
        b"\t\tx\t\t\n"
    )
    assert mistakes(path) == [
        "f.tsv:3: has 3 columns, the header has 5; separate columns with single tabs; "
        "quotes do not protect a tab",
        "f.tsv:4: object is empty; fill it in or delete the row",
        "f.tsv:5: all_objects_json must be a JSON list of texts, got 'x,y'; correct it",
        "f.tsv:6: qa_split must be qa_train or qa_test, got 'train'; correct it",
        "f.tsv:7: byte 1 of the line is not UTF-8 (0xff); convert the file, for example with "
        "iconv -f LATIN1 -t UTF-8",
        "f.tsv:8: subject is empty; fill it in or delete the row",
        "f.tsv:8: relation is empty; fill it in or delete the row",
    ]


def test_wrong_json_lines_are_reported_with_their_line(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text(
        '{"subject": "a", "relation": "r", "object": "x"}\n'
        '{"subject": "a", "relation": "r"}\n'
        '{"subject": "a", "relation": "r", \n'
        '["a", "r", "x"]\n'
        '{"subject": "a", "relation": "r", "object": ["x"]}\n'
        '{"subject": "b", "relation": "r", "object": true}\n'
    )
    found = mistakes(path)
    assert found[0] == (
        "f.jsonl:2: object missing; the row has 'subject', 'relation'; give every row these "
        "fields, or name yours in data.subject_column, data.relation_column and data.object_column"
    )
    assert found[1].startswith("f.jsonl:3: is not JSON (Expecting property name")
    assert found[2] == "f.jsonl:4: holds a list; write one JSON object per line"
    assert found[3].startswith("f.jsonl:5: object must be text, got ['x']")
    assert found[4].startswith("f.jsonl:6: object must be text, got True")
    assert len(found) == 5


def test_a_wrong_header_is_one_mistake_that_shows_the_header(tmp_path):
    path = tmp_path / "f.tsv"
    path.write_text("subject,relation,object\na,r,x\nb,r,x\n")
    (only,) = mistakes(path)
    assert only == (
        "f.tsv:1: the header has no column subject, object, relation_id or relation; it has "
        "'subject,relation,object'; separate columns with tabs, or name yours in "
        "data.subject_column, data.relation_column and data.object_column; where columns are "
        "relations, name them in data.columns_as_relations"
    )


@pytest.mark.parametrize("content", ["", "subject\trelation\tobject\n"])
def test_a_file_without_facts_is_a_mistake(tmp_path, content):
    path = tmp_path / "f.tsv"
    path.write_text(content)
    assert len(mistakes(path)) == 1


def test_a_damaged_gzip_file_is_a_mistake(tmp_path):
    path = tmp_path / "f.tsv.gz"
    whole = gzip.compress(b"subject\trelation\tobject\n" + b"a\tr\tx\n" * 1000)
    path.write_bytes(whole[: len(whole) // 2])
    assert "damaged gzip stream" in mistakes(path)[-1]
    path.write_bytes(whole[:20] + bytes(20))
    assert "damaged gzip stream" in mistakes(path)[-1]


def test_a_mistake_of_all_lines_is_shown_once_and_they_are_counted(tmp_path):
    path = tmp_path / "f.tsv"
    path.write_text("subject\trelation\tobject\n" + "a\tr\t\n" * 1_234)
    found = mistakes(path)
    assert len(found) == 1
    assert found[0].startswith("f.tsv:2:")
    assert "(in 1,234 lines, also 3, 4, 5, 6, …); " in found[0]


def test_hashes_are_spread_and_independent_of_other_purposes():
    a = [unit_hash(str(i), "a") for i in range(2_000)]
    b = [unit_hash(str(i), "b") for i in range(2_000)]
    assert 0.45 < sum(x < 0.5 for x in a) / 2_000 < 0.55
    assert 0.45 < sum((x < 0.5) == (y < 0.5) for x, y in zip(a, b, strict=True)) / 2_000 < 0.55
    assert unit_hash("x", "a") == unit_hash("x", "a")


WIDE = FactColumns(
    subject="name", relation=None, object="object", as_relations=("born_in", "party")
)


@pytest.mark.parametrize("name", ["people.csv", "people.tsv", "tabs.csv", "people.jsonl"])
def test_an_entity_table_gives_the_facts_of_its_melted_form(tmp_path, name):
    rows = [("Ann Lee", "Oslo", "Green"), ("Bo", "Rome", ""), ("Cy", "Oslo", "Red")]
    path, melted = tmp_path / name, tmp_path / "melted.tsv"
    header = ("name", "born_in", "party")
    if name == "people.jsonl":
        texts = [json.dumps(dict(zip(header, row, strict=True))) for row in rows]
    else:
        texts = [("," if name == "people.csv" else "\t").join(row) for row in (header, *rows)]
    path.write_text("\n".join(texts))
    triples = [(r[0], n, v) for r in rows for n, v in zip(header[1:], r[1:], strict=True) if v]
    melted.write_text("\n".join(map("\t".join, [("subject", "relation", "object"), *triples])))

    facts, merged = read(path, columns=WIDE)

    expected, _ = read(melted)
    assert [(f.subject, f.relation, f.answers) for f in facts] == [
        (f.subject, f.relation, f.answers) for f in expected
    ]
    assert {f.relation_name for f in facts} == {"born in", "party"}
    assert merged == MergedRows()
    assert guessing_share(facts) == pytest.approx((2 + 1) / 5)


def test_quoted_cells_hold_commas_and_line_ends_and_mistakes_have_their_line(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text('name,born_in,party\n"Lee, Ann","Oslo,\nNorway",Green\n')
    (born, party), _ = read(path, columns=WIDE)
    assert (born.subject, born.answers, party.answers) == (
        "Lee, Ann",
        ("Oslo,\nNorway",),
        ("Green",),
    )
    path.write_text("name,born_in,party\nAnn,Oslo,Green\n,Rome,Red\nBo,Rome\n")
    assert mistakes(path, columns=WIDE) == [
        "p.csv:3: name is empty or missing; fill it in",
        "p.csv:4: has 2 columns, the header has 3; put quotes around cells that hold a comma",
    ]
    path.write_text("name,party\nAnn,Green\n")
    (mistake,) = mistakes(path, columns=WIDE)
    assert mistake.startswith("p.csv:1: the header has no column born_in; it has 'name', 'party';")


NAN = float("nan")


def test_nan_is_an_empty_cell(tmp_path):
    """As pandas writes it into JSON."""
    path = tmp_path / "f.jsonl"
    path.write_text(
        "\n".join(
            json.dumps(row)
            for row in (
                {"name": "a", "born": NAN, "party": "Red"},
                {"name": "b", "born": 1901.0, "party": NAN},
                {"name": "nan", "born": "nan", "party": NAN},
            )
        )
    )
    wide = FactColumns(
        subject="name", relation=None, object="object", as_relations=("born", "party")
    )
    found = [(f.subject, f.relation, *f.answers) for f in read(path, columns=wide)[0]]
    assert found == [("a", "party", "Red"), ("b", "born", "1901.0"), ("nan", "born", "nan")]

    rows = (
        {"subject": "a", "relation_id": "r", "relation": NAN, "object": 1, "all_objects": [1, NAN]},
        {"subject": "b", "relation_id": "r", "object": 2, "all_objects": NAN},
    )
    path.write_text("\n".join(map(json.dumps, rows)))
    facts, _ = read(path)
    assert [(f.relation_name, f.answers) for f in facts] == [("r", ("1",)), ("r", ("2",))]

    path.write_text(json.dumps({"subject": "a", "relation": "r", "object": NAN}))
    assert mistakes(path) == ["f.jsonl:1: object is empty; fill it in or delete the row"]
